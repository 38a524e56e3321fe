"""Read a run's data frames window by window. `data_frames` describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stallscope.model.analysis.columns import (
    COLUMNS,
    GPU_COLUMNS,
    HOST_COLUMNS,
    IDENTITY,
    PHASE_COLUMNS,
    STEP_COLUMNS,
    Column,
    Kind,
    units,
)
from stallscope.model.analysis.ranges import Advance, Ranges, SplittableQuery, joined
from stallscope.model.analysis.runs import Run
from stallscope.model.analysis.tables import Block, Floats, Increases, Table, Track, at, track
from stallscope.model.catalogue.metrics import ACTIVITIES, RUN_STATES
from stallscope.model.clients.expressions import quoted

CODES: Mapping[str, tuple[str, ...]] = {"state": RUN_STATES, "activity": ACTIVITIES}
"""Possible values of the columns that hold label values."""
_READ_AS: Mapping[Kind, Kind] = {
    Kind.GAUGE: Kind.GAUGE,
    Kind.LAST: Kind.LAST,
    Kind.LABEL: Kind.LAST,
    Kind.PEAK: Kind.PEAK,
}
"""How the series of a column are read, if not as a rate."""
_CLAIMS = "stallscope_training_rank_gpu_info"
_PHASES = 9
"""Estimated phases per rank, for the estimate of memory."""
_LOOKBACK = 300.0
"""Seconds before the start in which to find the scrape at which the first interval begins."""
_SCRAPES_OF_A_RATE = 4
_GAP_ROWS = 3

_Key = tuple[str, ...]
_Blocks = Mapping[_Key, Block]
_Claims = Mapping[_Key, Sequence[tuple[_Key, Floats]]]
_Subject = Callable[[Mapping[str, str]], "_Key | None"]
"""Returns the subject of a series from its labels (instance, job and more); None if it does not belong to the run."""


class _SeriesColumns(NamedTuple):
    """A series name that is read once, and the columns computed from it."""

    series: str
    kind: Kind
    """How it is read: GAUGE, LAST, PEAK or RATE."""
    columns: tuple[Column, ...]


class _Window(NamedTuple):
    """A time range to read."""

    start: float
    """Unix time before the first row."""
    end: float
    advance: Advance
    """Called with the progress of each query."""


class _Rows(NamedTuple):
    """Rows of one subject and one rank."""

    rank: int
    identity: _Key
    """The other identifying columns."""
    times: Floats
    columns: dict[str, NDArray[Any]]

    def where(self, chosen: NDArray[np.bool_]) -> _Rows:
        """Return the selected rows."""
        if chosen.all():
            return self
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return self._replace(times=self.times[chosen], columns=columns)


class RunReader:
    """Reads one run. Each window must begin where the previous one ended."""

    def __init__(self, reader: Ranges, run: Run, scrapes: float, step: float | None) -> None:
        """Prepare; nothing is requested yet.

        Args:
            reader: performs the queries.
            run: the run to read.
            scrapes: seconds between two scrapes.
            step: seconds between rows that the server computes; None for a row per scrape.
        """
        self.scrapes = scrapes
        self.gaps = 0
        """In the last window: number of times that a rank's next row came later than three usual intervals."""
        self._reader = reader
        self._run = run
        self._step = step
        self._increases = Increases()
        self._newest: dict[tuple[str, _Key], float] = {}
        """Time of the newest row of each subject."""
        self._begun = False

    @property
    def resolution(self) -> float:
        """Seconds between two rows of the same subject."""
        return self.scrapes if self._step is None else self._step

    def bytes(self, seconds: float) -> float:
        """Return the approximate memory of all frames for `seconds` seconds."""
        run = self._run
        cells = len(run.places) * (len(STEP_COLUMNS) + _PHASES * (len(PHASE_COLUMNS) + 3))
        cells += len(run.instances) * len(HOST_COLUMNS) + len(run.claims) * len(GPU_COLUMNS)
        return 8.0 * cells * seconds / self.resolution

    def read(self, start: float, end: float, advance: Advance) -> dict[str, pd.DataFrame]:
        """Return the rows after the start until the end.

        Args:
            start: Unix time.
            end: Unix time.
            advance: called with progress, in shares that sum to 1.

        Raises:
            PrometheusError: the server gave no valid response.
        """
        queries = 1 + sum(len(_series_columns(columns)) for columns in COLUMNS.values())
        window = _Window(start, end, lambda share: advance(share / queries))
        self.gaps = 0
        places = frozenset((place.instance, place.job, place.rank) for place in self._run.places)
        nodes = frozenset(place[:2] for place in places)

        def of_rank(*further: str) -> _Subject:
            return lambda labels: key if (key := _key(labels, "rank", *further))[:3] in places else None

        def of_node(*further: str) -> _Subject:
            return lambda labels: key if (key := _key(labels, *further))[:2] in nodes else None

        of_run = f"run={quoted(self._run.name)}"
        blocks = self._blocks("steps", of_run, of_rank(), window)
        steps = {key: Block(block.times, {"step": _step(block)}) for key, block in blocks.items()}
        frames = {"steps": _frame("steps", _of_ranks(blocks, steps))}
        # One frame after the other, to limit memory.
        blocks = self._blocks("phases", of_run, of_rank("phase"), window)
        frames["phases"] = _frame("phases", _of_ranks(blocks, steps))
        claims = self._claims(of_run, of_rank("gpu", "uuid"), window)
        blocks = self._blocks("gpu", "", of_node("gpu", "uuid", "mig"), window)
        frames["gpu"] = _frame("gpu", _of_gpus(blocks, claims, steps))
        blocks = self._blocks("host", "", of_node(), window)
        frames["host"] = _frame("host", _of_hosts(blocks, steps))
        blocks = self._blocks("values", of_run, of_rank("name"), window)
        frames["values"] = _frame("values", _of_ranks(blocks, steps))
        self._begun = True
        return frames

    def _blocks(self, name: str, matcher: str, subject: _Subject, window: _Window) -> dict[_Key, Block]:
        """Return the values of all subjects in a window."""
        table = Table()
        for each in _series_columns(COLUMNS[name]):
            for values in self._tracks(each, matcher, window):
                whose = subject(values.labels)
                if whose is not None:
                    _put(table, whose, each, values)
        means = [column for column in COLUMNS[name] if column.kind is Kind.MEAN]
        return {
            whose: self._with_intervals(name, whose, _with_means(block, means), window.start)
            for whose, block in table.take()
        }

    def _with_intervals(self, name: str, whose: _Key, block: Block, start: float) -> Block:
        """Add the lengths of intervals, and drop values before the window."""
        newest = self._newest.get((name, whose), np.nan)
        apart = np.diff(block.times, prepend=newest)
        intervals = apart if self._step is None else np.full(len(block.times), self._step)
        self._newest[name, whose] = float(block.times[-1])
        first = int(np.searchsorted(block.times, start, side="right"))
        if name == "steps":
            self.gaps += int(np.sum(apart[first:] > _GAP_ROWS * self.resolution))
        columns = {**block.columns, "interval_seconds": intervals}
        return Block(block.times[first:], {column: values[first:] for column, values in columns.items()})

    def _claims(self, matcher: str, subject: _Subject, window: _Window) -> _Claims:
        """Return the claims of GPUs (rank, index, UUID, times) by instance and job, in the order of ranks."""
        found: dict[_Key, list[tuple[_Key, Floats]]] = {}
        for each in self._tracks(_SeriesColumns(_CLAIMS, Kind.LAST, ()), matcher, window):
            whose = subject(each.labels)
            if whose is not None:
                found.setdefault(whose[:2], []).append((whose[2:], each.times))
        return {node: sorted(those, key=lambda claim: (int(claim[0][0]), claim[0])) for node, those in found.items()}

    def _tracks(self, wanted: _SeriesColumns, matcher: str, window: _Window) -> Iterator[Track]:
        """Read the series of one name in a window."""
        matchers = ", ".join(filter(None, (f"cluster={quoted(self._run.cluster)}", matcher)))

        def query(expression: Callable[[str], str]) -> SplittableQuery:
            return SplittableQuery(
                lambda part: expression(f"{wanted.series}{{{matchers}, {part}}}"), "instance", self._run.instances
            )

        if self._step is None:
            first = window.start if self._begun else window.start - _LOOKBACK
            scraped = self._reader.scraped(query(str), first, window.end, window.advance)
            for series in joined(scraped):
                yield self._increases.of(wanted.series, series) if wanted.kind is Kind.RATE else track(series)
            return
        by_step = query(_expression(wanted.kind, self._step, self.scrapes))
        first = window.start + self._step
        for series in joined(self._reader.stepped(by_step, first, window.end, self._step, window.advance)):
            values = track(series)
            if wanted.kind is Kind.RATE:  # convert rates to increases, as between scrapes
                values = values._replace(values=values.values * self._step, seconds=self._step)
            yield values


