"""Runs every source on its own clock and publishes a page of what they last said.

The scrape path never comes here: it takes the newest `Page`. Sources are read by their readers' threads; one more
thread, the publisher, asks each for what to expose (memory only), adds what the exporter knows of itself, and renders.
"""

from __future__ import annotations

import logging
import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stallscope.catalogue.metrics import family
from stallscope.common.version import __version__
from stallscope.sampling.clock import Clock, SystemClock
from stallscope.sampling.exposition import Renderer, label_text
from stallscope.sampling.page import Demand, Page
from stallscope.sampling.reader import Reader, ReaderState, SourceState
from stallscope.sampling.reading import NonsenseReading, Sample, checked

_logger = logging.getLogger(__name__)

BUILD_INFO = family("stallscope_build_info")
SOURCE_UP = family("stallscope_exporter_source_up")
READ_SECONDS = family("stallscope_exporter_source_read_seconds")
LAST_SUCCESS = family("stallscope_exporter_source_last_success_timestamp_seconds")
FAILURES = family("stallscope_exporter_source_failures_total")
READINGS = family("stallscope_exporter_source_readings_total")
READING_SECONDS = family("stallscope_exporter_source_reading_seconds_total")
CPU_SECONDS = family("stallscope_exporter_source_cpu_seconds_total")
STUCK_THREADS = family("stallscope_exporter_source_stuck_threads")
SERIES = family("stallscope_exporter_series")
SERIES_DROPPED = family("stallscope_exporter_series_dropped_total")

DEFAULT_MAX_SERIES = 50_000
_ROUND_SHARE = 0.25
"""Part of the interval that the publisher waits for the readers of the same round."""
_ROUND_WAIT = 0.25
"""The same in seconds, at most."""
_PAGE_SECONDS = 1.0
"""Longest time between two pages: at long intervals too, late readings and training reports show soon."""
_LARGE_PAGE = 0.01
"""Processor time in seconds from which a page counts as large, as where dozens of ranks report: such come less often,
..."""
_LARGE_PAGE_SHARE = 0.005
"""... so that they take no more of a processor than this ..."""
_LARGE_PAGE_SECONDS = 5.0
"""... but not less often than this."""
_MAX_LEFT_OF_A_PART = 8
"""Threads of one part that may hang after the part was dropped; with so many it gets no new one ..."""
_MAX_LEFT = 64
"""... and the same for all parts of a source together, since parts may come back under ever new keys."""
_DROPPED_NAME = SERIES_DROPPED.name + label_text(SERIES_DROPPED, ("max_series",))


def until_next_page(elapsed: float, period: float, spent: float) -> float:
    """Seconds that the publisher rests.

    Args:
        elapsed: seconds since the first tick.
        period: seconds between two ticks, at each of which a page may be made.
        spent: processor time of the last page in seconds.
    """
    rest = min(_LARGE_PAGE_SECONDS, spent / _LARGE_PAGE_SHARE) if spent > _LARGE_PAGE else period
    ticks = max(1, math.ceil(rest / period))
    return period * ticks - elapsed % period


class SampledSource(Protocol):
    """What the sampler needs of a source; `stallscope.collectors.base.Source` is one."""

    @property
    def name(self) -> str:
        """The word in `stallscope_exporter_source_up{source}`."""

    @property
    def harmless(self) -> tuple[type[Exception], ...]:
        """Errors of a part that are no failure of the source."""

    @property
    def longest_interval(self) -> float | None:
        """Seconds after which it must be read again, whatever the interval is; None for no such limit."""

    def read(self) -> Iterable[Sample]:
        """Read once; may block and raise."""

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        """Readers that need a thread of their own."""

    def collect(self, state: SourceState) -> Iterable[Sample]:
        """What to expose; memory only."""

    def release(self, seconds: float) -> None:
        """Let go of device files for so long; returns at once."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True)
class SourceStatus:
    """One source as the status page and the self-metrics see it."""

    name: str
    up: bool | None
    """None where this machine has no such part, or nothing is known yet."""
    error: str
    """What is wrong, or the empty string."""
    read_seconds: float | None
    last_success: float | None
    """Unix time."""
    failures: int
    readings: int = 0
    """Readings that came to an end."""
    reading_seconds: float = 0.0
    """How long they took, all threads together."""
    cpu_seconds: float = 0.0
    """Their processor time."""
    stuck_threads: int = 0
    """Threads whose reading has not come back in time, those of dropped parts included."""


class Snapshot(NamedTuple):
    """The samples of one page of metrics."""

    at: float
    """Unix time."""
    samples: tuple[Sample, ...]


class Hang(NamedTuple):
    """A reading in progress."""

    reader: str
    """The source, with the part where it is one's."""
    seconds: float
    """How long it has taken so far."""


