from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.shim.slow_steps import FEWEST, WARM_UP, WINDOW, SlowSteps


def steps_of(*durations: float) -> SlowSteps:
    slow = SlowSteps()
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


@given(st.lists(st.floats(0.001, 10), min_size=WARM_UP + FEWEST, max_size=WARM_UP + WINDOW))
def test_slow_is_over_median_and_three_deviations(durations: list[float]) -> None:
    judged = durations[WARM_UP:]
    usual = statistics.median(judged)
    spread = statistics.median_low([abs(duration - usual) for duration in judged])
    slow = [d for d in judged if d - usual > 3 * spread * (1 + 1e-9) and d > 1.1 * usual * (1 + 1e-9)]
    perhaps = [d for d in judged if d - usual >= 3 * spread * (1 - 1e-9) and d >= 1.1 * usual * (1 - 1e-9)]
    assert len(slow) <= steps_of(*durations).count <= len(perhaps)
