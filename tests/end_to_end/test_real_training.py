"""Cause and effect: real PyTorch training under the real shim, with faults really injected, each told by its alert.

Exporter, Prometheus with the bundle's rules and Alertmanager with its routes are real, and so are processors, disk and
processes. GPUs are simulated and follow what the training reports. Time runs thirty times as fast for the rules, so
that five minutes take ten seconds. Faults that leave the machine alone happen side by side, each to a run of its own;
those that take all of its processors or its disk follow one after the other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.end_to_end.trainers import Trainers, Training
from tests.end_to_end.training_stack import TrainingStack
from tests.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE = 90.0
"""Seconds until a verdict or an alert must be there; a calm machine needs a third of it."""


class Workshop:
    """The servers, and the runs that train."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = TrainingStack(folder)
        self.trainers = Trainers(self.stack.address, folder / "trainers.log")
        self.processes: dict[tuple[str, int], int] = {}

    def start(self, training: Training) -> None:
        self.processes[training.run, training.rank] = self.trainers.start(training)

    def signal(self, run: str, number: int, rank: int = 0) -> None:
        os.kill(self.processes[run, rank], number)

    def close(self) -> None:
        self.trainers.close()
        self.stack.close()

    def steps(self, run: str) -> float:
        return min(self.stack.values(f'stallscope_training_step_seconds_count{{run="{run}"}}', "rank").values())

    def await_outcome(self, run: str, cause: str, alert: str) -> None:
        """Wait for the run's verdict in Prometheus, and for its alert from Alertmanager."""
        stack = self.stack
        stack.wait_for(lambda: stack.verdict(run) == cause, PATIENCE, f"run {run} is not {cause}")
        told = stack.wait_for(lambda: stack.alert(alert, run), PATIENCE, f"there is no {alert} of run {run}")
        assert told["labels"]["cause"] == cause
        assert run in told["annotations"]["description"]
        assert "<" not in told["annotations"]["description"], "a template that failed"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: make frameworks")
    opened = Workshop(tmp_path_factory.mktemp("real"))
    try:
        opened.stack.wait_for(opened.stack.ready, PATIENCE, "data does not flow")
        start_all(opened)
        yield opened
    finally:
        opened.close()


def start_all(workshop: Workshop) -> None:
    workshop.start(Training("healthy", gpu=0))
    workshop.start(Training("few-workers", gpu=1, workers=0, waits=0.03))
    port = free_port()
    for rank in (0, 1):
        workshop.start(Training("stopped", gpu=2 + rank, rank=rank, world_size=2, master_port=port))
    workshop.start(Training("saturated", gpu=4, workers=4, burns=0.5, trigger=str(workshop.folder / "saturate")))
    workshop.stack.wait_for(lambda: workshop.steps("stopped") >= 50, PATIENCE, "nobody trains")
    workshop.signal("stopped", signal.SIGSTOP, rank=1)


def test_a_rank_that_is_stopped_stalls_its_run(workshop: Workshop) -> None:
    workshop.await_outcome("stopped", "stalled", "TrainingStalled")


def test_a_slow_transform_without_workers(workshop: Workshop) -> None:
    workshop.await_outcome("few-workers", "input_bound", "TrainingInputBound")


def test_a_run_beside_them_that_lacks_nothing_is_healthy_and_raises_no_alert(workshop: Workshop) -> None:
    stack = workshop.stack
    stack.wait_for(lambda: stack.verdict("healthy") == "healthy", PATIENCE, "the healthy run is not healthy")
    assert [alert for alert in stack.told() if alert["labels"].get("run") == "healthy"] == []


def test_a_transform_that_takes_all_processors(workshop: Workshop) -> None:
    stack = workshop.stack
    stack.wait_for(lambda: stack.verdict("saturated") == "healthy", PATIENCE, "the fault comes too early")
    for run in ("healthy", "few-workers", "stopped"):
        workshop.signal(run, signal.SIGKILL)
    (workshop.folder / "saturate").touch()
    workshop.await_outcome("saturated", "input_cpu_saturated", "TrainingInputCpuSaturated")
