"""Run every source on its own schedule and publish a page of the newest readings.

The scrape path only takes the newest `Page`. Each source is read by the threads of its readers. One more thread, the
publisher, collects the samples of each source from memory, adds the exporter's own metrics, and renders the page.
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

from stallscope.common.version import __version__
from stallscope.model.catalogue.metrics import family
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.exposition import Renderer, label_text
from stallscope.node.sampling.page import Demand, Page
from stallscope.node.sampling.reader import CollectorState, Reader, ReaderState
from stallscope.node.sampling.reading import NonsenseReading, Sample, checked

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
"""Longest time that the publisher waits for the readers of a round, as a share of the interval."""
_ROUND_WAIT = 0.25
"""Longest time that the publisher waits for the readers of a round, in seconds."""
_PAGE_SECONDS = 1.0
"""Longest time between two pages, so that late readings and training reports appear soon at long intervals too."""
_SUSPENDED_SECONDS = 1.0
"""How much later than planned the publisher must wake to show that the whole process did not run meanwhile."""
_LARGE_PAGE = 0.01
"""CPU seconds from which a page counts as large. Large pages, as with dozens of ranks, are made less often."""
_LARGE_PAGE_SHARE = 0.005
"""Largest share of one core that large pages may use."""
_LARGE_PAGE_SECONDS = 5.0
"""Longest time between two large pages."""
_MAX_LEFT_OF_A_PART = 8
"""Most hanging threads of one dropped part; a part that has reached the limit gets no new thread."""
_MAX_LEFT = 64
"""Most hanging threads of all dropped parts of a source, since parts may return under new keys."""
_DROPPED_NAME = SERIES_DROPPED.name + label_text(SERIES_DROPPED, ("max_series",))


def until_next_page(elapsed: float, period: float, spent: tuple[float, float]) -> float:
    """Return the seconds that the publisher sleeps until the next page.

    Args:
        elapsed: seconds since the first tick.
        period: seconds between two ticks, at each of which a page may be made.
        spent: CPU times of the last two pages in seconds. A single long one does not count.
    """
    least = min(spent)
    pause = min(_LARGE_PAGE_SECONDS, least / _LARGE_PAGE_SHARE) if least > _LARGE_PAGE else period
    ticks = max(1, math.ceil(pause / period))
    return period * ticks - elapsed % period


class SampledCollector(Protocol):
    """Interface of a source that the sampler reads; `stallscope.node.collectors.base.Source` is one."""

    @property
    def name(self) -> str:
        """Value of the label `source` in `stallscope_exporter_source_up`."""

    @property
    def harmless(self) -> tuple[type[Exception], ...]:
        """Errors of a part that do not count as failures of the source."""

    @property
    def longest_interval(self) -> float | None:
        """Longest time in seconds between two readings, whatever the interval; None for no limit."""

    def read(self) -> Iterable[Sample]:
        """Read once; may block and raise."""

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        """Readers that need a thread of their own."""

    def collect(self, state: CollectorState) -> Iterable[Sample]:
        """Return the samples to expose, from memory only."""

    def release(self, seconds: float) -> None:
        """Close device files for `seconds` seconds; return at once."""

    def close(self) -> None:
        """Release all resources."""


@dataclass(frozen=True)
class CollectorStatus:
    """State of one source, for the status page and the self-metrics."""

    name: str
    up: bool | None
    """None where this machine lacks the hardware, or before the first reading."""
    error: str
    """Description of the problem; empty if there is none."""
    read_seconds: float | None
    last_success: float | None
    """Unix time."""
    failures: int
    readings: int = 0
    """Readings that ended, successful or not."""
    reading_seconds: float = 0.0
    """Time that the readings took, over all threads."""
    cpu_seconds: float = 0.0
    """CPU time of the readings."""
    stuck_threads: int = 0
    """Threads with a reading that is overdue, including threads of dropped parts."""


class Snapshot(NamedTuple):
    """The samples of one page of metrics."""

    at: float
    """Unix time."""
    samples: tuple[Sample, ...]


class Hang(NamedTuple):
    """A reading in progress."""

    reader: str
    """Name of the source, followed by the key of the part if a part is read."""
    seconds: float
    """How long it has taken so far."""


class _Totals(NamedTuple):
    """Totals over several readers."""

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

    source: SampledCollector
    main: Reader
    parts: dict[str, Reader] = field(default_factory=dict)
    left: tuple[tuple[str, Reader], ...] = ()
    """Readers of dropped parts with a live thread, by key of the part; a hanging thread may never end."""
    ended: _Totals = field(default_factory=_Totals)
    """Totals of readers that have ended and been removed."""
    refused: frozenset[str] = frozenset()
    """Parts that get no new reader because too many of their threads hang."""
    parts_problem: str = ""
    """Error of the last call of `parts`; empty if it succeeded."""
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
        self._resumed_at = -math.inf
        self._round_done = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()
        self._statuses: tuple[CollectorStatus, ...] = ()
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
        """True once the page includes a first round of readings."""
        return self._first_round

    @property
    def statuses(self) -> tuple[CollectorStatus, ...]:
        """Every source as of the newest page."""
        return self._statuses

    @property
    def snapshot(self) -> Snapshot:
        """The samples of the newest page."""
        return self._snapshot

    @property
    def longest_hang(self) -> Hang | None:
        """The reading that has been in progress for longest, dropped parts included; None while nothing is read.

        Time in which the whole process did not run is not counted.
        """
        now = self._clock.monotonic()
        hangs = [
            Hang(reader.name, now - max(began, self._resumed_at))
            for running in self._running.values()
            for reader in running.readers()
            if (began := reader.state.busy_since) is not None
        ]
        return max(hangs, key=lambda hang: hang.seconds, default=None)

    def add(self, source: SampledCollector) -> None:
        """Add a source; start reading it if the sampler runs.

        Raises:
            ValueError: a source of that name exists.
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
        """Make every source close its device files for `seconds` seconds, from its next reading; 0 reopens them."""
        for name, running in self._running.items():
            try:
                running.source.release(seconds)
            except Exception:  # noqa: PERF203 - one failing source must not stop the others
                _logger.exception("source %s could not release its device files", name)

    def add_collector(self, name: str, collect: Callable[[], Iterable[Sample]]) -> None:
        """Add a function that returns samples from memory; it is called for every page."""
        self._collectors = {**self._collectors, name: collect}

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes:
        """Return the newest page, from memory only: without a lock, a source or a driver."""
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
        """Stop reading and publishing. Hanging readers are abandoned, since nothing can end their threads."""
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
        """Make a new page from the current state of all sources."""
        now = self._clock.monotonic()
        samples: list[Sample] = []
        statuses: list[CollectorStatus] = []
        for running in self._running.values():
            state = CollectorState(
                now=now,
                stale_after=self.stale_after,
                main=running.main.state,
                parts={key: reader.state for key, reader in running.parts.items()},
                resumed_at=self._resumed_at,
            )
            samples += self._isolated(running.source.name, lambda r=running, s=state: r.source.collect(s))  # type: ignore[misc]
            statuses.append(self._status(running, state))
        self._statuses = tuple(statuses)
        at = self._clock.time()
        # Samples from outside come last: senders decide their number, and the series limit cuts the end of the page.
        samples += self._own(statuses)
        for name, collect in self._collectors.items():
            samples += self._isolated(name, collect)
        self._snapshot = Snapshot(at, tuple(samples))
        groups, series, dropped = self._renderer.lines(samples, self.max_series)
        self._dropped += dropped
        # The count includes the two series added here.
        groups[SERIES] = {SERIES.name: str(series + 2)}
        groups.setdefault(SERIES_DROPPED, {})[_DROPPED_NAME] = str(self._dropped)
        page = Page(lambda openmetrics: self._renderer.render(groups, openmetrics=openmetrics))
        for form in self._demand.forms():
            page.bytes(form)
        self._page = page

    def _publish_for_ever(self) -> None:
        period = self.interval / math.ceil(self.interval / _PAGE_SECONDS)
        due = math.inf
        spent_before = 0.0
        while not self._stopping.is_set():
            round_began = self._round_began()
            self._await_round(round_began)
            began = self._clock.monotonic()
            if began - due > _SUSPENDED_SECONDS:
                self._resumed_at = round_began = began
                self._await_round(round_began)
                began = self._clock.monotonic()
            cpu_began = time.thread_time()
            try:
                for running in self._running.values():
                    self._reconcile(running, start=True)
                if not self._first_round:
                    # Parts get their readers only now; the first page waits for their first readings.
                    self._await_round(round_began)
                    self._first_round = True
                self.publish()
            except Exception:
                _logger.exception("the page could not be rendered; the previous page remains")
            try:
                if self._on_page is not None:
                    self._on_page()
            except Exception:
                _logger.exception("the callback after a page failed; the next page is not affected")
            elapsed = self._clock.monotonic() - self._origin
            spent = time.thread_time() - cpu_began
            pause = until_next_page(elapsed, period, (spent_before, spent))
            spent_before = spent
            due = began + spent + pause
            if self._stopping.wait(pause):
                return

    def _round_began(self) -> float:
        """Return the last tick, when the readers' round began; readers may wake before the publisher."""
        return self._origin + (self._clock.monotonic() - self._origin) // self.interval * self.interval

    def _start(self, source: SampledCollector, reader: Reader) -> None:
        reader.start(self._origin, min(self.interval, source.longest_interval or self.interval))

    def _await_round(self, began: float) -> None:
        """Wait until every reader that does not hang has read since `began`, for at most a share of the interval."""
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
        """Create a reader for each new part of the source, and stop the readers of parts that it no longer has."""
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
                return  # removed meanwhile: its new readers would never be stopped
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
                    "source %s: %s is no longer read: %d threads of the source hang in readings of dropped parts; "
                    "restart the exporter to end them",
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
            _logger.warning("source %s failed to list its parts: %s", name, problem)
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
            kind = "returned invalid samples" if isinstance(problem, NonsenseReading) else "could not be collected"
            _logger.warning("%s %s: %s", name, kind, text)

    def _status(self, running: _Running, state: CollectorState) -> CollectorStatus:
        name = running.source.name
        states = {name: state.main, **{f"{name} {key}": part for key, part in state.parts.items()}}
        hung = frozenset(key for key, each in states.items() if state.hung(each))
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
            problem = f"no longer read because too many threads hang: {', '.join(sorted(running.refused))}"
        if hung:
            problem = f"no answer for {state.stale_after:g} s: {', '.join(sorted(hung))}"
        elif errors:
            problem = f"{type(errors[0]).__name__}: {errors[0]}"
        up: bool | None = not problem and (state.fresh(state.main) or not state.main.present)
        if not problem and (not state.main.present or state.main.attempts == 0):
            up = None
        attempts = [each for each in states.values() if each.seconds is not None]
        read_times = [each.read_time for each in states.values() if each.read_time is not None]
        left = [reader.state for _key, reader in running.left]
        totals = running.ended
        for each in (*states.values(), *left):
            totals = totals.plus(each)
        return CollectorStatus(
            name=name,
            up=up,
            error=problem if problem or state.main.present else str(state.main.error),
            read_seconds=max((each.seconds or 0.0 for each in attempts), default=None),
            last_success=max(read_times, default=None),
            failures=totals.failures + running.hangs + self._collector_failures.get(name, 0),
            readings=totals.readings,
            reading_seconds=totals.seconds,
            cpu_seconds=totals.cpu_seconds,
            stuck_threads=len(hung) + sum(state.hung(each) for each in left),
        )

    def _own(self, statuses: Iterable[CollectorStatus]) -> list[Sample]:
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
    """Return True if the reader has finished the round that began at `began`, or hangs in an earlier one."""
    if state.busy_since is not None:
        return state.busy_since < began
    return state.attempts > 0 and (state.ended_at or 0.0) >= began


def _too_many(left: tuple[tuple[str, Reader], ...], key: str) -> bool:
    """Return True if too many threads of dropped parts still run for part `key` to get another one."""
    return len(left) >= _MAX_LEFT or sum(1 for other, _reader in left if other == key) >= _MAX_LEFT_OF_A_PART


def _retire(running: _Running) -> None:
    for reader in running.readers():
        reader.stop()
    if all(reader.join(0.5) for reader in running.readers()):
        running.source.close()
