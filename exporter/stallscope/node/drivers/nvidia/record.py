"""A library that forwards and records every call: for captures, and to measure the cost of calls."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from stallscope.node.drivers.nvidia.capture import Call, Failure, Handle
from stallscope.node.drivers.nvidia.library import Library, MissingFunction, NvmlFailure

_DECIMALS = 6
"""Microseconds: finer times are noise that makes captures long."""


class Pending(NamedTuple):
    """A call that has not returned."""

    name: str
    arguments: tuple[Any, ...]
    since: float
    """Monotonic seconds."""

    @property
    def text(self) -> str:
        """Return the call as text, without long arguments."""
        arguments = ("..." if type(each) is tuple else str(getattr(each, "token", each)) for each in self.arguments)
        return f"{self.name}({', '.join(arguments)})"


class RecordingLibrary:
    """Implements `stallscope.node.drivers.nvidia.library.Library` on another one. Any number of threads may call it."""

    def __init__(self, library: Library, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Record calls from now on; `monotonic` returns seconds."""
        self.calls: list[Call] = []
        """Finished calls, in the order of their ends."""
        self.origin = monotonic()
        """Start of `Call.at`; may be set before the first call."""
        self._library = library
        self._monotonic = monotonic
        self._tokens: dict[int, str] = {}
        self._kept: list[object] = []
        self._numbers: dict[str, int] = {}
        self._pending: dict[int, Pending] = {}

    @property
    def pending(self) -> list[Pending]:
        """Return the calls that have not returned, the oldest first."""
        return sorted(self._pending.copy().values(), key=lambda each: each.since)

    def load(self) -> None:
        """Load the real library; its errors are raised."""
        self._library.load()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the real library, and record the result.

        Raises:
            NvmlFailure, MissingFunction: as the library did.
        """
        noted = tuple(self._plain(argument) for argument in arguments)
        began = self._monotonic()
        mark = id(noted)
        self._pending[mark] = Pending(name, noted, began)
        answer: Any = None
        failure: Failure | None = None
        try:
            answer = self._library.call(name, *arguments)
            return answer
        except NvmlFailure as problem:
            failure = Failure(problem.code, str(problem))
            raise
        except MissingFunction as problem:
            failure = Failure(None, str(problem))
            raise
        finally:
            ended = self._monotonic()
            del self._pending[mark]
            self.calls.append(
                Call(
                    at=round(began - self.origin, _DECIMALS),
                    seconds=round(ended - began, _DECIMALS),
                    name=name,
                    arguments=noted,
                    answer=self._plain(answer, self._made_by(name, noted)),
                    failure=failure,
                )
            )

    def _plain(self, value: Any, token: str = "") -> Any:
        """Return a copy of the value with a token for each handle; `token` is for a handle that this call created."""
        if value is None or isinstance(value, (bool, int, float, str, bytes, Handle)):
            return value
        if isinstance(value, tuple):
            return tuple(self._plain(each) for each in value)
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        if isinstance(value, SimpleNamespace):
            return SimpleNamespace(**{name: self._plain(each) for name, each in vars(value).items()})
        address = self._address(value)
        if token:
            self._tokens[address] = token  # also if the address belonged to something freed
        elif address not in self._tokens:
            self._tokens[address] = self._number("handle")
        return Handle(self._tokens[address])

    def _made_by(self, name: str, arguments: tuple[Any, ...]) -> str:
        """Return the token of the function's result; empty if it creates nothing."""
        if name.startswith("nvmlDeviceGetHandleByIndex"):
            return f"device {arguments[0]}"
        if name == "nvmlDeviceGetMigDeviceHandleByIndex":
            return f"instance {arguments[0].token.removeprefix('device ')}/{arguments[1]}"
        if name == "nvmlGpmSampleAlloc":
            return self._number("sample")
        if name == "nvmlEventSetCreate":
            return self._number("event set")
        return ""

    def _number(self, kind: str) -> str:
        number = self._numbers.get(kind, 0)
        self._numbers[kind] = number + 1
        return f"{kind} {number}"

    def _address(self, handle: object) -> int:
        try:
            # The binding makes a new object for the same handle at each call.
            return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
        except ctypes.ArgumentError:
            self._kept.append(handle)  # or another object could come to have the same id
            return id(handle)
