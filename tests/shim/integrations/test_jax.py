from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.integrations import truth
from tests.shim.integrations.trainings import Reports, assert_phases_are_the_time, held, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return held(("jax",), "jax_trainings", tmp_path_factory.mktemp("jax"))


@pytest.fixture
def tracked(folder: Path) -> Reports:
    return read(folder, "tracked")


def test_each_call_is_a_step(tracked: Reports) -> None:
    newest = tracked.newest
    assert tracked.steps == 10
    assert (newest.gauges["step"], newest.gauges["steps_planned"]) == (10, 10)
    assert newest.counters["samples"] == 80
    assert (newest.info["framework"], newest.state) == ("jax", "finished")


def test_a_step_function_of_a_class_is_bound_as_without_us(folder: Path) -> None:
    assert read(folder, "in_a_class").newest.gauges["step"] == 5


def test_a_call_that_is_only_traced_is_no_step(folder: Path) -> None:
    assert read(folder, "traced").newest.gauges["step"] == 3


def test_phases_are_the_time(tracked: Reports) -> None:
    assert_phases_are_the_time(tracked)


def test_the_loader_is_waited_for(tracked: Reports) -> None:
    assert tracked.seconds("data_wait") >= 10 * 0.01


def test_the_report_is_what_the_training_measured_itself(folder: Path) -> None:
    reports = read(folder, "measured")
    measured = truth.read(folder / "measured.truth")
    assert (measured.steps, measured.samples) == (9, 66)
    assert truth.differences(measured, reports) == []
    assert (reports.newest.gauges["batch_size"], reports.newest.gauges["epoch"]) == (8, 2)
    assert_phases_are_the_time(reports)


def test_an_evaluation_is_an_activity(tracked: Reports) -> None:
    assert "evaluation" in tracked.activities


def test_the_first_call_which_compiles_is_initialization(tracked: Reports) -> None:
    assert tracked.occurrences("initialization") == 2
    assert tracked.seconds("initialization") >= 0.1


def test_device_time_is_measured_on_request(tracked: Reports, folder: Path) -> None:
    assert tracked.newest.values["device_step_seconds"] > 0
    assert "device_step_seconds" not in read(folder, "waiting_for_nothing").newest.values


def test_a_step_does_not_wait_for_the_device(folder: Path) -> None:
    assert read(folder, "waiting_for_nothing").newest.values["waited"] == 0


def test_compilations_that_interrupt_the_training_are_counted(folder: Path) -> None:
    reports = read(folder, "recompiling")
    assert reports.newest.counters["recompilations"] == 2
    assert reports.newest.gauges["step"] == 4  # of eight calls, two each


def test_an_exception_ends_the_users_run_as_failed(folder: Path) -> None:
    reports = read(folder, "failing")
    assert reports.newest.state == "failed"
    assert reports.newest.gauges["step"] == 2