def _expression(kind: Kind, step: float, scrapes: float) -> Callable[[str], str]:
    """Return a function that makes PromQL for the value of a step from a selector."""
    if kind is Kind.RATE:
        window = max(step, _SCRAPES_OF_A_RATE * scrapes)
        return lambda selector: f"rate({selector}[{window * 1000:.0f}ms])"
    function = {Kind.LAST: "last", Kind.PEAK: "max"}.get(kind, "avg")
    return lambda selector: f"{function}_over_time({selector}[{step * 1000:.0f}ms])"


def _series_columns(columns: Iterable[Column]) -> list[_SeriesColumns]:
    """Return each series that columns are computed from, once."""
    found: dict[tuple[str, Kind], list[Column]] = {}
    for column in columns:
        kind = _READ_AS.get(column.kind, Kind.RATE)
        for series in filter(None, (column.series, column.over)):
            found.setdefault((series, kind), []).append(column)
    return [_SeriesColumns(series, kind, tuple(those)) for (series, kind), those in found.items()]


def _key(labels: Mapping[str, str], *names: str) -> _Key:
    """Return instance, job and further labels."""
    return tuple(labels.get(name, "") for name in ("instance", "job", *names))


def _put(table: Table, whose: _Key, wanted: _SeriesColumns, values: Track) -> None:
    """Add the values of one series to the columns computed from it."""
    for column in wanted.columns:
        if column.kind is Kind.LABEL:
            word, words = values.labels.get(column.label, ""), CODES[column.name]
            if word in words:
                now = values.values == 1
                code = np.full(int(now.sum()), words.index(word), np.int8)
                table.put(whose, column.name, values.times[now], code)
        elif column.kind is Kind.MEAN:
            table.put(whose, _part(column, wanted.series), values.times, values.values)
        elif not column.label or values.labels.get(column.label) == column.value:
            numbers = values.values / values.seconds if column.kind is Kind.RATE else values.values
            table.put(whose, column.name, values.times, numbers, column.combined)


