"""Files of a hardware day, checked: each is optional, and an invalid one gives a message and not an exception."""

from __future__ import annotations

import gzip
import json
import math
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stallscope.model.catalogue.causes import CAUSES

_Made = TypeVar("_Made")
_MAX_BYTES = 64 << 20
"""Decompressed size of a file."""


class InputError(Exception):
    """A file is missing or invalid; the message is one line."""


@dataclass(frozen=True)
class Step:
    """One part of the day."""

    name: str
    status: str
    message: str


@dataclass(frozen=True)
class Machine:
    """The machine and the software of the day."""

    gpu: str
    driver: str
    stallscope: str
    started: float
    stand_in: bool
    steps: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        """The GPU's model and the driver."""
        return f"{self.gpu}, driver {self.driver}"


UNKNOWN = Machine("unknown GPU", "unknown", "unknown", 0.0, stand_in=True)
"""A day that does not describe its machine counts as one on a stand-in: nothing is written into the repository."""


@dataclass(frozen=True)
class Program:
    """A program with a planted cause of lost time, and its own measurements."""

    name: str
    run: str
    """Name of its run; empty if it does not report."""
    runs: frozenset[str]
    """Names of all its runs."""
    planted: frozenset[str]
    allowed: frozenset[str]
    """Causes that are neither required nor false."""
    begin: float
    end: float
    lost: float | None
    """Measured share of time lost."""
    status: int
    skipped: str
    is_rehearsed: bool
    """False if a rehearsal without a GPU can't plant the cause."""


@dataclass(frozen=True)
class Signal:
    """A value that a metric of the exporter must have had during a known load."""

    load: str
    begin: float
    end: float
    metric: str
    labels: Mapping[str, str]
    truth: float
    tolerance: float
    source: str


def machine(folder: Path) -> Machine:
    """Read `machine.json`.

    Raises:
        InputError: it is missing or invalid.
    """
    path = folder / "machine.json"
    entry = _Entry(path, _parsed(path, _content(path)))
    steps = [_Entry(path, step) for step in entry.get("steps", list, [])]
    return Machine(
        gpu=entry.text("gpu"),
        driver=entry.text("driver"),
        stallscope=entry.text("stallscope"),
        started=entry.number("started"),
        stand_in=bool(entry.get("stand_in", bool)),
        steps=tuple(Step(step.text("name"), step.text("status"), step.text("message", "")) for step in steps),
    )


def programs(folder: Path, show: Callable[[str], None]) -> list[Program]:
    """Read `programs.jsonl`; an invalid line is left out, with a message.

    Raises:
        InputError: the file is missing.
    """
    path = folder / "programs.jsonl"
    lines = enumerate(_content(path).splitlines(), start=1)
    places = ((f"{path}: line {number}", line) for number, line in lines if line.strip())
    return _valid(places, lambda place, line: _program(_Entry(place, _parsed(place, line))), show)


def _program(entry: _Entry) -> Program:
    planted, allowed = (frozenset(map(str, entry.get(key, list, []))) for key in ("planted", "allowed"))
    if unknown := sorted((planted | allowed) - set(CAUSES)):
        raise entry.error(f"unknown cause {unknown[0]!r}; alerts/CAUSES.md lists them")
    truth = entry.inner("truth")
    run, skipped = entry.text("run", ""), entry.text("skipped", "")
    return Program(
        name=entry.text("name"),
        run=run,
        runs=frozenset(filter(None, (run, *map(str, entry.get("runs", list, []))))),
        planted=planted,
        allowed=allowed,
        begin=entry.number("started", 0.0 if skipped else None),
        end=entry.number("ended", 0.0 if skipped else None),
        lost=None if truth.get("lost", object, "") == "" else truth.number("lost"),
        status=int(entry.number("exit", 0.0)),
        skipped=skipped,
        is_rehearsed=bool(entry.get("rehearsed", bool, True)),
    )


