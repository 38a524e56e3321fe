"""The study of batch sizes, on what the article measured: AlexNet on one RTX 2080 Ti in batches of 4 and 512."""

from __future__ import annotations

import pytest

from stallscope.analysis.batch_size import Measured, StudyError, study_batch_sizes

SMALL = Measured(4, 4 / 250)
LARGE = Measured(512, 512 / 3500)


def test_the_articles_runs_have_a_fixed_part_of_15_ms_and_come_to_3900_images_a_second_at_most() -> None:
    study = study_batch_sizes([SMALL, LARGE])
    assert study.step.fixed == pytest.approx(0.0150, rel=0.01)
    assert study.step.slope == pytest.approx(0.256e-3, rel=0.01)
    assert study.most_samples_per_second == pytest.approx(3900, rel=0.01)


def test_nearly_all_of_a_step_of_the_small_batch_is_fixed() -> None:
    study = study_batch_sizes([SMALL, LARGE])
    assert study.fixed_share(4) == pytest.approx(0.936, abs=0.001)
    assert study.fixed_share(512) == pytest.approx(0.10, abs=0.01)


def test_what_was_measured_is_predicted_as_measured_and_twice_the_largest_batch_pays_little() -> None:
    study = study_batch_sizes([SMALL, LARGE])
    assert study.samples_per_second(4) == pytest.approx(250)
    assert study.samples_per_second(512) == pytest.approx(3500)
    assert study.next_batch == 1024
    assert study.samples_per_second(1024) == pytest.approx(3690, rel=0.01)


def test_a_third_batch_size_tells_how_far_the_line_is_off() -> None:
    assert study_batch_sizes([SMALL, LARGE]).step.deviation == pytest.approx(0, abs=1e-9)
    between = Measured(64, 1.2 * (0.0150 + 64 * 0.256e-3))
    study = study_batch_sizes([SMALL, between, LARGE])
    assert study.step.places == 3
    assert 0.05 < study.step.deviation < 0.2


def test_one_that_scatters_at_the_largest_batch_hardly_moves_the_fixed_part() -> None:
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


def test_a_batch_that_was_run_fits_whatever_the_line_says() -> None:
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
def test_runs_that_say_nothing_of_it_are_refused_with_the_reason(runs: list[Measured], reason: str) -> None:
    with pytest.raises(StudyError, match=reason):
        study_batch_sizes(runs)
