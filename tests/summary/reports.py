"""Stored reports of ranks with given phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stallscope.tools.summary.measured import RankTime
from stallscope.training.protocol.report import Report, from_document

START = 1_700_000_000.0
PHASES = {"initialization": 5.0, "data_wait": 30.0, "forward": 20.0, "backward": 40.0, "other": 10.0}


def document(phases: Mapping[str, float] = PHASES, *, steps: int = 100, **changes: Any) -> dict[str, Any]:
    """Return a report; the steps take a second each."""
    return {
        "version": 1,
        "run": "job",
        "rank": 0,
        "session": "6f1c",
        "sequence": 7,
        "pid": 2**22 + 1,  # beyond the highest number of a process
        "start": START,
        "sent": START + sum(phases.values()),
        "state": "finished",
        "activity": "training",
        "info": {"user": "alice", "world_size": "1", "framework": "pytorch"},
        "phases": {name: {"seconds": seconds, "occurrences": 1, "max": 0.0} for name, seconds in phases.items()},
        "step_seconds": {"counts": [0] * 10 + [steps] + [0] * 9, "sum": float(steps), "count": steps},
        "gauges": {"step": steps},
        **changes,
    }


def report(phases: Mapping[str, float] = PHASES, **changes: Any) -> Report:
    """Return a report as the exporter reads it."""
    return from_document(document(phases, **changes))


def rank(phases: Mapping[str, float] = PHASES, **changes: Any) -> RankTime:
    """Return a rank whose first steps took no time."""
    return RankTime(report(phases, **changes), report({}, steps=0))
