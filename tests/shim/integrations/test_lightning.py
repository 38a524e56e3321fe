from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.integrations import truth
from tests.shim.integrations.trainings import Reports, assert_phases_are_the_time, held, read

pytestmark = pytest.mark.slow(30)


@pytest.fixture(
    scope="module", params=["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.nightly)]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = request.param.partition(".")[0]
    variables = {"TEST_LIGHTNING": request.param}
    return held(("torch", package), "lightning_trainings", tmp_path_factory.mktemp(package), variables)


@pytest.fixture
def accumulating(folder: Path) -> Reports:
    return read(folder, "accumulating")


def test_accumulated_batches_are_one_step(accumulating: Reports) -> None:
    newest = accumulating.newest
    assert accumulating.steps == 8
    assert {newest.phases[phase].occurrences for phase in ("host_copy", "forward", "backward")} == {16}
    assert newest.phases["data_wait"].occurrences == 18  # each batch, and the start of each epoch's loader
    assert newest.phases["optimizer"].occurrences == 8


def test_phases_are_the_time(accumulating: Reports) -> None:
    assert_phases_are_the_time(accumulating)


def test_each_phase_has_its_own_time(accumulating: Reports) -> None:
    assert accumulating.seconds("data_wait") >= 32 * 0.005
    assert accumulating.seconds("forward") >= 16 * 0.01


def test_the_report_is_what_the_training_measured_itself(folder: Path) -> None:
    reports = read(folder, "measured")
    measured = truth.read(folder / "measured.truth")
    assert (measured.steps, measured.samples) == (6, 66)
    assert truth.differences(measured, reports) == []
    assert (reports.occurrences("evaluation"), reports.occurrences("checkpoint")) == (4, 3)
    assert_phases_are_the_time(reports)


def test_the_sanity_check_is_evaluation_before_the_loop(accumulating: Reports) -> None:
    """Two batches before the training, and all eight after each epoch."""
    assert accumulating.occurrences("evaluation") == 3
    assert accumulating.seconds("evaluation") >= 18 * 0.02
    evaluating = next(report for report in accumulating if report.activity == "evaluation")
    assert evaluating.first_step is None


def test_a_save_is_an_activity(accumulating: Reports) -> None:
    assert "checkpoint" in accumulating.activities
    assert accumulating.occurrences("checkpoint") == 2


def test_an_evaluation_reports_after_each_of_its_batches(accumulating: Reports) -> None:
    assert len(accumulating.of_evaluations) >= 18


def test_the_trainers_values_are_reported(accumulating: Reports) -> None:
    newest = accumulating.newest
    assert newest.counters["samples"] == 32
    assert (newest.gauges["step"], newest.gauges["steps_planned"], newest.gauges["epoch"]) == (8, 8, 1)
    assert (newest.gauges["batch_size"], newest.gauges["learning_rate"]) == (4, 0.1)
    assert "loss" in newest.gauges
    assert (newest.info["framework"], newest.precision, newest.state) == ("pytorch", ("fp32",), "finished")


def test_without_a_logger_no_tensor_is_read_for_its_loss(folder: Path) -> None:
    assert "loss" not in read(folder, "resumed").newest.gauges


def test_a_second_fit_is_another_session_that_goes_on_counting(folder: Path) -> None:
    both = read(folder, "resumed")
    first, second = both.session(0), both.session(1)
    assert (first.steps, second.steps) == (8, 8)
    assert (first.newest.gauges["step"], second.newest.gauges["step"]) == (8, 16)
    assert first.newest.state == second.newest.state == "finished"


def test_loading_a_checkpoint_is_an_activity(folder: Path) -> None:
    both = read(folder, "resumed")
    assert both.session(0).occurrences("restore") == 0
    assert both.session(1).occurrences("restore") >= 1
    assert "restore" in both.session(1).activities


def test_two_optimizers_make_one_step(folder: Path) -> None:
    reports = read(folder, "two_optimizers")
    assert reports.steps == 16
    assert reports.occurrences("optimizer") == 32
    assert "steps_planned" not in reports.newest.gauges  # Lightning counts another kind of step here


def test_an_exception_is_a_failure(folder: Path) -> None:
    reports = read(folder, "failing")
    assert reports.newest.state == "failed"
    assert reports.steps == 3
    assert_phases_are_the_time(reports)