def signals(folder: Path, show: Callable[[str], None]) -> list[Signal]:
    """Read `signals.json`; an invalid entry is left out, with a message.

    Raises:
        InputError: the file is missing or invalid.
    """
    path = folder / "signals.json"
    document = _parsed(path, _content(path))
    if not isinstance(document, list):
        raise InputError(f"{path}: expected a list; run the day again")
    places = ((f"{path}: entry {number}", entry) for number, entry in enumerate(document, start=1))
    return _valid(places, lambda place, content: _signal(_Entry(place, content)), show)


def _signal(entry: _Entry) -> Signal:
    return Signal(
        load=entry.text("load"),
        begin=entry.number("from"),
        end=entry.number("to"),
        metric=entry.text("metric"),
        labels={str(name): str(value) for name, value in entry.get("labels", dict, {}).items()},
        truth=entry.number("truth"),
        tolerance=entry.number("tolerance"),
        source=entry.text("source", ""),
    )


def _valid(
    places: Iterable[tuple[str, Any]], make: Callable[[str, Any], _Made], show: Callable[[str], None]
) -> list[_Made]:
    """Return what can be made of each content; an invalid one is left out, with a message."""
    found = []
    for place, content in places:
        made = None
        try:
            made = make(place, content)
        except InputError as problem:
            show(str(problem))
        if made is not None:
            found.append(made)
    return found


def costs(folder: Path) -> Mapping[str, Any]:
    """Read `costs.json`.

    Raises:
        InputError: it is missing or invalid.
    """
    path = folder / "costs.json"
    return _Entry(path, _parsed(path, _content(path))).content


def capture_lines(folder: Path) -> list[str]:
    """Read the lines of `capture.json.gz`.

    Raises:
        InputError: it is missing, or cut.
    """
    return _content(folder / "capture.json.gz").splitlines()


def suite(folder: Path) -> str:
    """Return the results of `suite.xml` in one line, and the names of failed tests.

    Raises:
        InputError: it is missing or invalid.
    """
    path = folder / "suite.xml"
    try:
        root = ET.fromstring(_content(path))
    except ET.ParseError as problem:
        raise InputError(f"{path}: invalid XML ({problem}); run the day again") from None
    cases = list(root.iter("testcase"))
    failed = [case.get("name", "?") for case in cases if _has(case, "failure") or _has(case, "error")]
    skipped = sum(_has(case, "skipped") for case in cases)
    names = f": {', '.join(failed)}" if failed else ""
    return f"{len(cases) - len(failed) - skipped} passed, {skipped} skipped, {len(failed)} failed{names}"


def _has(case: ET.Element, name: str) -> bool:
    return case.find(name) is not None


def _content(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                content = file.read(_MAX_BYTES)
        else:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: missing; its part of the day is not judged") from None
    except (OSError, EOFError, zlib.error) as problem:
        raise InputError(f"{path}: unreadable ({problem}); copy it again, or run the day again") from None
    return content.decode("utf-8", "replace")


def _parsed(place: object, content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{place}: invalid JSON ({problem}); run the day again") from None


class _Entry:
    """An object whose values must have types."""

    def __init__(self, place: object, content: Any) -> None:
        self._place = place
        if not isinstance(content, dict):
            raise self.error(f"expected an object, got {content!r:.40}; run the day again")
        self.content: Mapping[str, Any] = content

    def error(self, problem: str) -> InputError:
        """Return an error that names the place."""
        return InputError(f"{self._place}: {problem}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Return a value of a type; the default if it is missing or null."""
        value = self.content.get(key)
        value = default if value is None else value
        if not isinstance(value, kind):
            raise self.error(f"{key}: expected {kind.__name__}, got {value!r:.40}; run the day again")
        return value

    def inner(self, key: str) -> _Entry:
        """Return an object; an empty one if it is missing."""
        return _Entry(f"{self._place}: {key}", self.get(key, dict, {}))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return str(self.get(key, str, default))

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.get(key, object, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(f"{key}: expected a number, got {value!r:.40}; run the day again")
        return float(value)


def numbers(entry: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of nested objects with their paths, such as `shim.ratio`."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            yield from numbers(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(entry, (int, float)) and not isinstance(entry, bool) and math.isfinite(entry):
        yield prefix, float(entry)
