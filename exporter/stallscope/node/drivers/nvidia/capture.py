"""File format of a driver's responses: a header, then one line of JSON for each call, readable in a diff.

Values keep their types on the way through the file. JSON's arrays stand for tuples; what JSON has no word for is an
object with one key: `{"list": [...]}`, `{"bytes": "..."}`, `{"fields": {...}}` (a namespace), `{"handle": "device 0"}`,
`{"float": "nan"}`, and `{"steps": [[1700000000000000, 3], [20000, 5]]}`, a list of pairs whose first numbers are
written as differences, which is what buffered samples are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

FORMAT = 1
"""Version of the format; a file of any other is refused."""
_STEPS_FROM = 1_000_000
"""Pairs whose first numbers are at least so large are timestamps."""
_HEADER = {
    "stallscope": str,
    "date": str,
    "start": float,
    "driver": str,
    "cuda": str,
    "models": list,
    "pynvml": str,
    "kernel": str,
    "interval": float,
    "masked": bool,
    "hardware": bool,
    "note": str,
}
"""Keys of a header, in addition to the format's version, with their types."""


class CaptureError(Exception):
    """A capture can't be read. The message has the file, the line and the reason."""


class Handle(NamedTuple):
    """Name of an opaque handle of the driver, such as `device 0`."""

    token: str


class Failure(NamedTuple):
    """A call that failed."""

    code: int | None
    """NVML's return code; None where the driver's library does not have the function."""
    text: str


class Call(NamedTuple):
    """One driver call and its result."""

    at: float
    """Seconds from the start of the recording to the call."""
    seconds: float
    """Duration in seconds."""
    name: str
    """The C function."""
    arguments: tuple[Any, ...]
    """Plain data, and handles."""
    answer: Any = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Header:
    """Origin of a capture."""

    stallscope: str
    date: str
    """UTC, such as `2026-02-01T12:00:00Z`."""
    start: float
    """Unix time in seconds: the wall clock of offset 0."""
    driver: str
    cuda: str
    models: list[str]
    """By index."""
    pynvml: str
    kernel: str
    interval: float
    """Seconds between two rounds."""
    masked: bool
    """True if identifiers were replaced."""
    hardware: bool
    """True if a real driver responded."""
    note: str = ""


@dataclass(frozen=True)
class Capture:
    """The driver's responses, in order."""

    header: Header
    rounds: tuple[float, ...] = ()
    """Seconds from the start to each of the sampler's rounds."""
    calls: tuple[Call, ...] = field(default=())


def write(capture: Capture, file: Path) -> None:
    """Write a capture, replacing the file."""
    file.write_text(text(capture), encoding="ascii")


def read(file: Path) -> Capture:
    """Read a capture.

    Raises:
        CaptureError: the file is not a capture, or one of another version.
        OSError: the file can't be read.
    """
    try:
        return parse(file.read_text(encoding="ascii").splitlines())
    except (CaptureError, UnicodeDecodeError) as problem:
        raise CaptureError(f"{file}: {problem}") from None


def text(capture: Capture) -> str:
    """Return the content of the file."""
    return "".join(f"{line}\n" for line in _lines(capture))


def parse(lines: Iterable[str]) -> Capture:
    """Return the capture in these lines.

    Raises:
        CaptureError: a line is invalid; the message has its number.
    """
    numbered = enumerate(lines, start=1)
    header = _header(next(numbered, (1, ""))[1])
    rounds: list[float] = []
    calls: list[Call] = []
    newest: dict[tuple[str, str], Call] = {}
    number = 1
    try:
        for number, line in numbered:  # noqa: B007 - an error names it
            entry = json.loads(line)
            if "round" in entry:
                rounds.append(float(entry["round"]))
            else:
                key = entry["call"], json.dumps(entry["arguments"])
                newest[key] = _call(entry, newest.get(key))
                calls.append(newest[key])
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CaptureError(
            f"line {number} is neither a call nor a round ({type(problem).__name__}: {problem}); "
            "the file was cut or edited: record it again"
        ) from None
    return Capture(header, tuple(rounds), tuple(calls))


def key_of(name: str, arguments: Iterable[Any]) -> str:
    """Return a text that identifies the call."""
    return f"{name} {_compact([_encoded(argument) for argument in arguments])}"


