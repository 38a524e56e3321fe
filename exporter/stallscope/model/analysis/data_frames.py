"""A run as pandas data frames: its steps, phases, GPUs and hosts, with the training step's number in every row.

    from stallscope.model.analysis import frames

    run = frames("resnet50", prometheus="http://localhost:9090")
    run.gpu.groupby("step")["busy_ratio"].mean()

A row is one scrape of one subject: a rank, a rank's phase, a GPU, a host. Its time is the time of the scrape. Its
values cover the interval since the previous scrape, whose length is `interval_seconds`, so that rows cover the time
without holes; after a gap the interval is as long as the gap. A missing value is NaN, never 0. A ratio may exceed 1 by
a few hundredths, because a value is slightly older than its scrape.

`step` is the number of steps that the rank had done, from the same scrape. Nothing is interpolated: a scrape shows a
rank's newest report, which is a few seconds old. A GPU has the step of the rank that claims it (the first of several),
and rows only while a rank claims it; a host has the step of its first rank.

With `step=60` a row covers a minute instead, computed by the server: values are means over the minute before it (of a
counter by PromQL's `rate`, over at least four scrapes), of peaks the greatest value, of `step` and similar columns the
last value. An incomplete last row is dropped. FRAMES.md in the repository lists every column.
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

from stallscope.model.analysis.columns import COLUMNS
from stallscope.model.analysis.ranges import MAX_SECONDS, Advance, Ranges, ignore_progress, natural_step
from stallscope.model.analysis.run_reader import RunReader
from stallscope.model.analysis.runs import Run, RunError, UnknownRunError, find_run
from stallscope.model.clients.address import default_url
from stallscope.model.clients.client_certificate import certificate_from_environment
from stallscope.model.clients.expressions import quoted
from stallscope.model.clients.prometheus import Prometheus

MAX_BYTES = 256 << 20
"""Approximate memory limit of one run's frames; above it, a longer step is chosen. Reading takes two to three times
as much."""
PIECE_BYTES = 64 << 20
"""Approximate memory limit of one piece's data frames."""
NAMES = tuple(COLUMNS)
"""The data frames of a run."""
_DAY = 86_400.0
_TIMEOUT = 60.0
_ANSWER_BYTES = 128 << 20
_MAX_QUERY_SAMPLES = 2_000_000
_SERIES_PER_SUBJECT = 6
"""Most series of one name for one subject: the throttle reasons of a GPU."""
_DEFAULT_INTERVAL = 15.0
_INTERVAL_SECONDS = 1200.0
"""Length of the time at the run's end from which the scrape interval is determined."""
_MAX_CLOCK_DIFFERENCE = 60.0
_RANKS_LISTED = 8
_ATTEMPTS = 10
"""About two minutes, so that a restart of the server does not discard hours of reading."""

Moment = dt.datetime | float
"""A datetime (in the local time zone if it has none), or Unix time."""


