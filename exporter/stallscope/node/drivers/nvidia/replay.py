"""A library that returns a driver's recorded responses."""

from __future__ import annotations

import threading
from typing import Any

from stallscope.node.drivers.nvidia.capture import Call, Capture, key_of
from stallscope.node.drivers.nvidia.library import MissingFunction, NvmlFailure

_CURSORS = frozenset(
    {
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetProcessesUtilizationInfo",
        "nvmlEventSetWait",
        "nvmlEventSetWait_v2",
    }
)
"""Functions whose last argument is a position or a timeout: with any other value, they return the next response."""


class ReplayLibrary:
    """Implements `stallscope.node.drivers.nvidia.library.Library` on a capture.

    The same call gets the recorded answers one after the other, and the last one for ever. Any number of threads may
    call it.
    """

    def __init__(self, capture: Capture) -> None:
        """Return the responses of this capture."""
        self.unanswered: list[str] = []
        """Calls that were never recorded; they fail as if the driver's library did not have the function."""
        self._exact: dict[str, _Answers] = {}
        self._streams: dict[str, _Answers] = {}
        self._lock = threading.Lock()
        for place, call in enumerate(capture.calls):
            self._exact.setdefault(key_of(call.name, call.arguments), _Answers()).append(place, call)
            if call.name in _CURSORS:
                self._streams.setdefault(key_of(call.name, call.arguments[:-1]), _Answers()).append(place, call)

    def load(self) -> None:
        """Do nothing."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the driver's response to this call.

        Raises:
            NvmlFailure: the driver failed so.
            MissingFunction: the driver's library did not have the function, or the call was never recorded.
        """
        key = key_of(name, arguments)
        with self._lock:
            stream = self._streams.get(key_of(name, arguments[:-1])) if name in _CURSORS else None
            answers = self._exact.get(key) or stream
            if answers is None:
                self.unanswered.append(key)
                raise MissingFunction(f"{key} was not recorded")
            place, call = answers.next()
            if stream is not None:
                stream.skip_to(place)
        if call.failure is None:
            return call.answer
        if call.failure.code is None:
            raise MissingFunction(call.failure.text)
        raise NvmlFailure(call.failure.code, call.failure.text)


class _Answers:
    """Recorded calls, returned in order."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, Call]] = []
        self._next = 0

    def append(self, place: int, call: Call) -> None:
        self._calls.append((place, call))

    def next(self) -> tuple[int, Call]:
        """Return the next call with its position in the capture; the last one again if there is no other."""
        found = self._calls[min(self._next, len(self._calls) - 1)]
        self._next += 1
        return found

    def skip_to(self, place: int) -> None:
        """Continue after this position of the capture."""
        while self._next < len(self._calls) and self._calls[self._next][0] <= place:
            self._next += 1
