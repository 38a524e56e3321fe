"""Poll one data source on a thread of its own.

A reading may raise, hang for ever or return invalid samples; only this thread waits for it. All other threads read
`Reader.state`, which is replaced as a whole.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stallscope.node.sampling.clock import Clock
from stallscope.node.sampling.reading import Sample, checked

_logger = logging.getLogger(__name__)


class NotPresent(Exception):
    """This machine lacks the hardware or mount (such as InfiniBand or NFS); not a failure."""


@dataclass(frozen=True)
class ReaderState:
    """State of a reader at one moment. Times are in monotonic seconds unless stated otherwise."""

    samples: tuple[Sample, ...] = ()
    """The newest successful reading."""
    read_at: float | None = None
    """When the newest successful reading ended; None before the first."""
    read_time: float | None = None
    """When the newest successful reading ended, in Unix time."""
    seconds: float | None = None
    """How long the newest reading took, successful or not."""
    ended_at: float | None = None
    """When the newest reading ended, successful or not."""
    attempts: int = 0
    """Readings that ended, successful or not."""
    failures: int = 0
    """Readings that raised or returned invalid samples."""
    reading_seconds: float = 0.0
    """How long all readings together took."""
    cpu_seconds: float = 0.0
    """CPU time of all readings, in the reader's thread."""
    error: Exception | None = None
    """Error of the newest reading; None if it succeeded."""
    busy_since: float | None = None
    """When the reading now in progress began; None between readings."""

    @property
    def present(self) -> bool:
        """False if the newest reading raised `NotPresent`."""
        return not isinstance(self.error, NotPresent)


@dataclass(frozen=True)
class CollectorState:
    """State of the readers of a source, from which it collects its samples."""

    now: float
    """Monotonic seconds."""
    stale_after: float
    """Age in seconds from which a reading is no longer shown."""
    main: ReaderState
    parts: Mapping[str, ReaderState]
    """States of the readers of the source's `parts()`, by key."""
    resumed_at: float = -math.inf
    """When the process last resumed after it had not run for a time, as in a paused virtual machine, in monotonic
    seconds. Ages count from then: what is old because nothing ran does not mean that a driver hangs."""

    def fresh(self, reader: ReaderState) -> bool:
        """Return True if the newest successful reading is recent enough to expose."""
        return reader.read_at is not None and self.now - max(reader.read_at, self.resumed_at) < self.stale_after

    def hung(self, reader: ReaderState) -> bool:
        """Return True if the reading in progress has taken at least `stale_after` seconds."""
        return reader.busy_since is not None and self.now - max(reader.busy_since, self.resumed_at) >= self.stale_after


class Reader:
    """Call `read` at every interval on a thread of its own and keep the result."""

    def __init__(
        self,
        name: str,
        read: Callable[[], Iterable[Sample]],
        clock: Clock,
        on_read: Callable[[], None] | None = None,
        harmless: tuple[type[Exception], ...] = (),
    ) -> None:
        """Prepare.

        Args:
            name: what log lines call it.
            read: reads once; may block and raise.
            clock: for durations, ages and timestamps.
            on_read: called after every reading, in the reader's thread.
            harmless: errors that are kept and logged, but not counted as failures.
        """
        self.name = name
        self.state = ReaderState()
        self._read = read
        self._clock = clock
        self._on_read = on_read
        self._harmless: tuple[type[Exception], ...] = (NotPresent, *harmless)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def read_once(self) -> None:
        """Read now, in the calling thread, and replace the state."""
        began = self._clock.monotonic()
        cpu_began = time.thread_time()
        before = self.state
        self.state = replace(before, busy_since=began)
        error: Exception | None = None
        samples = before.samples
        try:
            samples = checked(self._read())
        except Exception as problem:  # noqa: BLE001 - no error of a source may end its thread
            # The traceback refers back to the error: a reference cycle that only the garbage collector would free.
            error = problem.with_traceback(None)
        ended = self._clock.monotonic()
        succeeded = error is None
        self.state = ReaderState(
            samples=samples,
            read_at=ended if succeeded else before.read_at,
            read_time=self._clock.time() if succeeded else before.read_time,
            seconds=ended - began,
            ended_at=ended,
            attempts=before.attempts + 1,
            failures=before.failures + (0 if succeeded or isinstance(error, self._harmless) else 1),
            reading_seconds=before.reading_seconds + ended - began,
            cpu_seconds=before.cpu_seconds + time.thread_time() - cpu_began,
            error=error,
            busy_since=None,
        )
        self._log_change(before.error, error, first=before.attempts == 0)
        if self._on_read is not None:
            self._on_read()

    def start(self, origin: float, interval: float) -> None:
        """Begin reading: at once, and then at every whole interval since `origin` (monotonic seconds)."""
        self._thread = threading.Thread(
            target=self._run, args=(origin, interval), name=f"read {self.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to end after the reading in progress; do not wait, since the reading may never end."""
        self._stopping.set()

    @property
    def running(self) -> bool:
        """True while the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; False if it still hangs in a reading."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self.running

    def _run(self, origin: float, interval: float) -> None:
        while not self._stopping.is_set():
            self.read_once()
            # A reading that took longer than the interval skips the ticks it missed.
            elapsed = self._clock.monotonic() - origin
            if self._stopping.wait(interval - elapsed % interval):
                return

    def _log_change(self, before: Exception | None, after: Exception | None, *, first: bool) -> None:
        if repr(before) == repr(after) and not first:
            return
        if isinstance(after, NotPresent):
            _logger.info("source %s: not on this machine: %s", self.name, after)
        elif after is not None:
            _logger.warning("source %s failed: %s: %s", self.name, type(after).__name__, after)
        elif isinstance(before, NotPresent):
            _logger.info("source %s: found on this machine", self.name)
        elif before is not None:
            _logger.info("source %s answers again", self.name)
