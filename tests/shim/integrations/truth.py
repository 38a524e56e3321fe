"""Measurements that a training took of itself, to compare its reports with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.shim.integrations.trainings import Reports

_OUTSIDE = ("evaluation", "restore")
_SECONDS = 0.015
"""Seconds by which a phase may differ: Keras fetches one batch before its loop begins."""


class Truth:
    """Counts steps and samples, and measures phases; of nested ones, time belongs to the inner one alone.

    In an evaluation and while something is restored, time stays there.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._mark = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if self._open and (phase in self._open or self._open[-1] in _OUTSIDE):
            yield
            return
        self._book()
        self._open.append(phase)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._mark
        self._mark = now

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"steps": self.steps, "samples": self.samples, "seconds": self._seconds}))


class Measured(NamedTuple):
    """A truth that was written."""

    steps: int
    samples: int
    seconds: dict[str, float]


def read(path: Path) -> Measured:
    return Measured(**json.loads(path.read_text()))


def differences(truth: Measured, reports: Reports, *phases: str) -> list[str]:
    """List phases whose report differs; by default checks all measured phases."""
    newest = reports.newest
    found = []
    if (steps := newest.gauges["step"]) != truth.steps:
        found.append(f"{truth.steps} steps, reported {steps:g}")
    if (samples := newest.counters.get("samples", 0.0)) != truth.samples:
        found.append(f"{truth.samples} samples, reported {samples:g}")
    for phase in phases or truth.seconds:
        seconds, shown = truth.seconds[phase], reports.seconds(phase)
        if abs(seconds - shown) > _SECONDS:
            found.append(f"{phase} {seconds:.3f} s, reported {shown:.3f} s")
    return found
