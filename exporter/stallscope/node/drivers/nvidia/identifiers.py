"""Masks a machine's identifiers in a capture: UUIDs, serials, bus ids, process ids.

Each identifier is replaced consistently by one made of its number, so that a masked capture replays as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from stallscope.node.drivers.nvidia.capture import Call, Capture, Failure

_PATTERN = re.compile(
    r"(?P<uuid>(?:MIG-)?(?:GPU-|MIG-)?\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)"
    r"|(?P<bus>\b(?:[0-9a-f]{8}|[0-9a-f]{4}):[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b)",
    re.IGNORECASE,
)
_UUID_LENGTH = 36
_SERIALS = frozenset({"nvmlDeviceGetSerial", "nvmlDeviceGetBoardSerial"})
_PROCESS_NAMES = frozenset({"nvmlSystemGetProcessName"})
_PROCESSES = frozenset(
    {
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetProcessUtilization",
    }
)
"""Functions whose results are tuples that begin with a process id."""


def masked(capture: Capture) -> Capture:
    """Return the capture without identifiers."""
    mask = _Mask()
    return replace(
        capture,
        header=replace(capture.header, masked=True, note=mask.text(capture.header.note)),
        calls=tuple(mask.call(call) for call in capture.calls),
    )


class _Mask:
    """Numbers the identifiers of each kind in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[Any, int]] = {}

    def call(self, call: Call) -> Call:
        """Return the call without identifiers."""
        arguments = call.arguments
        if call.name in _PROCESS_NAMES and arguments:
            arguments = (self._pid(arguments[0]), *arguments[1:])
        failure = call.failure
        return call._replace(
            arguments=tuple(self._value(argument) for argument in arguments),
            answer=self._answer(call),
            failure=None if failure is None else Failure(failure.code, self.text(failure.text)),
        )

    def text(self, text: str) -> str:
        """Return a text with every identifier of a known form replaced."""
        return _PATTERN.sub(self._substitute, text)

    def _answer(self, call: Call) -> Any:
        answer = call.answer
        if call.name in _SERIALS:
            return _retyped(answer, lambda text: f"{self._number('serial', text):013d}")
        if call.name in _PROCESS_NAMES:
            return _retyped(answer, lambda text: f"process-{self._number('process name', text)}")
        if call.name in _PROCESSES and isinstance(answer, list):
            return [(self._pid(entry[0]), *entry[1:]) for entry in answer]
        return self._value(answer)

    def _value(self, value: Any) -> Any:
        if type(value) is tuple:
            return tuple(self._value(each) for each in value)
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, SimpleNamespace):
            return SimpleNamespace(**{name: self._value(each) for name, each in vars(value).items()})
        return _retyped(value, self.text)

    def _pid(self, pid: int) -> int:
        return self._number("pid", pid) + 1

    def _substitute(self, match: re.Match[str]) -> str:
        if match["bus"] is not None:
            domain, _, rest = match["bus"].lower().partition(":")
            # Short and long forms of one address are the same address.
            number = self._number("bus", (int(domain, 16), rest))
            return f"{'0' * len(domain)}:{number + 1:02X}:00.0"
        prefix, uuid = match["uuid"][:-_UUID_LENGTH], match["uuid"][-_UUID_LENGTH:]
        number = self._number("instance" if prefix == "MIG-" else "gpu", uuid.lower())
        return f"{prefix}00000000-0000-0000-0000-{number:012x}"

    def _number(self, kind: str, value: Any) -> int:
        known = self._numbers.setdefault(kind, {})
        return known.setdefault(value, len(known))


def _retyped(value: Any, change: Callable[[str], str]) -> Any:
    """Return the changed text, as bytes if it was bytes; other values unchanged."""
    if isinstance(value, bytes):
        return change(value.decode("latin-1")).encode("latin-1")
    return change(value) if isinstance(value, str) else value
