"""The study of batch sizes, with measurements of an article: AlexNet on one RTX 2080 Ti in batches of 4 and 512."""

from __future__ import annotations

import pytest

from stallscope.model.analysis.batch_size import Measured, StudyError, study_batch_sizes

SMALL = Measured(4, 4 / 250)
LARGE = Measured(512, 512 / 3500)


def test_the_articles_runs_have_a_fixed_part_of_15_ms_and_a_limit_of_3900_images_per_second() -> None:
    study = study_batch_sizes([SMALL, LARGE])
    assert study.step.fixed == pytest.approx(0.0150, rel=0.01)
    assert study.step.slope == pytest.approx(0.256e-3, rel=0.01)
    assert study.most_samples_per_second == pytest.approx(3900, rel=0.01)


def test_nearly_all_of_a_step_of_the_small_batch_is_fixed() -> None:
    study = study_batch_sizes([SMALL, LARGE])
    assert study.fixed_share(4) == pytest.approx(0.936, abs=0.001)
    assert study.fixed_share(512) == pytest.approx(0.10, abs=0.01)


def test_measurements_are_predicted_exactly_and_doubling_the_largest_batch_gains_little() -> None:
    study = study_batch_sizes([SMALL, LARGE])
    assert study.samples_per_second(4) == pytest.approx(250)
    assert study.samples_per_second(512) == pytest.approx(3500)
    assert study.next_batch == 1024
    assert study.samples_per_second(1024) == pytest.approx(3690, rel=0.01)


def test_a_third_batch_size_shows_the_deviation_of_the_line() -> None:
    assert study_batch_sizes([SMALL, LARGE]).step.deviation == pytest.approx(0, abs=1e-9)
    between = Measured(64, 1.2 * (0.0150 + 64 * 0.256e-3))
    study = study_batch_sizes([SMALL, between, LARGE])
    assert study.step.places == 3
    assert 0.05 < study.step.deviation < 0.2


def test_scatter_of_the_largest_batch_hardly_changes_the_fixed_part() -> None:
    scattered = [Measured(batch, 0.015 + batch * 0.25e-3) for batch in (4, 8, 16)] + [Measured(512, 0.143 * 1.05)]
    assert study_batch_sizes(scattered).step.fixed == pytest.approx(0.015, rel=0.02)


def test_memory_that_grows_with_the_batch_limits_the_next() -> None:
    study = study_batch_sizes([SMALL._replace(memory=0.104), LARGE._replace(memory=0.612)])
    assert study.largest_that_fits == pytest.approx(900, abs=1)
    assert study.next_batch == study.largest_that_fits


@pytest.mark.parametrize("more", [0.0, 1e-6, 0.009])
def test_memory_taken_in_advance_limits_nothing(more: float) -> None:
    study = study_batch_sizes([SMALL._replace(memory=0.75), LARGE._replace(memory=0.75 + more)])
    assert study.largest_that_fits is None
    assert study.next_batch == 1024


def test_a_measured_batch_always_fits_in_memory() -> None:
    scattered = [Measured(batch, 0.015 + batch * 0.25e-3, memory) for batch, memory in ((4, 0.2), (8, 0.9), (12, 0.99))]
    study = study_batch_sizes(scattered)
    assert study.largest_that_fits == study.next_batch == 12


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([LARGE], "two runs"),
        ([LARGE, LARGE], "too similar"),
        ([LARGE, LARGE._replace(batch=520)], "too similar"),
        ([LARGE, Measured(1024, LARGE.step_seconds * 0.9)], "something other than the batch limits"),
        ([LARGE, Measured(1024, LARGE.step_seconds * 2.5)], "grow faster than the batch"),
    ],
)
def test_unsuitable_runs_are_rejected_with_the_reason(runs: list[Measured], reason: str) -> None:
    with pytest.raises(StudyError, match=reason):
        study_batch_sizes(runs)
