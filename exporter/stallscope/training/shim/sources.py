"""Types of what a run measures by. Only the type checker imports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Clock(Protocol):
    """The clock of a run; the `time` module is one."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def time(self) -> float:
        """Unix time in seconds."""


class Probe(Protocol):
    """Source of process metrics for a run."""

    def read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return counters and gauges, named as in `protocol.measurements`; called for each report."""

    def close(self) -> None:
        """Called when the run ends."""
