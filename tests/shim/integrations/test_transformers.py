from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_exporter import Running
from tests.shim.integrations import truth
from tests.shim.integrations.trainings import Reports, assert_phases_are_the_time, held, read

pytestmark = pytest.mark.slow(30)

NEEDED = ("torch", "transformers", "accelerate")
SERIES = 'stallscope_training_step_seconds_count{run="to-the-exporter",rank="0"} '


@pytest.fixture(scope="module")
def exporter() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path may not be as long as pytest's
        socket = Path(folder) / "report.sock"
        running = Running(f"--report.unix-socket={socket}", "--report.expiry=1h")
        try:
            running.logged("url=")
            running.socket = f"unix://{socket}"  # type: ignore[attr-defined]
            yield running
        finally:
            running.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, exporter: Running) -> Path:
    variables = {"TEST_EXPORTER": exporter.socket}  # type: ignore[attr-defined]
    return held(
        NEEDED,
        "transformers_trainings",
        tmp_path_factory.mktemp("transformers"),
        variables,
    )


@pytest.fixture
def accumulating(folder: Path) -> Reports:
    return read(folder, "accumulating")


def test_accumulated_batches_are_one_step(accumulating: Reports) -> None:
    newest = accumulating.newest
    assert accumulating.steps == 8
    assert newest.phases["forward"].occurrences == newest.phases["backward"].occurrences == 16
    assert newest.phases["optimizer"].occurrences == 8


def test_phases_are_the_time(accumulating: Reports) -> None:
    assert_phases_are_the_time(accumulating)


def test_the_loader_is_waited_for(accumulating: Reports) -> None:
    """32 examples of 10 ms each; an evaluation's are its own."""
    assert accumulating.seconds("data_wait") >= 0.32


def test_the_report_is_what_the_training_measured_itself(folder: Path) -> None:
    reports = read(folder, "measured")
    measured = truth.read(folder / "measured.truth")
    assert (measured.steps, measured.samples) == (6, 66)
    assert truth.differences(measured, reports) == []
    assert (reports.occurrences("evaluation"), reports.occurrences("checkpoint")) == (3, 3)
    assert_phases_are_the_time(reports)


def test_evaluation_and_checkpoint_are_activities(accumulating: Reports) -> None:
    assert accumulating.activities >= {"initialization", "training", "evaluation", "checkpoint"}
    assert (accumulating.occurrences("evaluation"), accumulating.occurrences("checkpoint")) == (2, 2)
    assert accumulating.seconds("evaluation") >= 4 * 0.05


def test_an_evaluation_reports_after_each_of_its_batches(accumulating: Reports) -> None:
    assert len(accumulating.of_evaluations) >= 6


def test_the_trainers_values_are_reported(accumulating: Reports) -> None:
    newest = accumulating.newest
    assert newest.counters["samples"] == 32
    assert newest.counters["tokens"] == 96
    assert (newest.gauges["step"], newest.gauges["steps_planned"], newest.gauges["epoch"]) == (8, 8, 2)
    assert newest.gauges["batch_size"] == 4
    assert {"loss", "learning_rate", "gradient_norm"} <= set(newest.gauges)
    assert "eval_loss" in newest.values
    assert newest.info["framework"] == "pytorch"


def test_a_finished_training_is_a_finished_run(accumulating: Reports) -> None:
    assert accumulating.newest.state == "finished"


def test_a_resumed_training_is_another_session_that_goes_on_counting(folder: Path) -> None:
    both = read(folder, "resumed")
    first, second = both.session(0), both.session(1)
    assert first.newest.gauges["step"] == second.newest.gauges["step"] == 16
    assert (first.steps, second.steps) == (16, 11)
    assert first.seconds("restore") == 0
    assert "restore" in second.activities
    assert_phases_are_the_time(second)


def test_skipping_what_was_seen_is_no_wait_for_data(folder: Path) -> None:
    second = read(folder, "resumed").session(1)
    skipped_and_loaded = second.newest.phases["restore"]
    assert skipped_and_loaded.occurrences >= 3
    assert skipped_and_loaded.seconds >= 0.02


def test_running_out_of_memory_is_a_failure_of_its_own_kind(folder: Path) -> None:
    newest = read(folder, "out_of_memory").newest
    assert newest.state == "failed"
    assert newest.counters["out_of_memory"] == 1
    assert newest.counters["samples"] == 6


def test_steps_of_the_optimizer_are_not_counted_beside_the_trainers(folder: Path) -> None:
    assert read(folder, "within_a_run").steps == 16


def test_under_the_run_command_steps_and_phases_are_counted_once(tmp_path: Path) -> None:
    """`stallscope run` listens to loader, model and optimizer, and leaves to the callback what is the callback's."""
    command, training = ("-m", "stallscope", "run"), ("accumulating", "measured")
    folder = held(NEEDED, "transformers_trainings", tmp_path, under=command, only=training)
    reports = read(folder, "accumulating")
    newest = reports.newest
    assert reports.steps == 8
    assert newest.counters["samples"] == 32
    assert newest.phases["forward"].occurrences == newest.phases["backward"].occurrences == 16
    assert newest.phases["optimizer"].occurrences == 8
    assert_phases_are_the_time(reports)
    assert truth.differences(truth.read(folder / "measured.truth"), read(folder, "measured")) == []


def test_after_the_training_a_given_run_is_paused_and_may_evaluate(folder: Path) -> None:
    reports = read(folder, "within_a_run")
    assert reports.newest.state == "finished"
    assert reports.seconds("paused") >= 0.1
    assert reports.seconds("evaluation") >= 2 * 0.05
    assert_phases_are_the_time(reports)


def test_a_launchers_rank_is_kept(folder: Path) -> None:
    newest = read(folder, "second_rank").newest
    assert (newest.rank, newest.info["local_rank"], newest.info["world_size"]) == (1, "1", "2")


def test_a_training_reaches_the_exporter(folder: Path, exporter: Running) -> None:
    finished = 'stallscope_training_state{run="to-the-exporter",rank="0",state="finished"} 1'
    assert f"{SERIES}16" in exporter.eventually("metrics", lambda page: finished in page)