class _Totals(NamedTuple):
    """What the readings of several readers came to."""

    readings: int = 0
    failures: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def plus(self, state: ReaderState) -> _Totals:
        return _Totals(
            self.readings + state.attempts,
            self.failures + state.failures,
            self.seconds + state.reading_seconds,
            self.cpu_seconds + state.cpu_seconds,
        )


@dataclass
class _Running:
    """A source with its readers. The collections are replaced, never edited."""

    source: SampledSource
    main: Reader
    parts: dict[str, Reader] = field(default_factory=dict)
    left: tuple[tuple[str, Reader], ...] = ()
    """Readers of dropped parts whose threads have not ended, with the part's key; one that hangs may never end."""
    ended: _Totals = field(default_factory=_Totals)
    """What readers came to that are in none of the above any more."""
    refused: frozenset[str] = frozenset()
    """Parts that get no new reader, since too many of their threads hang."""
    parts_problem: str = ""
    """Why the source can't tell its parts."""
    hangs: int = 0
    hung: frozenset[str] = frozenset()

    def readers(self) -> list[Reader]:
        return [self.main, *self.parts.values(), *(reader for _key, reader in self.left)]


class Sampler:
    """See the module. `start` makes threads; `run_round` does one round in the calling thread, for scripted time."""

    def __init__(
        self,
        *,
        interval: float = 1.0,
        stale_after_intervals: float = 3.0,
        clock: Clock | None = None,
        max_series: int = DEFAULT_MAX_SERIES,
        on_page: Callable[[], None] | None = None,
    ) -> None:
        """Prepare.

        Args:
            interval: seconds between two readings of a source, 0.1 to 60.
            stale_after_intervals: age, in intervals, from which a reading is no longer shown.
            clock: the machine's own by default.
            max_series: series over this number are left out and counted.
            on_page: called by the publisher's thread after every page; must not wait for anything.
        """
        self.interval = interval
        self.stale_after_intervals = stale_after_intervals
        self.max_series = max_series
        self._on_page = on_page
        self._clock = clock or SystemClock()
        self._running: dict[str, _Running] = {}
        self._collectors: dict[str, Callable[[], Iterable[Sample]]] = {}
        self._collector_failures: dict[str, int] = {}
        self._collector_errors: dict[str, str] = {}
        self._renderer = Renderer()
        self._demand = Demand(self._clock.monotonic)
        self._dropped = 0
        self._origin = self._clock.monotonic()
        self._round_done = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()
        self._statuses: tuple[SourceStatus, ...] = ()
        self._snapshot = Snapshot(self._clock.time(), ())
        self._first_round = False
        self._page = Page(lambda openmetrics: self._renderer.render({}, openmetrics=openmetrics))
        self.publish()

    @property
    def stale_after(self) -> float:
        """Age in seconds from which a reading is no longer shown."""
        return self.stale_after_intervals * self.interval

    @property
    def ready(self) -> bool:
        """Whether a first round of readings is on the page."""
        return self._first_round

    @property
    def statuses(self) -> tuple[SourceStatus, ...]:
        """Every source as of the newest page."""
        return self._statuses

    @property
    def snapshot(self) -> Snapshot:
        """The samples of the newest page."""
        return self._snapshot

    @property
    def longest_hang(self) -> Hang | None:
        """The reading that has been in progress for longest, dropped parts included; None while nothing is read."""
        now = self._clock.monotonic()
        hangs = [
            Hang(reader.name, now - began)
            for running in self._running.values()
            for reader in running.readers()
            if (began := reader.state.busy_since) is not None
        ]
        return max(hangs, key=lambda hang: hang.seconds, default=None)

    def add(self, source: SampledSource) -> None:
        """Enter a source; read from now on if the sampler runs.

        Raises:
            ValueError: a source of that name is there already.
        """
        with self._changing:
            if source.name in self._running:
                raise ValueError(f"the source {source.name} is running already")
            running = _Running(source, Reader(source.name, source.read, self._clock, self._round_done.set))
            self._running = {**self._running, source.name: running}
            if self._thread is not None:
                self._start(running.source, running.main)

    def remove(self, name: str) -> None:
        """Stop a source and take its series off the next page."""
        with self._changing:
            running = self._running[name]
            self._running = {key: value for key, value in self._running.items() if key != name}
        _retire(running)

    def release(self, seconds: float) -> None:
        """Let every source let go of device files for so long, at its next reading; 0 takes them up again."""
        for name, running in self._running.items():
            try:
                running.source.release(seconds)
            except Exception:  # noqa: PERF203 - one that fails must not keep the others from it
                _logger.exception("source %s could not be told to let go of device files", name)

    def add_collector(self, name: str, collect: Callable[[], Iterable[Sample]]) -> None:
        """Enter something that holds its samples in memory and is asked at every page."""
        self._collectors = {**self._collectors, name: collect}

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes:
        """The newest page. Memory only: no lock, no source, no driver."""
        form = (openmetrics, gzip)
        self._demand.note(form)
        return self._page.bytes(form)

    def start(self) -> None:
        """Start reading and publishing."""
        with self._changing:
            self._origin = self._clock.monotonic()
            for running in self._running.values():
                self._start(running.source, running.main)
            self._thread = threading.Thread(target=self._publish_for_ever, name="publish", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 0.5) -> None:
        """Stop; readers that hang in a reading are left behind, since nothing can end them."""
        self._stopping.set()
        for running in self._running.values():
            for reader in running.readers():
                reader.stop()
        self._round_done.set()
        if self._thread is not None:
            self._thread.join(timeout)
        deadline = self._clock.monotonic() + timeout
        for running in self._running.values():
            ended = [reader.join(max(0.0, deadline - self._clock.monotonic())) for reader in running.readers()]
            if all(ended):
                running.source.close()

    def run_round(self) -> None:
        """Read every source once and publish, all in the calling thread; for tests and scripted clocks."""
        for running in self._running.values():
            running.main.read_once()
            self._reconcile(running, start=False)
            for reader in running.parts.values():
                reader.read_once()
        self._first_round = True
        self.publish()

    def publish(self) -> None:
        """Make a new page of what is known now."""
        now = self._clock.monotonic()
        samples: list[Sample] = []
        statuses: list[SourceStatus] = []
        for running in self._running.values():
            state = SourceState(
                now=now,
                stale_after=self.stale_after,
                main=running.main.state,
                parts={key: reader.state for key, reader in running.parts.items()},
            )
            samples += self._isolated(running.source.name, lambda r=running, s=state: r.source.collect(s))  # type: ignore[misc]
            statuses.append(self._status(running, state))
        self._statuses = tuple(statuses)
        at = self._clock.time()
        # What comes from outside comes last: its number is the senders', and must push nothing else off the page.
        samples += self._own(statuses)
        for name, collect in self._collectors.items():
            samples += self._isolated(name, collect)
        self._snapshot = Snapshot(at, tuple(samples))
        groups, series, dropped = self._renderer.lines(samples, self.max_series)
        self._dropped += dropped
        # The count includes the two series that tell it.
        groups[SERIES] = {SERIES.name: str(series + 2)}
        groups.setdefault(SERIES_DROPPED, {})[_DROPPED_NAME] = str(self._dropped)
        page = Page(lambda openmetrics: self._renderer.render(groups, openmetrics=openmetrics))
        for form in self._demand.forms():
            page.bytes(form)
        self._page = page

    def _publish_for_ever(self) -> None:
        period = self.interval / math.ceil(self.interval / _PAGE_SECONDS)
        while not self._stopping.is_set():
            round_began = self._round_began()
            self._await_round(round_began)
            processor_began = time.thread_time()
            try:
                for running in self._running.values():
                    self._reconcile(running, start=True)
                if not self._first_round:
                    # Parts exist only from here on; the first page is worth the wait for them.
                    self._await_round(round_began)
                    self._first_round = True
                self.publish()
            except Exception:
                _logger.exception("the page could not be renewed; the last one stays")
            try:
                if self._on_page is not None:
                    self._on_page()
            except Exception:
                _logger.exception("what follows a page failed; the next page comes all the same")
            elapsed = self._clock.monotonic() - self._origin
            if self._stopping.wait(until_next_page(elapsed, period, time.thread_time() - processor_began)):
                return

    def _round_began(self) -> float:
        """When the readers' round began: their tick, since some of them may be awake before the publisher is."""
        return self._origin + (self._clock.monotonic() - self._origin) // self.interval * self.interval

    def _start(self, source: SampledSource, reader: Reader) -> None:
        reader.start(self._origin, min(self.interval, source.longest_interval or self.interval))

    def _await_round(self, began: float) -> None:
        """Wait until every reader that is not stuck has read since `began`, but only a part of the interval."""
        deadline = began + min(_ROUND_SHARE * self.interval, _ROUND_WAIT)
        while not self._stopping.is_set():
            self._round_done.clear()
            waiting = any(
                not _read_since(reader.state, began)
                for running in self._running.values()
                for reader in (running.main, *running.parts.values())
            )
            remaining = deadline - self._clock.monotonic()
            if not waiting or remaining <= 0:
                return
            self._round_done.wait(remaining)

    def _reconcile(self, running: _Running, *, start: bool) -> None:
        """Give each part that the source wants a reader, and retire readers of parts that are gone."""
        try:
            wanted = dict(running.source.parts())
        except Exception as problem:  # noqa: BLE001 - a broken source must not stop the publisher
            self._note_parts(running, f"{type(problem).__name__}: {problem}")
            return
        self._note_parts(running, "")
        if not running.left and wanted.keys() == running.parts.keys():
            return
        with self._changing:
            if self._running.get(running.source.name) is not running:
                return  # removed meanwhile: nobody would ever stop its new readers
            kept = {key: reader for key, reader in running.parts.items() if key in wanted}
            gone = [(key, reader) for key, reader in running.parts.items() if key not in wanted]
            for _key, reader in gone:
                reader.stop()
            left = []
            for key, reader in (*running.left, *gone):
                if reader.running:
                    left.append((key, reader))
                else:
                    running.ended = running.ended.plus(reader.state)
            running.left = tuple(left)
            refused = frozenset(key for key in wanted if key not in kept and _too_many(running.left, key))
            for key, read in wanted.items():
                if key not in kept and key not in refused:
                    reader = Reader(
                        f"{running.source.name} {key}",
                        read,
                        self._clock,
                        self._round_done.set,
                        running.source.harmless,
                    )
                    kept[key] = reader
                    if start:
                        self._start(running.source, reader)
            running.parts = kept
            for key in sorted(refused - running.refused):
                _logger.error(
                    "source %s: %s is not read any more: %d threads of the source hang in readings of dropped parts; "
                    "only the end of this process ends them",
                    running.source.name,
                    key,
                    len(running.left),
                )
            running.refused = refused

    def _note_parts(self, running: _Running, problem: str) -> None:
        name = running.source.name
        if problem:
            self._collector_failures[name] = self._collector_failures.get(name, 0) + 1
        if problem and problem != running.parts_problem:
            _logger.warning("source %s can't tell its parts: %s", name, problem)
        running.parts_problem = problem

    def _isolated(self, name: str, collect: Callable[[], Iterable[Sample]]) -> tuple[Sample, ...]:
        try:
            samples = checked(collect())
        except Exception as problem:  # noqa: BLE001 - one broken part must not cost the others the page
            self._note_collector(name, problem)
            return ()
        self._collector_errors.pop(name, None)
        return samples

    def _note_collector(self, name: str, problem: Exception) -> None:
        text = f"{type(problem).__name__}: {problem}"
        self._collector_failures[name] = self._collector_failures.get(name, 0) + 1
        if self._collector_errors.get(name) != text:
            self._collector_errors[name] = text
            kind = "handed over nonsense" if isinstance(problem, NonsenseReading) else "could not be collected"
            _logger.warning("%s %s: %s", name, kind, text)

    def _status(self, running: _Running, state: SourceState) -> SourceStatus:
        name = running.source.name
        states = {name: state.main, **{f"{name} {key}": part for key, part in state.parts.items()}}
        hung = frozenset(key for key, each in states.items() if each.hung(state.now, state.stale_after))
        for key in sorted(hung - running.hung):
            running.hangs += 1
            _logger.warning("source %s has not come back from a reading for %.1f s", key, state.stale_after)
        running.hung = hung
        errors = [
            each.error
            for each in states.values()
            if each.error is not None
            and each.present
            and (each is state.main or not isinstance(each.error, running.source.harmless))
        ]
        problem = self._collector_errors.get(name, "") or running.parts_problem
        if running.refused:
            problem = f"not read any more, since too many threads hang: {', '.join(sorted(running.refused))}"
        if hung:
            problem = f"no answer for {state.stale_after:g} s: {', '.join(sorted(hung))}"
        elif errors:
            problem = f"{type(errors[0]).__name__}: {errors[0]}"
        up: bool | None = not problem and (state.main.fresh(state.now, state.stale_after) or not state.main.present)
        if not problem and (not state.main.present or state.main.attempts == 0):
            up = None
        attempts = [each for each in states.values() if each.seconds is not None]
        read_times = [each.read_time for each in states.values() if each.read_time is not None]
        left = [reader.state for _key, reader in running.left]
        totals = running.ended
        for each in (*states.values(), *left):
            totals = totals.plus(each)
        return SourceStatus(
            name=name,
            up=up,
            error=problem if problem or state.main.present else str(state.main.error),
            read_seconds=max((each.seconds or 0.0 for each in attempts), default=None),
            last_success=max(read_times, default=None),
            failures=totals.failures + running.hangs + self._collector_failures.get(name, 0),
            readings=totals.readings,
            reading_seconds=totals.seconds,
            cpu_seconds=totals.cpu_seconds,
            stuck_threads=len(hung) + sum(each.hung(state.now, state.stale_after) for each in left),
        )

    def _own(self, statuses: Iterable[SourceStatus]) -> list[Sample]:
        samples = [Sample(BUILD_INFO, (__version__, platform.python_version()), 1)]
        for status in statuses:
            labels = (status.name,)
            if status.up is not None:
                samples.append(Sample(SOURCE_UP, labels, int(status.up)))
                samples.append(Sample(FAILURES, labels, status.failures))
                samples.append(Sample(READINGS, labels, status.readings))
                samples.append(Sample(READING_SECONDS, labels, status.reading_seconds))
                samples.append(Sample(CPU_SECONDS, labels, status.cpu_seconds))
                samples.append(Sample(STUCK_THREADS, labels, status.stuck_threads))
                if status.read_seconds is not None:
                    samples.append(Sample(READ_SECONDS, labels, status.read_seconds))
            if status.last_success is not None:
                samples.append(Sample(LAST_SUCCESS, labels, status.last_success))
        return samples


def _read_since(state: ReaderState, began: float) -> bool:
    """Whether the reader is done with the round that began then, or stuck in an earlier one."""
    if state.busy_since is not None:
        return state.busy_since < began
    return state.attempts > 0 and (state.ended_at or 0.0) >= began


def _too_many(left: tuple[tuple[str, Reader], ...], key: str) -> bool:
    """Whether so many threads of dropped parts have not ended that the part of that key gets no further one."""
    return len(left) >= _MAX_LEFT or sum(1 for other, _reader in left if other == key) >= _MAX_LEFT_OF_A_PART


def _retire(running: _Running) -> None:
    for reader in running.readers():
        reader.stop()
    if all(reader.join(0.5) for reader in running.readers()):
        running.source.close()
