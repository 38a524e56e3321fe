"""States of a watched PyTorch loop, and of the observers that replace one another: each transition by name.

Run in a process of their own by `test_pytorch.py`. The states of steps and of evaluations alone are tested by
`test_pytorch_cycle.py` and `test_pytorch_evaluation.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations import pytorch
from stallscope.training.integrations.pytorch_cost import TIMING_BEGINS, TIMING_ENDS, TimedLoop
from stallscope.training.integrations.pytorch_cycle import BETWEEN_STEPS, IN_STEP, STEPPED
from stallscope.training.integrations.pytorch_evaluation import EVALUATING
from stallscope.training.integrations.pytorch_loop import Loop
from stallscope.training.integrations.pytorch_observers import (
    CLOSED,
    NOTING,
    PROCESSING,
    TIMED_NOTING,
    TIMED_PROCESSING,
    Observers,
)
from stallscope.training.integrations.pytorch_steady import STEPS_DIFFER, STEPS_REPEAT, SteadyLoop
from tests.shim.conftest import Desk
from tests.shim.integrations.pytorch_loops import Parts, Samples

pytestmark = pytest.mark.usefixtures("strict")

WAITING = "waiting for data"


def watched() -> Loop:
    assert pytorch._loop is not None
    return pytorch._loop


def state() -> str:
    loop = watched().state
    if loop.evaluations.state == EVALUATING:
        return EVALUATING
    return WAITING if loop.wait.opened else loop.cycle.state


class WatchedSamples(Samples):
    """Samples that note the state of the loop while it waits for them."""

    def __init__(self, clock: ScriptedClock, length: int) -> None:
        super().__init__(clock, length)
        self.states: list[str] = []

    def __getitem__(self, index: int) -> Any:
        self.states.append(state())
        return super().__getitem__(index)


class Program(Parts):
    """A program that has trained for four steps."""

    def __init__(self, clock: ScriptedClock) -> None:
        super().__init__(clock)
        self.samples = WatchedSamples(clock, 8)
        self.contexts = contextlib.ExitStack()
        for batch in self.loader:
            self.train(batch)
        self.batches = iter(DataLoader(self.samples, batch_size=2))
        self.batch = torch.ones(2, 4), torch.zeros(2, 2)

    def fetch(self) -> None:
        self.batch = next(self.batches)

    def fetch_from_an_empty_loader(self) -> None:
        assert not list(DataLoader(Samples(self.clock, 0), batch_size=2))

    def call(self) -> None:
        self.model(self.batch[0])

    def compute_gradients(self) -> None:
        with torch.enable_grad():
            self.train(self.batch, step=False)

    def evaluate_model(self) -> None:
        self.model.eval()
        self.contexts.enter_context(torch.no_grad())
        self.call()

    def leave_contexts(self) -> None:
        self.contexts.enter_context(torch.no_grad())
        self.contexts.close()

    def enter(self, wanted: str) -> None:
        if wanted in (IN_STEP, STEPPED):
            self.fetch()
        if wanted == STEPPED:
            self.train(self.batch)
        if wanted == EVALUATING:
            self.evaluate_model()
        assert state() == wanted
        self.samples.states.clear()


@pytest.fixture
def program(desk: Desk, clock: ScriptedClock) -> Iterator[Program]:
    pytorch.watch(run=SimulatedRun("job", clock=clock, sender=desk))
    made = Program(clock)
    with made.contexts:
        yield made


EVENTS: dict[str, Callable[[Program], object]] = {
    "batch": Program.fetch,
    "end of a pass": Program.fetch_from_an_empty_loader,
    "call of a module": Program.call,
    "call of a module that evaluates": Program.evaluate_model,
    "gradients": Program.compute_gradients,
    "step of an optimizer": lambda program: program.optimizer.step(),
    "gradients enabled again": Program.leave_contexts,
    "training mode": lambda program: program.model.train(),
}
STATES = (BETWEEN_STEPS, IN_STEP, STEPPED, EVALUATING)
TRANSITIONS: dict[str, tuple[str, str, str, str]] = {
    # event: the state after it, from each of STATES
    "batch": (IN_STEP, IN_STEP, IN_STEP, EVALUATING),
    "end of a pass": (BETWEEN_STEPS, IN_STEP, BETWEEN_STEPS, EVALUATING),
    "call of a module": (BETWEEN_STEPS, IN_STEP, STEPPED, EVALUATING),
    "call of a module that evaluates": (EVALUATING, IN_STEP, EVALUATING, EVALUATING),
    "gradients": (BETWEEN_STEPS, IN_STEP, STEPPED, BETWEEN_STEPS),
    "step of an optimizer": (BETWEEN_STEPS, STEPPED, STEPPED, BETWEEN_STEPS),
    "gradients enabled again": (BETWEEN_STEPS, IN_STEP, STEPPED, BETWEEN_STEPS),
    "training mode": (BETWEEN_STEPS, IN_STEP, STEPPED, EVALUATING),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("before", STATES)
def test_an_event_of_the_program_leads_from_each_state_to_one_other(before: str, event: str, program: Program) -> None:
    program.enter(before)
    EVENTS[event](program)
    assert state() == TRANSITIONS[event][STATES.index(before)]


@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [(BETWEEN_STEPS, WAITING), (IN_STEP, WAITING), (STEPPED, WAITING), (EVALUATING, EVALUATING)],
)
def test_a_loop_waits_for_the_batches_of_its_training(before: str, meanwhile: str, program: Program) -> None:
    program.enter(before)
    program.fetch()
    assert program.samples.states == [meanwhile, meanwhile]


OBSERVER_STATES = (PROCESSING, NOTING, TIMED_PROCESSING, TIMED_NOTING, CLOSED)
OBSERVER_TRANSITIONS: dict[str, tuple[str, str, str, str, str]] = {
    # event: the state after it, from each of OBSERVER_STATES
    STEPS_REPEAT: (NOTING, NOTING, NOTING, TIMED_NOTING, CLOSED),
    STEPS_DIFFER: (PROCESSING, PROCESSING, TIMED_PROCESSING, PROCESSING, CLOSED),
    TIMING_BEGINS: (TIMED_PROCESSING, TIMED_NOTING, TIMED_PROCESSING, TIMED_NOTING, CLOSED),
    TIMING_ENDS: (PROCESSING, NOTING, PROCESSING, NOTING, CLOSED),
}
OBSERVER_TYPES: dict[str, type] = {
    PROCESSING: Loop,
    NOTING: SteadyLoop,
    TIMED_PROCESSING: TimedLoop,
    TIMED_NOTING: TimedLoop,
}
"""By state; none once another loop is observed."""


@pytest.fixture
def timed_run(desk: Desk, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch) -> stallscope.Run:
    monkeypatch.setattr(SimulatedRun, "is_scripted", False)  # else no steps are timed
    return SimulatedRun("job", clock=clock, sender=desk, interval=1e6)


def observer() -> object:
    assert pytorch._patches is not None
    return pytorch._patches.loop


@pytest.mark.parametrize("event", OBSERVER_TRANSITIONS)
@pytest.mark.parametrize("before", OBSERVER_STATES)
def test_an_event_leads_from_each_observer_to_one_other(before: str, event: str, timed_run: stallscope.Run) -> None:
    pytorch.watch(run=timed_run)
    observers: Observers = watched()._observers
    observers.change(TIMING_ENDS)
    if before in (NOTING, TIMED_NOTING):
        observers.change(STEPS_REPEAT)
    if before in (TIMED_PROCESSING, TIMED_NOTING):
        observers.change(TIMING_BEGINS)
    if before == CLOSED:
        observers.close()
    assert observers.state == before
    last = observer()
    observers.change(event)
    after = OBSERVER_TRANSITIONS[event][OBSERVER_STATES.index(before)]
    assert observers.state == after
    assert type(observer()) is OBSERVER_TYPES.get(after, type(last))


def test_a_training_passes_through_the_observers(timed_run: stallscope.Run, clock: ScriptedClock) -> None:
    pytorch.watch(run=timed_run)
    parts = Parts(clock)
    observers: Observers = watched()._observers
    states = [observers.state]
    for number, batch in enumerate(DataLoader(Samples(clock, 120), batch_size=2)):
        parts.train(batch)
        if number == 20:
            timed_run.timeline.publish(clock.monotonic())
        if number == 40:
            torch.autograd.grad(parts.model.layer.weight.sum(), parts.model.layer.weight)
        if observers.state != states[-1]:
            states.append(observers.state)
    assert states == [TIMED_PROCESSING, NOTING, TIMED_NOTING, NOTING, PROCESSING, NOTING]
    pytorch.unwatch()
    assert observers.state == CLOSED
