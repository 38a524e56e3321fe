"""Tests of the states between the boundaries of two steps of a PyTorch loop: each transition by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallscope.training.integrations.pytorch_cycle import BETWEEN_STEPS, IN_STEP, STEPPED, StepCycle

GENERATOR, CRITIC = 1, 2
EVENTS: dict[str, Callable[[StepCycle], object]] = {
    "fetched": lambda cycle: cycle.fetched(),
    "unfetched": lambda cycle: cycle.unfetched(1),
    "stepped": lambda cycle: cycle.stepped(GENERATOR),
    "step by hand": lambda cycle: cycle.step_by_hand(),
    "end": lambda cycle: cycle.end(),
    "use again": lambda cycle: cycle.use_again(1),
}
TRANSITIONS: dict[str, tuple[str, str, str]] = {
    # event: the state after it, from BETWEEN_STEPS, IN_STEP and STEPPED
    "fetched": (IN_STEP, IN_STEP, STEPPED),
    "unfetched": (BETWEEN_STEPS, BETWEEN_STEPS, STEPPED),
    "stepped": (BETWEEN_STEPS, STEPPED, STEPPED),
    "step by hand": (BETWEEN_STEPS, IN_STEP, STEPPED),
    "end": (BETWEEN_STEPS, BETWEEN_STEPS, BETWEEN_STEPS),
    "use again": (IN_STEP, IN_STEP, STEPPED),
}


def in_state(state: str) -> StepCycle:
    cycle = StepCycle()
    if state != BETWEEN_STEPS:
        cycle.fetched()
    if state == STEPPED:
        cycle.stepped(GENERATOR)
    assert cycle.state == state
    return cycle


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", [BETWEEN_STEPS, IN_STEP, STEPPED])
def test_an_event_leads_from_each_state_to_one_other(state: str, event: str) -> None:
    cycle = in_state(state)
    EVENTS[event](cycle)
    assert cycle.state == TRANSITIONS[event][(BETWEEN_STEPS, IN_STEP, STEPPED).index(state)]


def test_a_step_lasts_until_the_next_batch_is_requested() -> None:
    cycle = StepCycle()
    for _ in range(3):
        cycle.is_waiting = True
        cycle.fetched()
        assert not cycle.stepped(GENERATOR)
        cycle.end()


def test_a_loader_that_fetches_ahead_lets_the_last_optimizer_of_a_step_complete_it() -> None:
    cycle = StepCycle()
    cycle.fetched()
    cycle.stepped(CRITIC)
    cycle.stepped(GENERATOR)
    cycle.end()
    cycle.fetched()
    cycle.is_waiting = True  # the last batch was fetched before the step of the batch before
    assert not cycle.stepped(CRITIC)
    assert cycle.stepped(GENERATOR)


def test_an_optimizer_that_steps_again_begins_a_step_of_the_same_batch() -> None:
    cycle = StepCycle()
    cycle.fetched()
    assert not cycle.begins_with(GENERATOR)
    cycle.stepped(GENERATOR)
    assert cycle.begins_with(GENERATOR)
    assert not cycle.begins_with(CRITIC)  # of a generator's step


def test_after_many_steps_for_one_batch_another_optimizer_begins_a_step_of_its_own() -> None:
    cycle = StepCycle()
    cycle.fetched()
    begins = []
    for _ in range(20):
        cycle.stepped(GENERATOR)
        begins.append(cycle.begins_with(CRITIC))
        cycle.end()
        cycle.use_again(1)
    assert begins == [False] * 16 + [True] * 4
    cycle.fetched()
    cycle.stepped(GENERATOR)
    assert not cycle.begins_with(CRITIC)


def test_batches_of_an_evaluation_belong_to_no_step() -> None:
    cycle = StepCycle()
    for _ in range(3):
        cycle.fetched()
    cycle.unfetched(2)
    assert cycle.state == IN_STEP
    cycle.unfetched(2)
    assert (cycle.state, cycle.batches) == (BETWEEN_STEPS, 0)


def test_a_backward_pass_or_an_evaluation_follows_the_calls_of_modules() -> None:
    cycle = StepCycle()
    has_called = []
    for follows in (cycle.begin_backward, cycle.drop_forward):
        cycle.forwards += 1
        has_called.append(cycle.has_called)
        follows()
        has_called.append(cycle.has_called)
    assert has_called == [True, False, True, False]
    assert cycle.backwards == 1


def test_a_call_without_gradients_is_dropped_unless_it_follows_one_with_gradients() -> None:
    cycle = StepCycle()
    for has_called in (False, True):
        cycle.drop_next_forward()
        cycle.forwards += 1
        assert cycle.has_called == has_called
        cycle.forwards += 1
