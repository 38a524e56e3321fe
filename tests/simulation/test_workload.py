from __future__ import annotations

import pytest

from stallscope.lab.simulation.scenarios import SCENARIOS, Workload
from stallscope.lab.simulation.workload import EFFECTS, Step, StepGenerator

WORKLOAD = Workload(data_wait=0.02, host_copy=0.01, forward=0.2, backward=0.4, communication=0.05, optimizer=0.1)


def steps(seed: int, count: int = 50, slowdown: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> list[Step]:
    generator = StepGenerator(len(slowdown), seed)
    result: list[Step] = []
    for _ in range(count):
        result.append(generator.draw([WORKLOAD] * len(slowdown), result[-1].end if result else 0.0, slowdown))
    return result


def test_the_same_seed_draws_the_same_steps() -> None:
    assert steps(7) == steps(7)


def test_another_seed_draws_others() -> None:
    assert steps(7) != steps(8)


def test_phases_of_every_rank_sum_to_the_step_that_all_ranks_share() -> None:
    for step in steps(1):
        for phases in step.ranks:
            assert sum(seconds for _phase, seconds in phases) == pytest.approx(step.end - step.start)


def test_phases_come_in_the_order_of_a_training_step() -> None:
    for phases in steps(1)[0].ranks:
        assert [phase for phase, _seconds in phases] == list(EFFECTS)


def test_means_are_those_of_the_workload() -> None:
    drawn = steps(1, count=500)
    forward = sum(dict(step.ranks[0])["forward"] for step in drawn) / len(drawn)
    assert forward == pytest.approx(WORKLOAD.forward, rel=0.02)


def test_the_slowest_rank_decides_and_the_others_wait_in_communication() -> None:
    for step in steps(1, slowdown=(1.0, 2.0, 1.0, 1.0)):
        times = [dict(phases) for phases in step.ranks]
        assert times[1]["communication"] == min(rank["communication"] for rank in times)
        assert times[0]["communication"] - times[1]["communication"] > 0.4


def test_slow_clocks_do_not_slow_the_host() -> None:
    drawn = steps(1, count=300, slowdown=(1.0, 2.0, 1.0, 1.0))
    waits = [sum(dict(step.ranks[rank])["data_wait"] for step in drawn) for rank in (0, 1)]
    assert waits[1] == pytest.approx(waits[0], rel=0.02)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_phase_of_any_scenario_is_negative(name: str) -> None:
    drawn = StepGenerator(8, 3).draw([SCENARIOS[name].workload] * 8, 0.0, [1.0] * 8)
    assert all(seconds > 0 for phases in drawn.ranks for _phase, seconds in phases)
