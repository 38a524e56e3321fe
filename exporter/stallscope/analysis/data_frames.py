"""A run as pandas data frames: its steps, phases, GPUs and hosts, with the training step's number in every row.

    from stallscope.analysis import frames

    run = frames("resnet50", prometheus="http://localhost:9090")
    run.gpu.groupby("step")["busy_ratio"].mean()

A row is one scrape of one subject: a rank, a rank's phase, a GPU, a host. Its time is that of the scrape, its figures
are those of the interval since the scrape before, whose length is `interval_seconds`; so nothing lies between two rows
that neither tells of. After a gap the interval is as long as the gap. What was not told is NaN, never 0. A ratio may
pass 1 by a few hundredths, since a figure is a little older than its scrape.

`step` is how many steps the rank had done, as the same scrape told it. Nothing is interpolated: a scrape shows a
rank's newest report, which is a few seconds old. A GPU has the step of the rank that claims it (the first of several),
and rows only while one does; a host has that of the first rank on it.

With `step=60` a row is a minute instead, made by the server: figures are means over the minute before it (a counter's
by PromQL's `rate`, over four scrapes at least), peaks the greatest and `step` and its like the last of it. What is
left at the end, less than a minute, is left out. Every column is listed in FRAMES.md in the repository.
"""

from __future__ import annotations

import datetime as dt
import itertools
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isfinite, nan

import pandas as pd

from stallscope.analysis.columns import COLUMNS
from stallscope.analysis.ranges import MAX_SECONDS, Advance, Ranges, natural_step, unwatched
from stallscope.analysis.run_reader import RunReader
from stallscope.analysis.runs import Run, RunError, UnknownRunError, find_run
from stallscope.clients.address import default_url
from stallscope.clients.client_certificate import told_by_environment
from stallscope.clients.expressions import quoted
from stallscope.clients.prometheus import Prometheus

MAX_BYTES = 256 << 20
"""What data frames of one run may take in memory, roughly, before a longer step is chosen; to read them takes two to
three times as much meanwhile."""
PIECE_BYTES = 64 << 20
"""The same of one piece of a run."""
NAMES = tuple(COLUMNS)
"""The data frames of a run."""
_DAY = 86_400.0
_TIMEOUT = 60.0
_ANSWER_BYTES = 128 << 20
_SAMPLES_A_QUESTION = 2_000_000
_SERIES_A_SUBJECT = 6
"""Of one name, at most: a GPU has so many reasons to throttle."""
_USUAL_INTERVAL = 15.0
_INTERVAL_SECONDS = 1200.0
"""For so long scrapes are looked at to find out how far they are apart."""
_CLOCKS_APART = 60.0
_RANKS_LISTED = 8
_ATTEMPTS = 10
"""Two minutes: a server that starts again in the midst of a month must not cost all that was read so far."""

Moment = dt.datetime | float
"""A date with its time (of this machine's zone where it names none), or Unix time."""


