"""Processes on a GPU, and how long each kept it busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.gpu.poll import Answer, Poll, Session
from stallscope.node.drivers.device import GpuProcess, ProcessUtilization
from stallscope.node.drivers.signals import SECONDS_5, SECONDS_10

PROCESSES = family("stallscope_gpu_processes")

_SILENCE = 12.0
"""Maximum seconds that a sample of a process represents; idle processes have no samples."""
_REMEMBERED = 4096


class ProcessPoll(Poll):
    """Polls the number of processes with a context."""

    name = "processes"
    families = (PROCESSES,)
    every = SECONDS_10

    def __init__(self) -> None:
        """Start without processes."""
        self.processes: tuple[GpuProcess, ...] | None = None
        """Processes in the newest reading."""

    def read(self, session: Session) -> Answer:
        """Return the number of processes."""
        self.processes = tuple(session.device.processes())
        counts = Counter("graphics" if process.kind == "graphics" else "compute" for process in self.processes)
        return {PROCESSES: {kind: counts[kind] for kind in ("compute", "graphics")}}


class ProcessUtilizationPoll(Poll):
    """Polls the busy seconds of each process, for the owners; has no series of its own."""

    name = "process_utilization"
    every = SECONDS_5

    def __init__(self, processes: ProcessPoll) -> None:
        """Drop processes that are not among these if there are too many."""
        self.busy: dict[int, float] = {}
        """Seconds by process."""
        self._processes = processes
        self._newest_us = 0
        self._answered_at = self._polled_at = 0.0
        self._is_reopened = False

    def reopened(self) -> None:
        """See `Poll`."""
        self._is_reopened = True

    def read(self, session: Session) -> Answer:
        """Integrate the new samples."""
        newest = self._newest_us
        silent = session.now - self._answered_at
        # A clock that went back shows only in the driver's whole buffer.
        samples = session.device.process_utilization(0 if self._is_reopened or silent >= _SILENCE else newest)
        # Processes without samples in earlier readings were idle until then.
        idle = max(0.0, self._polled_at - self._answered_at)
        reopened, self._is_reopened = self._is_reopened, False
        self._polled_at = session.now
        if newest and not reopened:
            # One from the future would silence all others until then.
            latest = newest + (silent + _SILENCE) * 1e6
            samples = [sample for sample in samples if sample.timestamp_us <= latest]
        newest_now = max((sample.timestamp_us for sample in samples), default=newest)
        if newest_now != newest:
            self._answered_at = session.now
            self._newest_us = newest_now
        if newest_now > newest:
            since = newest + round(idle * 1e6) if newest else 0
            self._credit([sample for sample in samples if sample.timestamp_us > newest], since)
        return {}

    def _credit(self, samples: Iterable[ProcessUtilization], since_us: int) -> None:
        busy = self.busy
        seen: dict[int, int] = {}
        for pid, timestamp_us, ratio, _ in samples:
            before = seen.get(pid, since_us)
            seen[pid] = timestamp_us
            # The first sample ever speaks for a time whose beginning is unknown.
            seconds = min((timestamp_us - before) / 1e6, _SILENCE) if before else 0.0
            busy[pid] = busy.get(pid, 0.0) + ratio * max(0.0, seconds)
        if len(busy) > _REMEMBERED:
            present = {process.pid for process in self._processes.processes or ()}
            self.busy = {pid: seconds for pid, seconds in busy.items() if pid in present}
