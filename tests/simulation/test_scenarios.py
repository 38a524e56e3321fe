from __future__ import annotations

import pytest

from stallscope.lab.simulation.scenarios import SCENARIOS, GpuLoss, LoadChange, Scenario, scenario
from stallscope.model.catalogue.causes import CAUSES


@pytest.mark.parametrize("story", SCENARIOS.values(), ids=SCENARIOS)
def test_every_scenario_says_what_it_is_and_what_ought_to_be_found(story: Scenario) -> None:
    assert story.description.endswith(".")
    assert story.expected
    assert scenario(story.name) is story


def test_every_cause_has_a_scenario() -> None:
    assert CAUSES.keys() <= {story.expected for story in SCENARIOS.values()}


def test_the_scenarios_of_the_first_verdicts_are_there() -> None:
    assert {"healthy", "input_cpu_saturated", "thermal_throttle", "gpu_lost", "stalled", "underused"} <= set(SCENARIOS)


def test_an_unknown_name_is_refused_with_the_nearest_one_and_where_to_find_the_others() -> None:
    with pytest.raises(ValueError, match=r"'thermal_trottle'; did you mean thermal_throttle\?; `stallscope up --list"):
        scenario("thermal_trottle")


def test_a_name_near_to_nothing_gets_no_guess() -> None:
    with pytest.raises(ValueError, match=r"unknown scenario 'xyzzy'; `stallscope up"):
        scenario("xyzzy")


def test_the_onset_can_be_moved() -> None:
    assert scenario("gpu_lost", onset=5.0).onset == 5.0
    assert scenario("gpu_lost").onset != 5.0


@pytest.mark.parametrize("onset", [-1.0, float("nan"), float("inf")])
def test_an_onset_that_is_no_time_is_refused(onset: float) -> None:
    with pytest.raises(ValueError, match="onset of gpu_lost"):
        scenario("gpu_lost", onset=onset)


def test_only_a_fault_that_shows_on_the_host_has_a_simulated_host() -> None:
    assert scenario("input_cpu_saturated").simulates_host
    assert not scenario("thermal_throttle").simulates_host
    assert not scenario("healthy").simulates_host


def test_faulty_gpus_are_those_of_the_fault() -> None:
    assert isinstance(scenario("gpu_lost").fault, GpuLoss)
    assert len(scenario("gpu_lost").faulty_gpus) == 1
    assert isinstance(scenario("input_cpu_saturated").fault, LoadChange)
    assert scenario("input_cpu_saturated").faulty_gpus == ()
