from __future__ import annotations

import statistics
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.training.shim.slow_steps import FEWEST, WARM_UP, WINDOW, SlowSteps


def steps_of(*durations: float) -> SlowSteps:
    slow = SlowSteps(deque(maxlen=4096))
    slow.durations.extend(durations)
    slow.judge()
    return slow


USUAL = (1.0,) * (WARM_UP + FEWEST)


def test_a_step_far_over_the_median_is_slow_and_its_excess_lost() -> None:
    slow = steps_of(*USUAL, 3.0)
    assert (slow.count, slow.excess) == (1, 2.0)


def test_a_step_within_a_tenth_of_the_median_is_not_slow() -> None:
    assert steps_of(*USUAL, 1.09).count == 0


def test_ordinary_spread_is_not_slow() -> None:
    assert steps_of(*[1.0 + 0.1 * (number % 5) for number in range(64)]).count == 0


def test_the_warm_up_is_not_judged() -> None:
    assert steps_of(90.0, 30.0, *USUAL).count == 0


def test_a_handful_of_steps_says_nothing() -> None:
    assert steps_of(*[1.0] * WARM_UP, 1.0, 50.0).count == 0


def test_each_step_is_judged_once() -> None:
    slow = steps_of(*USUAL, 3.0)
    slow.judge()
    slow.durations.extend([1.0, 4.0])
    slow.judge()
    assert slow.count == 2
    assert slow.excess == pytest.approx(5.0)


def test_a_lasting_change_becomes_the_usual() -> None:
    slow = steps_of(*USUAL)
    for _ in range(400):
        slow.durations.append(2.0)
        slow.judge()
    assert slow.count < 128


def lengths(number: int) -> float:
    """Return the tokens of a step in buckets of 512, 1024 and 2048: mostly short ones."""
    return (512.0, 512.0, 1024.0, 512.0, 2048.0)[number % 5]


def bucketed(*more: tuple[float, float, float], fixed: float = 0.0) -> tuple[tuple[float, float, float], ...]:
    """Return steps whose length follows their tokens, besides a fixed part, and the given ones after them."""
    several = ((fixed + lengths(number) / 512, lengths(number), 8.0) for number in range(100))
    return (*several, *more)


def test_long_sequences_are_not_slow_where_tokens_are_reported() -> None:
    slow = SlowSteps(deque(maxlen=4096))
    slow.durations.extend(bucketed())
    slow.judge()
    assert (slow.count, slow.excess) == (0, 0.0)


def test_long_sequences_are_slow_where_no_tokens_are_reported() -> None:
    assert steps_of(*(duration for duration, _, _ in bucketed())).count > 20


def test_short_sequences_with_a_fixed_cost_are_not_slow() -> None:
    slow = SlowSteps(deque(maxlen=4096))
    slow.durations.extend(bucketed(*[(1.0, 64.0, 8.0)] * 5, fixed=0.5))
    slow.judge()
    assert slow.count == 0


def test_a_step_that_is_slow_for_its_tokens_is_slow() -> None:
    slow = SlowSteps(deque(maxlen=4096))
    slow.durations.extend(bucketed((9.0, 2048.0, 8.0), (4.0, 2048.0, 8.0), (3.0, 512.0, 8.0)))
    slow.judge()
    assert slow.count == 2
    assert slow.excess == pytest.approx(5.0 + 2.0)


def test_samples_count_where_tokens_are_reported_in_some_steps_only() -> None:
    slow = SlowSteps(deque(maxlen=4096))
    slow.durations.extend(
        (float(number % 3 + 1), 512.0 * (number % 10 == 0), 8.0 * (number % 3 + 1)) for number in range(90)
    )
    slow.judge()
    assert slow.count == 0
    slow.durations.append((9.0, 512.0, 24.0))
    slow.judge()
    assert slow.count == 1


def test_a_larger_batch_by_plan_is_not_slow_and_a_slow_step_of_it_is() -> None:
    slow = SlowSteps(deque(maxlen=4096))
    slow.plan(0.0, 64.0)
    slow.durations.extend([1.0] * 60)
    slow.judge()
    slow.durations.extend([1.0] * 5)
    slow.plan(0.0, 128.0)
    slow.durations.extend([2.0] * 20)
    slow.judge()
    assert slow.count == 0
    slow.durations.append(6.0)
    slow.judge()
    assert slow.count == 1


def test_more_steps_than_the_window_holds_may_follow_a_change_of_the_plan_before_the_next_report() -> None:
    slow = SlowSteps(deque(maxlen=4096))
    slow.plan(0.0, 64.0)
    slow.durations.extend([1.0] * 60)
    slow.judge()
    slow.durations.extend([1.0] * 5)
    slow.plan(0.0, 8.0)
    slow.durations.extend([0.125] * (WINDOW + 20))
    slow.judge()
    assert slow.count == 0
    slow.durations.append(0.6)
    slow.judge()
    assert slow.count == 1


def test_more_steps_without_tokens_than_the_window_holds_may_follow_steps_with_tokens() -> None:
    slow = steps_of(*USUAL)
    slow.durations.extend([(1.0, 512.0, 0.0)] * 3 + [1.0] * (WINDOW + 20))
    slow.judge()
    assert slow.count == 0


@given(st.lists(st.floats(0.001, 10), min_size=WARM_UP + FEWEST, max_size=WARM_UP + WINDOW))
def test_slow_is_over_median_and_three_deviations(durations: list[float]) -> None:
    judged = durations[WARM_UP:]
    usual = statistics.median(judged)
    spread = statistics.median_low([abs(duration - usual) for duration in judged])
    slow = [d for d in judged if d - usual > 3 * spread * (1 + 1e-9) and d > 1.1 * usual * (1 + 1e-9)]
    perhaps = [d for d in judged if d - usual >= 3 * spread * (1 - 1e-9) and d >= 1.1 * usual * (1 - 1e-9)]
    assert len(slow) <= steps_of(*durations).count <= len(perhaps)