def _lines(capture: Capture) -> Iterator[str]:
    header = capture.header
    yield _compact({"format": FORMAT, **{name: getattr(header, name) for name in _HEADER}})
    newest: dict[str, str] = {}
    rounds = iter(capture.rounds)
    due = next(rounds, None)
    for call in capture.calls:
        while due is not None and due <= call.at:
            yield _compact({"round": due})
            due = next(rounds, None)
        result = _result(call)
        key = key_of(call.name, call.arguments)
        # What is said again and again is written once.
        same = newest.get(key) == (written := _compact(result))
        newest[key] = written
        yield _compact(
            {
                "at": call.at,
                "took": call.seconds,
                "call": call.name,
                "arguments": [_encoded(argument) for argument in call.arguments],
                **({"same": True} if same else result),
            }
        )
    while due is not None:
        yield _compact({"round": due})
        due = next(rounds, None)


def _result(call: Call) -> dict[str, Any]:
    if call.failure is None:
        return {"answer": _encoded(call.answer)}
    if call.failure.code is None:
        return {"missing": call.failure.text}
    return {"failure": call.failure.code, "text": call.failure.text}


def _header(line: str) -> Header:
    try:
        entry = json.loads(line)
        version = entry.pop("format")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CaptureError("line 1 is not a header of a capture: this is not a file of `stallscope record`") from None
    if version != FORMAT:
        raise CaptureError(
            f"format version {version!r}, but this stallscope reads only {FORMAT}: use the version of stallscope that "
            f"wrote it ({entry.get('stallscope', 'unknown')}), or record again"
        )
    for name, kind in _HEADER.items():
        value = entry.get(name)
        if kind is float and type(value) is int:
            entry[name] = float(value)
        elif type(value) is not kind:
            raise CaptureError(f"line 1: the header's {name!r} is missing or no {kind.__name__}: record it again")
    return Header(**{name: entry[name] for name in _HEADER})


def _call(entry: Mapping[str, Any], before: Call | None) -> Call:
    answer, failure = None, None
    if "same" in entry:
        if before is None:
            raise ValueError("'same' without an answer before")
        answer, failure = before.answer, before.failure
    elif "missing" in entry:
        failure = Failure(None, entry["missing"])
    elif "failure" in entry:
        failure = Failure(int(entry["failure"]), entry["text"])
    else:
        answer = _decoded(entry["answer"])
    return Call(
        at=float(entry["at"]),
        seconds=float(entry["took"]),
        name=str(entry["call"]),
        arguments=tuple(_decoded(argument) for argument in entry["arguments"]),
        answer=answer,
        failure=failure,
    )


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _encoded(value: Any) -> Any:
    """Return a value's form in JSON.

    Raises:
        TypeError: the value is not plain data.
    """
    if isinstance(value, Handle):
        return {"handle": value.token}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, SimpleNamespace):
        return {"fields": {name: _encoded(each) for name, each in vars(value).items()}}
    if isinstance(value, tuple):
        return [_encoded(each) for each in value]
    if isinstance(value, list):
        return {"steps": _steps(value)} if _are_samples(value) else {"list": [_encoded(each) for each in value]}
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(each) for each in value)
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "handle":
        return Handle(inner)
    if kind == "float":
        return float(inner)
    if kind == "bytes":
        return inner.encode("latin-1")
    if kind == "fields":
        return SimpleNamespace(**{name: _decoded(each) for name, each in inner.items()})
    if kind == "list":
        return [_decoded(each) for each in inner]
    if kind == "steps":
        return _from_steps(inner)
    raise ValueError(f"no value of the kind {kind!r} is known")


def _are_samples(values: list[Any]) -> bool:
    return len(values) > 1 and all(
        type(value) is tuple and len(value) == 2 and type(value[0]) is int and value[0] >= _STEPS_FROM
        for value in values
    )


def _steps(samples: list[tuple[int, Any]]) -> list[list[Any]]:
    before = (0, *(timestamp for timestamp, _ in samples))
    return [
        [timestamp - earlier, _encoded(value)] for earlier, (timestamp, value) in zip(before, samples, strict=False)
    ]


def _from_steps(steps: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    timestamp = 0
    samples: list[tuple[int, Any]] = []
    for step, value in steps:
        timestamp += step
        samples.append((timestamp, _decoded(value)))
    return samples
