"""Time as a parameter: the real clock, and a scripted one for tests and simulation."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for the exporter."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations and ages."""

    def time(self) -> float:
        """Wall clock, Unix time in seconds; for timestamps that leave the process."""


class SystemClock:
    """The machine's own time."""

    def monotonic(self) -> float:
        """Seconds since some fixed point."""
        return time.monotonic()

    def time(self) -> float:
        """Unix time in seconds."""
        return time.time()


class ScriptedClock:
    """A clock that moves only by `advance`, so that tests of hours end at once."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._elapsed = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time can't go back by {-seconds} s")
        self._elapsed += seconds

    def monotonic(self) -> float:
        """Seconds since the script began."""
        return self._elapsed

    def time(self) -> float:
        """Unix time in seconds."""
        return self._start + self._elapsed