def _part(column: Column, series: str) -> str:
    """Return the temporary column name of a mean's sum or count."""
    return f"{column.name} {series}"


def _with_means(block: Block, means: Sequence[Column]) -> Block:
    for column in means:
        total = block.columns.pop(_part(column, column.series), None)
        number = block.columns.pop(_part(column, column.over), None)
        if total is not None and number is not None:
            divisor = np.where(number > 0, number, np.nan)
            block.columns[column.name] = total / divisor
    return block


def _step(block: Block) -> NDArray[Any]:
    """Return the step number at each time of a rank."""
    return block.columns.get("step", np.full(len(block.times), np.nan))


def _taken(blocks: dict[_Key, Block]) -> Iterator[tuple[_Key, Block]]:
    """Yield subjects and release them: they take most of the memory."""
    while blocks:
        yield blocks.popitem()


def _of_ranks(blocks: dict[_Key, Block], steps: _Blocks) -> Iterator[_Rows]:
    """Yield rows of ranks, or of phases or values of ranks."""
    for (instance, job, rank, *further), block in _taken(blocks):
        number = at(steps.get((instance, job, rank)), "step", block.times)
        yield _Rows(int(rank), (instance, *further), block.times, {**block.columns, "step": number})


def _of_gpus(gpus: dict[_Key, Block], claims: _Claims, steps: _Blocks) -> Iterator[_Rows]:
    """Yield rows of GPUs, each with the first rank that claims it at that time."""
    for (instance, job, gpu, uuid, mig), block in _taken(gpus):
        free = np.ones(len(block.times), dtype=bool)
        for (rank, index, name), claimed in claims.get((instance, job), ()):
            if name == uuid if name else index == gpu and not mig:
                its = free & np.isin(block.times, claimed)
                free &= ~its
                number = at(steps.get((instance, job, rank)), "step", block.times)
                rows = _Rows(int(rank), (instance, gpu, uuid, mig), block.times, {**block.columns, "step": number})
                yield rows.where(its)


def _of_hosts(hosts: dict[_Key, Block], steps: _Blocks) -> Iterator[_Rows]:
    """Yield rows of hosts, each with the first rank on it at that time."""
    for (instance, job), block in _taken(hosts):
        free = np.ones(len(block.times), dtype=bool)
        for key in sorted((key for key in steps if key[:2] == (instance, job)), key=lambda key: int(key[2])):
            its = free & np.isin(block.times, steps[key].times)
            free &= ~its
            number = at(steps[key], "step", block.times)
            yield _Rows(int(key[2]), (instance,), block.times, {**block.columns, "step": number}).where(its)


def _frame(name: str, rows: Iterable[_Rows]) -> pd.DataFrame:
    """Combine rows in the order of time, and at one time in the order of ranks."""
    parts = sorted((each for each in rows if len(each.times)), key=lambda each: (each.rank, each.identity))
    lengths = np.array([len(each.times) for each in parts], dtype=np.int64)
    times = np.concatenate([np.empty(0), *(each.times for each in parts)])
    order = np.argsort(times, kind="stable")
    columns: dict[str, Any] = {"rank": np.repeat(np.array([each.rank for each in parts], np.int32), lengths)[order]}
    for place, label in enumerate(IDENTITY[name][1:]):
        words = sorted({each.identity[place] for each in parts})
        codes = np.array([words.index(each.identity[place]) for each in parts], np.int64)
        columns[label] = pd.Categorical.from_codes(np.repeat(codes, lengths)[order], pd.Index(words, dtype=str))
    own = [column.name for column in COLUMNS[name] if column.name != "step"]
    for column in ("step", "interval_seconds", *own):
        absent: float = -1 if column in CODES else np.nan
        pieces = [each.columns.pop(column, np.broadcast_to(absent, len(each.times))) for each in parts]
        values = np.concatenate([np.empty(0, np.int8 if column in CODES else np.float64), *pieces])[order]
        columns[column] = (
            pd.Categorical.from_codes(values.astype(np.int8), pd.Index(CODES[column])) if column in CODES else values
        )
    moments = np.round(times[order] * 1000).astype(np.int64).view("datetime64[ms]")
    index = pd.DatetimeIndex(moments, name="time").tz_localize("UTC")
    frame: pd.DataFrame = pd.DataFrame(columns, index=index, copy=False)
    frame.attrs["units"] = {**units(COLUMNS[name]), "interval_seconds": "seconds"}
    return frame
