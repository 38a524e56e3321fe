from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallscope.intake.runs import RunRegistry
from stallscope.protocol.vocabulary import STEP_BUCKET_COUNT
from stallscope.sampling.clock import ScriptedClock

MakeReport = Callable[..., bytes]
"""Makes a report's bytes; keyword arguments replace fields, `steps` says how many there were."""


@pytest.fixture(scope="session")
def make_report() -> MakeReport:
    def make(steps: int = 10, **changes: Any) -> bytes:
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

    return make


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a `proc` that shows every process: its first one is there."""
    (tmp_path / "root/proc/1").mkdir(parents=True)
    boot_id = tmp_path / "root/proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("boot-1\n")
    return tmp_path / "root"


SetProcess = Callable[..., None]


@pytest.fixture
def set_process(root: Path) -> SetProcess:
    """Writes `/proc/<pid>/stat`; a start of None takes the process away."""

    def write(pid: int, start: int | None = 5000, state: str = "S") -> None:
        folder = root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        if start is None:
            (folder / "stat").unlink()
            folder.rmdir()
        else:
            (folder / "stat").write_text(f"{pid} (py (th) on) {state} " + "0 " * 18 + f"{start} 0 0\n")

    return write


@pytest.fixture
def registry(clock: ScriptedClock, root: Path) -> RunRegistry:
    return RunRegistry(clock=clock, root=root)
