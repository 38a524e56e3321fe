"""Comparisons of runs: the four runs of an article, and runs that can't be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallscope.model.analysis.comparison import UNEXPLAINED, Against, compare
from stallscope.model.analysis.run_figures import RunFigures
from stallscope.model.analysis.scaling import scaling

SMALL = RunFigures("batch 4", 900, gpus=1, batch=4, samples=250, step_seconds=4 / 250, time_lost=0.9)
SMALL = replace(SMALL, lost={"small_batch": 0.9})
LARGE = RunFigures("batch 512", 900, gpus=1, batch=512, samples=3500, step_seconds=512 / 3500, time_lost=0.0)
TWO = RunFigures("two GPUs", 900, gpus=2, batch=1024, samples=6100, step_seconds=1024 / 6100, time_lost=0.0)
REAL = replace(
    TWO,
    name="real data",
    samples=4300,
    step_seconds=1024 / 4300,
    time_lost=0.295,
    lost={"input_cpu_saturated": 0.295},
)


def explained(against: Against) -> dict[str, float | None]:
    return {part.cause: part.explains for part in against.parts}


def test_the_larger_batch_is_14_times_as_fast_and_batch_sizes_are_studied() -> None:
    comparison = compare([SMALL, LARGE])
    (large,) = comparison.against
    assert comparison.base is SMALL
    assert large.scaling is not None
    assert large.scaling.speed_up == pytest.approx(14)
    assert comparison.batch_sizes is not None
    assert comparison.batch_sizes.most_samples_per_second == pytest.approx(3900, rel=0.05)
    assert not comparison.notes


def test_a_run_on_two_gpus_is_compared_but_not_used_in_the_study_of_batch_sizes() -> None:
    comparison = compare([TWO, LARGE, SMALL], base=LARGE)
    two = comparison.against[0]
    assert two.scaling is not None
    assert two.scaling.efficiency == pytest.approx(0.871, abs=0.001)
    assert comparison.studied == (LARGE, SMALL)


def test_waiting_for_data_explains_the_whole_difference_of_real_data() -> None:
    (real,) = compare([TWO, REAL]).against
    assert real.gpu_time == pytest.approx(6100 / 4300 - 1)
    assert explained(real) == {
        "input_cpu_saturated": pytest.approx(0.4186, abs=0.001),
        UNEXPLAINED: pytest.approx(0, abs=0.001),
    }


def test_a_difference_without_recorded_cause_stays_unexplained() -> None:
    (two,) = compare([LARGE, TWO]).against
    assert explained(two) == {UNEXPLAINED: pytest.approx(3500 * 2 / 6100 - 1)}


def test_a_cause_that_is_gone_saves_time_and_the_parts_add_up() -> None:
    better = replace(REAL, name="better", samples=5200, lost={"input_bound": 0.1, "checkpoint_stall": 0.05})
    (against,) = compare([REAL, better]).against
    parts = explained(against)
    assert parts["input_cpu_saturated"] == pytest.approx(-0.295)
    assert parts["input_bound"] == pytest.approx(0.1 * 4300 / 5200)
    assert sum(share for share in parts.values() if share is not None) == pytest.approx(against.gpu_time)


def test_causes_that_exceed_the_whole_time_are_scaled_down() -> None:
    (against,) = compare([TWO, replace(REAL, lost={"input_bound": 0.9, "checkpoint_stall": 0.3})]).against
    assert [part.run for part in against.parts] == [pytest.approx(0.75), pytest.approx(0.25), None]


def test_a_run_without_verdicts_is_not_explained() -> None:
    comparison = compare([TWO, replace(REAL, time_lost=None, lost={})])
    assert comparison.against[0].parts == ()
    assert any("has no verdicts" in note for note in comparison.notes)


def test_runs_whose_samples_differ_in_tokens_are_compared_by_tokens() -> None:
    short = replace(TWO, name="short", samples=100.0, tokens=100.0 * 512)
    long = replace(TWO, name="long", samples=25.0, tokens=25.0 * 2048)
    comparison = compare([short, long])
    assert comparison.work == "tokens"
    assert comparison.against[0].scaling == scaling(gpus=2, rate=1, base_gpus=2, base_rate=1)
    assert any("tokens are compared" in note for note in comparison.notes)


def test_runs_without_samples_and_tokens_are_compared_by_steps_with_a_note() -> None:
    comparison = compare([replace(TWO, samples=None), REAL])
    assert comparison.work == "steps"
    assert any("steps are compared" in note for note in comparison.notes)


def test_a_run_without_data_has_no_values_rather_than_zeros() -> None:
    (silent,) = compare([TWO, RunFigures("silent", 900)]).against
    assert silent.scaling is None
    assert silent.gpu_time is None


@pytest.mark.parametrize(
    ("other", "note"),
    [
        (replace(REAL, seconds=420), "real data: only 7 min"),
        (replace(REAL, running=True), "real data is still running"),
        (replace(REAL, operations=2e15), "different numbers of operations"),
        (replace(REAL, gpus=None, ranks=2), "real data claims no GPU: its ranks"),
        (replace(REAL, gpus=4), "both the number of GPUs and the batch"),
    ],
)
def test_limitations_of_a_comparison_are_noted(other: RunFigures, note: str) -> None:
    assert any(note in each for each in compare([replace(TWO, operations=1e15), other]).notes)


def test_the_uncertainty_of_a_difference_is_that_of_both_runs() -> None:
    slow, fast = replace(TWO, step_uncertainty=0.03), replace(REAL, step_uncertainty=0.04)
    (against,) = compare([slow, fast]).against
    assert against.uncertainty == pytest.approx(2 * 6100 / 4300 * 0.05)
    (unknown,) = compare([slow, replace(fast, step_uncertainty=None)]).against
    assert unknown.uncertainty is None


def test_without_different_batch_sizes_there_is_a_reason_instead_of_a_study() -> None:
    comparison = compare([TWO, REAL])
    assert comparison.batch_sizes is None
    assert "too similar" in comparison.no_batch_sizes
