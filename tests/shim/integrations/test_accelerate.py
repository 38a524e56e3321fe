from __future__ import annotations

import pytest

from tests.shim.integrations import truth
from tests.shim.integrations.trainings import Reports, assert_phases_are_the_time, held, read, reported

NEEDED = ("torch", "accelerate")


@pytest.fixture(scope="module", params=["tracker", "run command"])
def training(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[truth.Measured, Reports]:
    folder = tmp_path_factory.mktemp("accelerate")
    if request.param == "tracker":
        held(NEEDED, "accelerate_trainings", folder)
        return truth.read(folder / "measured.truth"), read(folder, "measured")
    reports = reported(NEEDED, "accelerate_program", folder)
    return truth.read(folder / "truth.json"), reports


def test_the_report_is_what_the_program_measured_itself(training: tuple[truth.Measured, Reports]) -> None:
    measured, reports = training
    assert (measured.steps, measured.samples) == (6, 66)
    assert truth.differences(measured, reports) == []
    assert_phases_are_the_time(reports)


def test_a_state_is_saved_and_loaded_in_one_piece(training: tuple[truth.Measured, Reports]) -> None:
    """Model, optimizer, registered objects and random states are files of their own."""
    _, reports = training
    assert (reports.occurrences("checkpoint"), reports.occurrences("restore")) == (3, 1)
    assert reports.occurrences("evaluation") == 3
