"""A clock that moves only when the program sleeps, so that phases take the same time on any machine.

`time.sleep` returns at once. A program that takes known times with it takes exactly these, however slow or busy the
machine is. Threads and processes that work next to the program's loop must not sleep.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

_TICK = 1e-7
"""Seconds between two readings of the clock, so that no two are equal."""


class Sleeps(deque[Any]):
    """Sleeps that the clock has not been moved by. Its `append` is built in, as `time.sleep` is."""


class Copies(deque[Any]):
    """Durations of copies of tensors: its `append` looks like a function that PyTorch has built in."""


Sleeps.__module__ = "time"
Copies.__module__ = "torch"


class Clock:
    """The clock of this process."""

    def __init__(self) -> None:
        self._moved = 0.0
        self._sleeps, self._copies = Sleeps(), Copies()
        self.copy: Any = self._copies.append
        """Take a number of seconds, as a built-in operator of PyTorch does."""
        self.code: Any = self._sleeps
        """Take the seconds that are added to it, as Python code without any call does: `code += [0.01]`."""

    def install(self) -> None:
        """Replace the clocks of the module `time` for code that reads them from now on."""
        for name in ("monotonic", "perf_counter", "time"):
            setattr(time, name, self._clock(getattr(time, name)()))
        time.sleep = self._sleeps.append

    def _clock(self, started: float) -> Any:
        def read() -> float:
            for durations in (self._sleeps, self._copies):
                while durations:
                    self._moved += durations.popleft()
            self._moved += _TICK
            return started + self._moved

        return read


clock = Clock()
