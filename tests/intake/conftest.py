from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock


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