@dataclass(frozen=True)
class Frames:
    """A run's data frames.

    Each has a DatetimeIndex in UTC and the same columns for every run, with their units in `frame.attrs["units"]`.
    """

    run: Run
    start: float
    """Unix time after which the rows lie."""
    end: float
    """Unix time of the last that may be."""
    resolution: float
    """Seconds between two rows of a subject: between scrapes, or the step."""
    steps: pd.DataFrame
    """A rank's steps: how many, their mean time, work done, loss, memory, processor time."""
    phases: pd.DataFrame
    """A rank's time by phase."""
    gpu: pd.DataFrame
    """The GPUs that ranks claim, while they do."""
    host: pd.DataFrame
    """The machines that ranks are on, while they are."""
    values: pd.DataFrame
    """What the training reported besides, by name."""
    gaps: int = 0
    """How often a rank's next row came later than three usual ones: scrapes failed, or an exporter was away."""
    notes: tuple[str, ...] = ()
    """What a reader must know: what is missing, and what was chosen."""

    def items(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Name and data frame of each."""
        return ((name, getattr(self, name)) for name in NAMES)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {len(frame)}" for name, frame in self.items())
        return f"<Frames of {self.run.name!r}, {self.resolution:g} s a row: {rows}>"


def frames(
    run: str | Run,
    *,
    prometheus: Prometheus | str | None = None,
    start: Moment | None = None,
    end: Moment | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    step: float | None = None,
    max_bytes: int = MAX_BYTES,
    advance: Advance = unwatched,
) -> Frames:
    """Read a run into memory; see the module for what the rows are.

    Args:
        run: its name, CLUSTER/NAMESPACE/NAME where several have it, or what `find_run` found.
        prometheus: the server or its address; STALLSCOPE_PROMETHEUS_URL or this machine's where left out.
        start: from when on; a day before the end where left out.
        end: until when; the server's now where left out.
        cluster: which run is meant, where several clusters have one of that name.
        namespace: likewise.
        step: seconds from row to row, made by the server; the scrapes themselves where left out.
        max_bytes: what the frames may take, roughly. Where the scrapes would take more, the shortest step that fits is
            chosen, with a warning and a note. `pieces` reads scrapes however long the run.
        advance: told of progress, in shares that sum to 1.

    Raises:
        RunError: there is no such run, or more than one, or it is shorter than a step.
        PrometheusError: the server gave no answer.
        ValueError: a time is none, or the end does not lie after the start.
    """
    with _asked(prometheus) as server:
        told = _found(server, run, start, end, cluster, namespace)
        seconds = told.end - told.start
        reader, notes = told.reader(step), told.notes
        if step is None and (needed := reader.bytes(seconds)) > max_bytes:
            step = natural_step(seconds, int(seconds / reader.scrapes * max_bytes / needed))
            reader = told.reader(step)
            note = (
                f"the scrapes take about {needed / 2**20:.0f} MiB, and {max_bytes / 2**20:.0f} MiB may be taken: a row "
                f"is {step:g} s; `pieces` reads the scrapes themselves, `stallscope frames` writes them to files"
            )
            warnings.warn(note, stacklevel=2)
            notes = (*notes, note)
        begin = told.begin(step)
        read = reader.read(begin, told.end, advance)
        notes = (*notes, *server.take_notes())
        return Frames(told.run, begin, told.end, reader.resolution, **read, gaps=reader.gaps, notes=notes)


def pieces(
    run: str | Run,
    *,
    prometheus: Prometheus | str | None = None,
    start: Moment | None = None,
    end: Moment | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    step: float | None = None,
    piece_bytes: int = PIECE_BYTES,
    advance: Advance = unwatched,
) -> Iterator[Frames]:
    """Read a run however long, piece by piece in the order of time; put together they are what `frames` gives.

    Args:
        run: its name, or what `find_run` found.
        prometheus: as with `frames`, and so are the next six.
        start: see there.
        end: see there.
        cluster: see there.
        namespace: see there.
        step: see there.
        piece_bytes: what the frames of one piece may take, roughly.
        advance: told of progress, in shares that sum to 1.

    Raises:
        RunError: there is no such run, or more than one, or it is shorter than a step.
        PrometheusError: the server gave no answer.
        ValueError: a time is none, or the end does not lie after the start.
    """
    with _asked(prometheus) as server:
        told = _found(server, run, start, end, cluster, namespace)
        reader = told.reader(step)
        first = told.begin(step)
        whole = told.end - first
        number = -(-reader.bytes(whole) // piece_bytes) or 1
        # Whole rows, so that a server's steps go on from piece to piece.
        length = max(1.0, whole / reader.resolution // number) * reader.resolution
        while first < told.end:
            last = min(first + length, told.end)

            def advanced(part: float, share: float = (last - first) / whole) -> None:
                advance(part * share)

            read = reader.read(first, last, advanced)
            notes = (*told.notes, *server.take_notes())
            yield Frames(told.run, first, last, reader.resolution, **read, gaps=reader.gaps, notes=notes)
            first = last


def scrape_interval(server: Prometheus, run: Run) -> float:
    """Seconds between two scrapes of a rank, as they are towards the run's end; 15 where that can't be told.

    Raises:
        PrometheusError: the server gave no answer.
    """
    begin = max(run.start - 1, run.end - _INTERVAL_SECONDS)
    # One rank will do, if the first was there to the end.
    for matchers in (f"{run.matchers}, rank={quoted(run.places[0].rank)}", run.matchers):
        found = server.samples(f"stallscope_training_rank_info{{{matchers}}}", begin, run.end)
        times = max((each.times for each in found), key=len, default=())
        if len(times) > 1:
            return round(statistics.median(later - earlier for earlier, later in itertools.pairwise(times)), 3)
    return _USUAL_INTERVAL


@dataclass(frozen=True)
class _Told:
    """What is to be read."""

    server: Prometheus
    run: Run
    start: float
    end: float
    notes: tuple[str, ...]

    def begin(self, step: float | None) -> float:
        """Unix time after which rows lie: just before the first scrape, which is one; steps begin with it."""
        return self.start if step is None else max(self.start, self.run.start)

    def reader(self, step: float | None) -> RunReader:
        """One that has read nothing yet."""
        if step is not None and not (isfinite(step) and step >= 1):
            raise ValueError(f"a step of {step} s is none; it is a second at least")
        if step is not None and step > self.end - self.start:
            raise RunError(f"the run's {self.end - self.start:.0f} s have no row of {step:g} s; choose a shorter step")
        scrapes = scrape_interval(self.server, self.run)
        subjects = max(len(self.run.places), len(self.run.claims), 1)
        longest = _SAMPLES_A_QUESTION * scrapes / (subjects * _SERIES_A_SUBJECT)
        longest = min(MAX_SECONDS, max(10 * scrapes, longest))
        ranges = Ranges(self.server, attempts=_ATTEMPTS, max_seconds=longest)
        return RunReader(ranges, self.run, scrapes, step)


@contextmanager
def _asked(prometheus: Prometheus | str | None) -> Iterator[Prometheus]:
    """The server that is meant; one that is made here is closed here."""
    if isinstance(prometheus, Prometheus):
        yield prometheus
        return
    url, certificate = prometheus or default_url(), told_by_environment()
    with closing(Prometheus(url, timeout=_TIMEOUT, max_bytes=_ANSWER_BYTES, certificate=certificate)) as server:
        yield server


def _found(
    server: Prometheus,
    run: str | Run,
    start: Moment | None,
    end: Moment | None,
    cluster: str | None,
    namespace: str | None,
) -> _Told:
    """Find the run and the time that are meant."""
    notes: list[str] = []
    first, last = _unix(start), _unix(end)
    if isinstance(run, str):
        if last is None:
            last = server.now()
            if abs(last - time.time()) > _CLOCKS_APART:
                notes.append(
                    f"the clocks here and of {server.name} are {abs(last - time.time()):.0f} s apart; times are the "
                    "server's"
                )
        if first is None:
            first = last - _DAY
        if not first < last:
            raise ValueError("the end does not lie after the start")
        run = find_run(server, run, first, last, cluster=cluster, namespace=namespace)
    # A row's time is after the start, and so must the run's first scrape be.
    begin = max(first or 0.0, run.start - 0.001)
    finish = min(last or run.end, run.end)
    if not begin < finish:
        raise UnknownRunError(f"the run {run.name!r} was not scraped in that time")
    return _Told(server, run, begin, finish, (*notes, *_missing(run)))


def _missing(run: Run) -> Iterator[str]:
    """What the run should have and has not."""
    size, ranks = run.world_size, set(run.ranks)
    if size is not None and len(ranks) < size:
        absent = (str(rank) for rank in range(size) if str(rank) not in ranks)
        yield f"{len(ranks)} of {size} ranks reported; missing: {_listed(absent, size - len(ranks))}"
    claiming = {claim.rank for claim in run.claims}
    if without := [rank for rank in run.ranks if rank not in claiming]:
        yield f"no GPU is known of rank {_listed(without, len(without))}: its rows are missing in `gpu`"


def _listed(ranks: Iterable[str], number: int) -> str:
    more = f" and {number - _RANKS_LISTED} more" if number > _RANKS_LISTED else ""
    return ", ".join(itertools.islice(ranks, _RANKS_LISTED)) + more


def _unix(moment: Moment | None) -> float | None:
    if moment is None:
        return None
    # pandas takes its own moments without a zone for UTC.
    plain = moment.to_pydatetime(warn=False) if isinstance(moment, pd.Timestamp) else moment
    try:
        seconds = plain.timestamp() if isinstance(plain, dt.datetime) else float(plain)
    except (TypeError, ValueError, OverflowError):
        seconds = nan
    if not isfinite(seconds):
        raise ValueError(f"{moment!r} is no moment; it is a datetime or Unix time")
    return seconds
