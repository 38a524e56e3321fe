"""Tests of the states in which a PyTorch loop trains, may evaluate, or evaluates: each transition by name."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import inf

import pytest

from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations.pytorch_evaluation import EVALUATING, SUSPECTED, TRAINING, Evaluations
from stallscope.training.shim.timeline import Timeline


class Batches:
    """An iterator of a loader."""


class Machine:
    """The states of a loop that has made a step, with a clock that the test sets."""

    def __init__(self, clock: ScriptedClock) -> None:
        self.clock = clock
        self.timeline = Timeline(clock.monotonic, lambda _: None, inf)
        self.timeline.begin_loop(clock.monotonic())
        self.calls: list[str] = []
        self.evaluations = Evaluations(
            self.timeline,
            self.timeline.phase("evaluation"),
            lambda: self.calls.append("close step"),
            lambda: self.calls.append("ended"),
        )

    def enter(self, state: str, *, in_context: bool = False) -> None:
        if state == SUSPECTED:
            self.evaluations.suspect()
        elif state == EVALUATING:
            self.evaluations.open(in_context=in_context)
        assert self.evaluations.state == state

    def seconds(self, phase: str) -> float:
        self.timeline.book(self.clock.monotonic())
        return self.timeline.phase(phase).seconds


@pytest.fixture
def machine() -> Machine:
    return Machine(ScriptedClock())


EVENTS: dict[str, Callable[[Evaluations], object]] = {
    "gradients off": lambda each: each.switch_gradients(off=True),
    "evaluation mode": lambda each: each.switch_mode(trains=False),
    "training mode": lambda each: each.switch_mode(trains=True),
    "suspect": lambda each: each.suspect(),
    "forget": lambda each: each.forget(),
    "open": lambda each: each.open(in_context=False),
    "end": lambda each: each.end(),
    "leave": lambda each: each.leave(),
    "report": lambda each: each.reported(),
}
TRANSITIONS: dict[str, tuple[str, str, str]] = {
    # event: the state after it, from TRAINING, SUSPECTED and EVALUATING
    "gradients off": (SUSPECTED, SUSPECTED, EVALUATING),
    "evaluation mode": (SUSPECTED, SUSPECTED, EVALUATING),
    "training mode": (TRAINING, TRAINING, TRAINING),
    "suspect": (SUSPECTED, SUSPECTED, EVALUATING),
    "forget": (TRAINING, TRAINING, EVALUATING),
    "open": (EVALUATING, EVALUATING, EVALUATING),
    "end": (TRAINING, SUSPECTED, TRAINING),
    "leave": (TRAINING, SUSPECTED, TRAINING),
    "report": (TRAINING, SUSPECTED, EVALUATING),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", [TRAINING, SUSPECTED, EVALUATING])
def test_an_event_leads_from_each_state_to_one_other(state: str, event: str, machine: Machine) -> None:
    machine.enter(state)
    EVENTS[event](machine.evaluations)
    after = TRANSITIONS[event][(TRAINING, SUSPECTED, EVALUATING).index(state)]
    assert machine.evaluations.state == after
    assert machine.timeline.phase("evaluation").opened == (after == EVALUATING)
    assert ("ended" in machine.calls) == (state == EVALUATING and after != EVALUATING)


@pytest.mark.parametrize(("event", "after"), [("end", TRAINING), ("leave", EVALUATING), ("training mode", EVALUATING)])
def test_an_evaluation_in_a_context_lasts_as_long_as_the_context(event: str, after: str, machine: Machine) -> None:
    machine.enter(EVALUATING, in_context=True)
    EVENTS[event](machine.evaluations)
    assert machine.evaluations.state == after


def test_a_context_that_ends_ends_its_evaluation(machine: Machine) -> None:
    evaluations = machine.evaluations
    evaluations.switch_gradients(off=True)
    evaluations.open(in_context=True)
    evaluations.switch_gradients(off=False)
    assert evaluations.state == TRAINING
    assert machine.calls == ["close step", "ended"]


def test_a_context_in_evaluation_mode_may_be_followed_by_another(machine: Machine) -> None:
    evaluations = machine.evaluations
    evaluations.switch_mode(trains=False)
    evaluations.switch_gradients(off=True)
    evaluations.open(in_context=True)
    evaluations.switch_gradients(off=False)
    assert evaluations.state == SUSPECTED
    machine.clock.advance(2)
    evaluations.open(in_context=True)
    machine.clock.advance(1)
    evaluations.end()
    assert machine.seconds("evaluation") == 3


def test_a_suspicion_ends_with_its_context_unless_a_mode_or_a_call_supports_it(machine: Machine) -> None:
    evaluations = machine.evaluations
    evaluations.switch_gradients(off=True)
    evaluations.switch_gradients(off=False)
    assert evaluations.state == TRAINING
    evaluations.switch_mode(trains=False)
    evaluations.switch_gradients(off=True)
    evaluations.switch_gradients(off=False)
    assert evaluations.state == SUSPECTED
    evaluations.forget()
    evaluations.suspect()
    evaluations.called = True
    evaluations.switch_gradients(off=True)
    evaluations.switch_gradients(off=False)
    assert evaluations.state == SUSPECTED


def test_no_evaluation_is_suspected_inside_of_a_phase(machine: Machine) -> None:
    with machine.timeline.phase("forward"):
        machine.evaluations.suspect()
        assert machine.evaluations.state == TRAINING


def test_time_since_the_suspicion_belongs_to_the_evaluation(machine: Machine) -> None:
    machine.clock.advance(1)
    machine.evaluations.suspect()
    held = [machine.timeline.held]
    machine.clock.advance(2)
    machine.evaluations.open(in_context=False)
    held.append(machine.timeline.held)
    machine.clock.advance(4)
    machine.evaluations.end()
    assert held == [True, False]
    assert (machine.seconds("other"), machine.seconds("evaluation")) == (1, 6)
    assert machine.timeline.phase("evaluation").occurrences == 1


def test_time_that_was_reported_is_not_moved(machine: Machine) -> None:
    machine.evaluations.suspect()
    machine.clock.advance(2)
    machine.evaluations.reported()
    machine.clock.advance(4)
    machine.evaluations.open(in_context=False)
    assert (machine.seconds("other"), machine.seconds("evaluation")) == (2, 4)


def test_calls_in_evaluation_mode_were_an_evaluation_once_a_module_trains_again(machine: Machine) -> None:
    evaluations = machine.evaluations
    evaluations.switch_mode(trains=False)
    evaluations.called = True
    machine.clock.advance(3)
    evaluations.note_call()
    machine.clock.advance(1)
    evaluations.switch_mode(trains=True)
    assert evaluations.state == TRAINING
    assert (machine.seconds("other"), machine.seconds("evaluation")) == (1, 3)


def test_an_evaluation_follows_its_iterator(machine: Machine) -> None:
    evaluations, iterator, dropped = machine.evaluations, Batches(), list[object]()
    evaluations.follow(iterator, dropped.append)
    assert not evaluations.is_from(iterator)  # there is no evaluation
    evaluations.open(in_context=False)
    lacking = [evaluations.lacks_iterator]
    evaluations.follow(iterator, dropped.append)
    lacking.append(evaluations.lacks_iterator)
    assert lacking == [True, False]
    assert evaluations.is_from(iterator)
    assert not evaluations.is_from(Batches())
    del iterator
    (reference,) = dropped
    assert isinstance(reference, weakref.ref)
    assert evaluations.follows(reference)
    evaluations.leave()
    assert evaluations.state == TRAINING
    assert not evaluations.follows(reference)


@pytest.mark.parametrize(
    ("in_context", "gradients", "goes_on"), [(True, False, True), (True, True, False), (False, True, True)]
)
def test_a_function_that_switches_gradients_on_ends_an_evaluation_in_a_context(
    in_context: bool, gradients: bool, goes_on: bool, machine: Machine
) -> None:
    assert not machine.evaluations.goes_on(gradients=gradients)
    machine.enter(EVALUATING, in_context=in_context)
    assert machine.evaluations.goes_on(gradients=gradients) is goes_on
    assert machine.evaluations.state == (EVALUATING if goes_on else TRAINING)
