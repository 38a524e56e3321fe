"""One thread that reads one thing again and again, and what is known of it from outside.

A reading may raise, hang for ever or return nonsense; only this thread ever waits for it. Everybody else looks at
`Reader.state`, which is replaced as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stallscope.sampling.clock import Clock
from stallscope.sampling.reading import Sample, checked

_logger = logging.getLogger(__name__)


class NotPresent(Exception):
    """This machine has no such part (no NFS mount, no InfiniBand): no data, and no failure either."""


@dataclass(frozen=True)
class ReaderState:
    """What is known of a reader at one moment. Times are monotonic seconds unless said otherwise."""

    samples: tuple[Sample, ...] = ()
    """The newest successful reading."""
    read_at: float | None = None
    """When the newest successful reading ended; None before the first."""
    read_time: float | None = None
    """The same by the wall clock."""
    seconds: float | None = None
    """How long the newest reading took, successful or not."""
    ended_at: float | None = None
    """When the newest reading ended, successful or not."""
    attempts: int = 0
    """Readings that came to an end."""
    failures: int = 0
    """Readings that raised or returned nonsense."""
    reading_seconds: float = 0.0
    """How long all readings together took."""
    cpu_seconds: float = 0.0
    """Processor time of them all, in the thread that read."""
    error: Exception | None = None
    """What the newest reading raised; None when it succeeded."""
    busy_since: float | None = None
    """When the reading now in progress began; None between readings."""

    def fresh(self, now: float, stale_after: float) -> bool:
        """Whether the newest successful reading is young enough to show."""
        return self.read_at is not None and now - self.read_at < stale_after

    def hung(self, now: float, stale_after: float) -> bool:
        """Whether the reading in progress has taken so long that it counts as hung."""
        return self.busy_since is not None and now - self.busy_since >= stale_after

    @property
    def present(self) -> bool:
        """False where the newest reading said that this machine has no such part."""
        return not isinstance(self.error, NotPresent)


@dataclass(frozen=True)
class SourceState:
    """What a source may look at when it is asked what to expose."""

    now: float
    """Monotonic seconds."""
    stale_after: float
    """Age in seconds from which a reading is no longer shown."""
    main: ReaderState
    parts: Mapping[str, ReaderState]
    """States of the readers that the source's `parts()` asked for, by key."""


class Reader:
    """Calls `read` at every interval on a thread of its own and keeps what came of it."""

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
        except Exception as problem:  # noqa: BLE001 - whatever a source does, it must not end its thread
            # Its frames hold the error again: a circle that waits long for the garbage collector.
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
        """Ask the thread to end after the reading in progress; does not wait, since that may never end."""
        self._stopping.set()

    @property
    def running(self) -> bool:
        """Whether its thread has not ended."""
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
        elif before is not None:
            _logger.info("source %s answers again", self.name)
