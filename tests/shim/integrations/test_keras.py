from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.integrations import truth
from tests.shim.integrations.trainings import Reports, assert_phases_are_the_time, held, read, reported

pytestmark = pytest.mark.slow(100)


@pytest.fixture(
    scope="module", params=["torch", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("jax", "tensorflow"))]
)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return held(("keras", backend), "keras_trainings", tmp_path_factory.mktemp(backend), {"KERAS_BACKEND": backend})


@pytest.fixture
def fitted(folder: Path) -> Reports:
    return read(folder, "fitted")


def test_each_batch_is_a_step(fitted: Reports) -> None:
    assert fitted.newest.gauges["step"] == fitted.newest.gauges["steps_planned"] == 18
    assert fitted.newest.state == "finished"


def test_phases_are_the_time(fitted: Reports) -> None:
    assert_phases_are_the_time(fitted)


def test_the_wait_for_batches_is_measured_where_keras_fetches_them(fitted: Reports, backend: str) -> None:
    if backend == "tensorflow":
        assert fitted.occurrences("data_wait") == 0
    else:
        assert fitted.seconds("data_wait") >= 18 * 0.01


def test_samples_are_counted_by_what_batches_hold(fitted: Reports) -> None:
    assert fitted.newest.counters["samples"] == 3 * 22
    assert fitted.newest.gauges["batch_size"] == 4


def test_the_batch_size_is_that_of_full_batches_also_where_a_partial_one_comes_first(folder: Path) -> None:
    newest = read(folder, "partial_first").newest
    assert newest.counters["samples"] == 2 * 22
    assert newest.gauges["batch_size"] == 4


def test_an_evaluation_reports_after_each_of_its_batches(fitted: Reports) -> None:
    assert len(fitted.of_evaluations) >= 12


def test_validation_and_saving_are_activities(fitted: Reports) -> None:
    assert fitted.activities >= {"initialization", "training", "evaluation", "checkpoint"}
    assert (fitted.occurrences("evaluation"), fitted.occurrences("checkpoint")) == (3, 3)


def test_values_that_keras_logs_are_reported(fitted: Reports, backend: str) -> None:
    newest = fitted.newest
    assert "loss" in newest.gauges
    assert "val_loss" in newest.values
    assert newest.gauges["epoch"] == 2
    assert newest.info["framework"] == {"torch": "pytorch"}.get(backend, backend)
    assert newest.precision == ("fp32",)


def test_accumulated_batches_are_one_step(folder: Path) -> None:
    reports = read(folder, "accumulating")
    assert reports.newest.gauges["step"] == reports.newest.gauges["steps_planned"] == 6
    assert_phases_are_the_time(reports)


def test_an_exception_is_a_failure_and_the_next_fit_a_session_of_its_own(folder: Path) -> None:
    both = read(folder, "failing")
    assert both.session(0).newest.state == "failed"
    assert both.session(1).newest.state == "finished"
    assert both.session(1).newest.gauges["step"] == 6


def test_with_the_callback_the_report_is_what_the_program_measured_itself(folder: Path) -> None:
    reports = read(folder, "measured")
    assert truth.differences(truth.read(folder / "measured.truth"), reports) == []
    assert_phases_are_the_time(reports)


def test_an_unchanged_program_is_measured_the_same(tmp_path: Path) -> None:
    """With the backend that has hooks of its own under the command."""
    reports = reported(("keras", "torch"), "keras_program", tmp_path, {"KERAS_BACKEND": "torch"})
    assert truth.differences(truth.read(tmp_path / "truth.json"), reports) == []
    assert reports.occurrences("evaluation") == 3
    assert reports.newest.gauges["epoch"] == 0  # of the second fit
    assert reports.newest.state == "finished"
    assert len({report.session for report in reports}) == 1
    assert_phases_are_the_time(reports)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["tensorflow"], indirect=True, scope="module")
def test_the_bridge_to_tensorboard_receives_from_the_real_tf_summary(folder: Path) -> None:
    assert read(folder, "tf_summary").newest.values == {"accuracy": 0.75}
