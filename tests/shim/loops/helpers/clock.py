"""A clock that moves only when the program sleeps, so that phases take the same time on any machine.

`time.sleep` returns at once. A program that takes known times with it takes exactly these, however slow or busy the
machine is. Threads and processes that work next to the program's loop must not sleep.

A report waits, in real time, until the kernel has room for it. No time passes between two reports, so that a program
would send more of them than the kernel keeps before the test reads the first.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any

_TICK = 1e-7
"""Seconds between two readings of the clock, so that no two are equal."""
_REPORT = b"{"
"""Beginning of a report."""
_TRIES = 60_000
"""How often a report is sent again, a millisecond apart."""
_wait = time.sleep


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
        for name in ("sendto", "sendmsg"):
            setattr(socket.socket, name, _patient(getattr(socket.socket, name)))

    def _clock(self, started: float) -> Any:
        def read() -> float:
            for durations in (self._sleeps, self._copies):
                while durations:
                    self._moved += durations.popleft()
            self._moved += _TICK
            return started + self._moved

        return read


def _patient(send: Any) -> Any:
    """Return a function that sends a report again while the kernel has no room for it."""

    def send_patiently(opened: socket.socket, content: Any, *arguments: Any) -> Any:
        first = content[0] if isinstance(content, list) else content
        for _ in range(_TRIES if first[:1] == _REPORT else 0):
            with suppress(BlockingIOError):
                return send(opened, content, *arguments)
            _wait(0.001)
        return send(opened, content, *arguments)

    return send_patiently


clock = Clock()
