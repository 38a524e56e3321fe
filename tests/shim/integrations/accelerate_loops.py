"""Real loops under Accelerate, watched; run by `test_pytorch.py` in a process of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations.accelerate import StallscopeTracker
from tests.shim.conftest import Desk
from tests.shim.integrations.pytorch_loops import FETCH, LastReport, Samples

pytestmark = pytest.mark.filterwarnings("ignore")  # Accelerate's and PyTorch's of each other


@pytest.fixture(autouse=True)
def own_state(strict: None) -> Iterator[None]:
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    logging.getLogger("accelerate").handlers.clear()


@pytest.fixture
def run(desk: Desk, clock: ScriptedClock) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=desk)


def train(accelerator: Any, clock: ScriptedClock, batches: int = 8) -> None:
    model = torch.nn.Linear(4, 2)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model,
        (optimizer := torch.optim.SGD(model.parameters(), lr=0.1)),
        DataLoader(Samples(clock, length=2 * batches), batch_size=2),
        torch.optim.lr_scheduler.ConstantLR(optimizer),
    )
    for inputs, _ in loader:
        with accelerator.accumulate(model):
            loss = model(inputs).sum()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.log({"loss": 0.5, "accuracy": 0.75, "lr": 0.125, "tensor": loss, "note": "words"})


def test_accumulated_batches_of_a_prepared_loader_make_one_step(
    run: stallscope.Run, desk: Desk, clock: ScriptedClock
) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, log_with=StallscopeTracker(run))
    accelerator.init_trackers("project")
    train(accelerator, clock)
    reported = LastReport(run, desk)
    assert reported.steps == 2
    assert reported["data_wait"] == pytest.approx(16 * FETCH)
    assert reported.counters["samples"] == 16
    assert reported.phase("optimizer").occurrences == 2
    assert reported.phase("backward").occurrences == 8


def test_numbers_that_are_logged_are_reported(run: stallscope.Run, desk: Desk, clock: ScriptedClock) -> None:
    accelerator = Accelerator(cpu=True, log_with=StallscopeTracker(run))
    accelerator.init_trackers("project", config={"depth": 3})
    train(accelerator, clock)
    accelerator.end_training()
    reported = desk.newest
    assert (reported.gauges["loss"], reported.gauges["learning_rate"], reported.values) == (
        0.5,
        0.125,
        {"accuracy": 0.75},
    )
    assert reported.state == "finished"
    assert accelerator.get_tracker("stallscope", unwrap=True) is run


def test_a_tracker_that_was_not_started_does_nothing() -> None:
    tracker = StallscopeTracker("job")
    tracker.log({"loss": 1.0})
    tracker.finish()
    assert tracker.tracker is None
