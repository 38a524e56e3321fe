"""Legal reports that take as much of the exporter's memory as 32 KiB can."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.vocabulary import (
    INFO_KEYS,
    MAX_BYTES,
    MAX_DROP_CAUSES,
    MAX_GPUS,
    MAX_LABEL_LENGTH,
    MAX_PHASES,
    MAX_VALUES,
    PRECISIONS,
    STEP_BUCKET_COUNT,
)

_WIDE = "\U00020000"
"""One character beyond the basic plane: CPython stores each character of a string that has one in four bytes."""


def _plain(number: int) -> str:
    return f"{number:03}"


def _wide(number: int) -> str:
    return f"{number:03}" + _WIDE


def _long(number: int) -> str:
    return f"{number:03}".ljust(48, "x") + _WIDE


def _quotes(number: int) -> str:
    return f"{number:03}".ljust(24, '"')


def _report(run: str, rank: int, sequence: int, name: Callable[[int], str], info: str) -> bytes:
    document: dict[str, Any] = {
        "version": 1,
        "run": run,
        "rank": rank,
        "session": f"{run[:16]}{rank}",
        "sequence": sequence,
        "pid": 1,
        "start": 1.6e9,
        "sent": 1.6e9,
        "state": "running",
        "activity": "training",
        "info": {key: info for key in INFO_KEYS if key != "job_class"},
        "gpus": [{"gpu": _plain(number), "uuid": name(number)} for number in range(MAX_GPUS)],
        "first_step": 1.6e9,
        "last_step": 1.6e9,
        "step_seconds": {"counts": [1] * STEP_BUCKET_COUNT, "sum": 12345.678, "count": STEP_BUCKET_COUNT},
        "phases": {
            name(number): {"seconds": 1234.567, "occurrences": 1, "max": 1.25, "gpu_seconds": 1.5}
            for number in range(MAX_PHASES)
        },
        "counters": dict.fromkeys(COUNTERS, 1234.567),
        "gauges": dict.fromkeys(GAUGES, 1234.567),
        "values": {name(number): 1234.567 for number in range(MAX_VALUES)},
        "precision": list(PRECISIONS),
        "dropped": {name(number): 1234.567 for number in range(MAX_DROP_CAUSES)},
    }
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    assert len(data) <= MAX_BYTES, len(data)
    return data


def many_series(run: str, rank: int = 0, sequence: int = 1) -> bytes:
    """Return a report with as many series as it may have, in plain text."""
    return _report(run, rank, sequence, _plain, "x")


def wide_names(run: str, rank: int = 0, sequence: int = 1) -> bytes:
    """Return the same with a run name of the greatest length in which each character takes four bytes."""
    return _report(run.ljust(MAX_LABEL_LENGTH - 1, "r") + _WIDE, rank, sequence, _wide, "x" * 127 + _WIDE)


def long_names(run: str, rank: int = 0, sequence: int = 1) -> bytes:
    """Return the same with long names of phases, values and GPUs as well."""
    return _report(run.ljust(MAX_LABEL_LENGTH - 1, "r") + _WIDE, rank, sequence, _long, "x" * 127 + _WIDE)


def escaped_names(run: str, rank: int = 0, sequence: int = 1) -> bytes:
    """Return the same with names that the page has to escape."""
    return _report(run.ljust(MAX_LABEL_LENGTH - 1, '"') + _WIDE, rank, sequence, _quotes, '"' * 127 + _WIDE)


def wide_everywhere(run: str, rank: int = 0, sequence: int = 1) -> bytes:
    """Return the same with names of wide characters alone, which take four bytes on the page as well."""
    return _report(f"{run:_<10}" + 118 * _WIDE, rank, sequence, lambda number: _wide(number) + 5 * _WIDE, 128 * _WIDE)


SHAPES = (many_series, wide_names, long_names, escaped_names, wide_everywhere)