@dataclass(frozen=True)
class Frames:
    """A run's data frames.

    Each has a DatetimeIndex in UTC and the same columns for every run, with their units in `frame.attrs["units"]`.
    """

    run: Run
    start: float
    """Unix time before the first row."""
    end: float
    """Unix time of the last possible row."""
    resolution: float
    """Seconds between two rows of the same subject: the scrape interval or the step."""
    steps: pd.DataFrame
    """Steps by rank: their number, mean time, work, loss, memory, CPU time."""
    phases: pd.DataFrame
    """Time by rank and phase."""
    gpu: pd.DataFrame
    """GPUs while a rank claims them."""
    host: pd.DataFrame
    """Hosts while a rank runs on them."""
    values: pd.DataFrame
    """Further values that the training reports, by name."""
    gaps: int = 0
    """Number of times that a rank's next row came later than three usual intervals."""
    notes: tuple[str, ...] = ()
    """Notes for the reader on missing data and on choices made."""

    def items(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield name and data frame of each."""
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
    advance: Advance = ignore_progress,
) -> Frames:
    """Read a run into memory. The module's documentation describes the rows.

    Args:
        run: name of the run (CLUSTER/NAMESPACE/NAME if several have it), or a result of `find_run`.
        prometheus: the server or its address; by default STALLSCOPE_PROMETHEUS_URL or this machine's.
        start: begin of the time to read; by default a day before the end.
        end: end of the time to read; by default the server's current time.
        cluster: selects one of several runs of that name.
        namespace: selects one of several runs of that name.
        step: seconds between rows that the server computes; by default there is a row for each scrape.
        max_bytes: approximate memory limit of the frames. If the scrapes need more, the shortest step that fits is
            used, with a warning and a note. `pieces` reads the scrapes of a run of any length.
        advance: called with progress, in shares that sum to 1.

    Raises:
        RunError: the run is unknown, ambiguous or shorter than a step.
        PrometheusError: the server gave no valid response.
        ValueError: a time is invalid, or the end is not after the start.
    """
    with _connected(prometheus) as server:
        selection = _select(server, run, start, end, cluster, namespace)
        seconds = selection.end - selection.start
        reader, notes = selection.reader(step), selection.notes
        if step is None and (needed := reader.bytes(seconds)) > max_bytes:
            step = natural_step(seconds, int(seconds / reader.scrapes * max_bytes / needed))
            reader = selection.reader(step)
            note = (
                f"the scrapes take about {needed / 2**20:.0f} MiB, and the limit is {max_bytes / 2**20:.0f} MiB: a row "
                f"covers {step:g} s; `pieces` reads every scrape, `stallscope frames` writes them to files"
            )
            warnings.warn(note, stacklevel=2)
            notes = (*notes, note)
        begin = selection.begin(step)
        read = reader.read(begin, selection.end, advance)
        notes = (*notes, *server.take_notes())
        return Frames(selection.run, begin, selection.end, reader.resolution, **read, gaps=reader.gaps, notes=notes)


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
    advance: Advance = ignore_progress,
) -> Iterator[Frames]:
    """Read a run of any length piece by piece in the order of time; concatenated they equal the result of `frames`.

    Args:
        run: as in `frames`.
        prometheus: as in `frames`.
        start: as in `frames`.
        end: as in `frames`.
        cluster: as in `frames`.
        namespace: as in `frames`.
        step: as in `frames`.
        piece_bytes: approximate memory limit of the frames of one piece.
        advance: called with progress, in shares that sum to 1.

    Raises:
        RunError: the run is unknown, ambiguous or shorter than a step.
        PrometheusError: the server gave no valid response.
        ValueError: a time is invalid, or the end is not after the start.
    """
    with _connected(prometheus) as server:
        selection = _select(server, run, start, end, cluster, namespace)
        reader = selection.reader(step)
        first = selection.begin(step)
        whole = selection.end - first
        number = -(-reader.bytes(whole) // piece_bytes) or 1
        # Pieces of whole rows, so that the server's steps continue from piece to piece.
        length = max(1.0, whole / reader.resolution // number) * reader.resolution
        while first < selection.end:
            last = min(first + length, selection.end)

            def advanced(part: float, share: float = (last - first) / whole) -> None:
                advance(part * share)

            read = reader.read(first, last, advanced)
            notes = (*selection.notes, *server.take_notes())
            yield Frames(selection.run, first, last, reader.resolution, **read, gaps=reader.gaps, notes=notes)
            first = last


def scrape_interval(server: Prometheus, run: Run) -> float:
    """Return the seconds between two scrapes of a rank near the run's end; 15 if unknown.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    begin = max(run.start - 1, run.end - _INTERVAL_SECONDS)
    # One rank is enough, if it was there until the end.
    for matchers in (f"{run.matchers}, rank={quoted(run.places[0].rank)}", run.matchers):
        found = server.samples(f"stallscope_training_rank_info{{{matchers}}}", begin, run.end)
        times = max((each.times for each in found), key=len, default=())
        if len(times) > 1:
            return round(statistics.median(later - earlier for earlier, later in itertools.pairwise(times)), 3)
    return _DEFAULT_INTERVAL


@dataclass(frozen=True)
class _Selection:
    """A run and the time to read."""

    server: Prometheus
    run: Run
    start: float
    end: float
    notes: tuple[str, ...]

    def begin(self, step: float | None) -> float:
        """Return the Unix time before the first row. With a step, rows begin at the first scrape."""
        return self.start if step is None else max(self.start, self.run.start)

    def reader(self, step: float | None) -> RunReader:
        """Create a reader."""
        if step is not None and not (isfinite(step) and step >= 1):
            raise ValueError(f"step: expected at least 1 second, got {step}")
        if step is not None and step > self.end - self.start:
            raise RunError(f"the run's {self.end - self.start:.0f} s have no row of {step:g} s; choose a shorter step")
        scrapes = scrape_interval(self.server, self.run)
        subjects = max(len(self.run.places), len(self.run.claims), 1)
        longest = _MAX_QUERY_SAMPLES * scrapes / (subjects * _SERIES_PER_SUBJECT)
        longest = min(MAX_SECONDS, max(10 * scrapes, longest))
        ranges = Ranges(self.server, attempts=_ATTEMPTS, max_seconds=longest)
        return RunReader(ranges, self.run, scrapes, step)


@contextmanager
def _connected(prometheus: Prometheus | str | None) -> Iterator[Prometheus]:
    """Yield the server; a client created here is closed here."""
    if isinstance(prometheus, Prometheus):
        yield prometheus
        return
    url, certificate = prometheus or default_url(), certificate_from_environment()
    with closing(Prometheus(url, timeout=_TIMEOUT, max_bytes=_ANSWER_BYTES, certificate=certificate)) as server:
        yield server


def _select(
    server: Prometheus,
    run: str | Run,
    start: Moment | None,
    end: Moment | None,
    cluster: str | None,
    namespace: str | None,
) -> _Selection:
    """Find the run and the time to read."""
    notes: list[str] = []
    first, last = _unix(start), _unix(end)
    if isinstance(run, str):
        if last is None:
            last = server.now()
            if abs(last - time.time()) > _MAX_CLOCK_DIFFERENCE:
                notes.append(
                    f"the clocks of this machine and of {server.name} differ by {abs(last - time.time()):.0f} s; times "
                    "are the server's"
                )
        if first is None:
            first = last - _DAY
        if not first < last:
            raise ValueError("the end is not after the start")
        run = find_run(server, run, first, last, cluster=cluster, namespace=namespace)
    # Rows are after the start time, so it must be before the run's first scrape.
    begin = max(first or 0.0, run.start - 0.001)
    finish = min(last or run.end, run.end)
    if not begin < finish:
        raise UnknownRunError(f"the run {run.name!r} was not scraped in that time")
    return _Selection(server, run, begin, finish, (*notes, *_missing(run)))


def _missing(run: Run) -> Iterator[str]:
    """Describe missing ranks and GPUs."""
    size, ranks = run.world_size, set(run.ranks)
    if size is not None and len(ranks) < size:
        absent = (str(rank) for rank in range(size) if str(rank) not in ranks)
        yield f"{len(ranks)} of {size} ranks reported; missing: {_listed(absent, size - len(ranks))}"
    claiming = {claim.rank for claim in run.claims}
    if without := [rank for rank in run.ranks if rank not in claiming]:
        yield f"the GPU of rank {_listed(without, len(without))} is unknown: its rows are missing in `gpu`"


def _listed(ranks: Iterable[str], number: int) -> str:
    more = f" and {number - _RANKS_LISTED} more" if number > _RANKS_LISTED else ""
    return ", ".join(itertools.islice(ranks, _RANKS_LISTED)) + more


def _unix(moment: Moment | None) -> float | None:
    if moment is None:
        return None
    # pandas takes a timestamp without a time zone for UTC.
    plain = moment.to_pydatetime(warn=False) if isinstance(moment, pd.Timestamp) else moment
    try:
        seconds = plain.timestamp() if isinstance(plain, dt.datetime) else float(plain)
    except (TypeError, ValueError, OverflowError):
        seconds = nan
    if not isfinite(seconds):
        raise ValueError(f"{moment!r} is not a time; expected a datetime or Unix time")
    return seconds
