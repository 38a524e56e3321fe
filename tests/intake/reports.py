"""Reports as a shim sends them."""

from __future__ import annotations

import json
from typing import Any

from stallscope.training.protocol.vocabulary import STEP_BUCKET_COUNT


def make_report(**changes: Any) -> bytes:
    """Return a report; the arguments replace fields, except `steps`, which is the number of steps made."""
    steps = changes.pop("steps", 10)
    document: dict[str, Any] = {
        "version": 1,
        "run": "resnet50",
        "rank": 0,
        "session": "first",
        "sequence": 1,
        "pid": 4242,
        "start": 1_700_000_000.0,
        "sent": 1_700_000_100.0,
        "state": "running",
        "activity": "training",
        "info": {"world_size": "8"},
        "gpus": [{"gpu": "0", "uuid": "GPU-0"}],
        "first_step": 1_700_000_005.0,
        "last_step": 1_700_000_099.0,
        "step_seconds": {"counts": [0] * (STEP_BUCKET_COUNT - 1) + [steps], "sum": steps * 2000.0, "count": steps},
        "phases": {"data_wait": {"seconds": 3.0, "occurrences": steps, "max": 0.5, "gpu_seconds": 2.0}},
        "counters": {"samples": 640.0},
        "gauges": {"loss": 0.25},
        "values": {"accuracy": 0.875},
        "precision": ["bf16"],
        "dropped": {"queue_full": 2},
    }
    return json.dumps({**document, **changes}).encode()
