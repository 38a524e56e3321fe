"""The acceptance cases that the published case studies gave: their figures go in, and the right words come out.

All stories are rendered into one Prometheus.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from stallscope.lab.replay import rule_engine
from tests.rules.rulebook import EVALUATION_INTERVAL
from tests.scenarios import account, runner
from tests.scenarios.case import Case, render
from tests.scenarios.cases import CASES
from tests.scenarios.figures import Firing
from tests.scenarios.story import From, Kernels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HEALTHY = {"healthy", "compute_bound"}
MINUTES = 60
ACCEPTANCE = {case.name[:5]: replace(case, length=float(MINUTES)) for case in CASES if case.name.startswith("ac_")}
"""The labelled cases that have the figures of a study, each for an hour."""


def ending_with_batches_of_1024(case: Case) -> Case:
    (run,) = case.story.runs
    full = Kernels(busy=0.98, sm=0.9, power=0.92)
    large = replace(run.work[-1].state, forward=0.1, backward=0.17, batch=1024, memory=0.72, kernels=full)
    return replace(case, story=replace(case.story, runs=(replace(run, work=(*run.work, From(30.0, large))),)))


ACCEPTANCE["ac_10"] = ending_with_batches_of_1024(ACCEPTANCE["ac_10"])

LAST = MINUTES * 60
DURING = tuple(range(20 * 60, LAST + 1, 5 * 60))
QUERIED = (
    "gpu:dip_period:steps30m",
    "sum by (cluster) (rate(stallscope_training_samples_total[5m]))",
    "sum by (cluster) (rate(stallscope_training_step_seconds_count[5m]))",
    "max by (cluster) (stallscope_training_batch_size)",
)
WORDS = (
    "TrainingInputCpuSaturated",
    "TrainingInputNetworkBound",
    "GpuPeriodicHostWork",
    "TrainingLongInit",
    "GpuPackingCandidate",
    "GpuSharedUnexpectedly",
    "TrainingScalingInefficient",
)


@dataclass(frozen=True)
class Answer:
    """Verdicts of the rules on one story."""

    samples: Mapping[str, rule_engine.Answers]
    words: Mapping[str, Sequence[rule_engine.Alert]]
    """Alerts that fired at any of the moments, by name."""

    def verdicts(self, series: str, *, minutes: tuple[float, float] = (20, MINUTES), **labels: str) -> set[str]:
        """Return the causes of a subject in the meantime, except those of under a tenth of the evaluations."""
        seen = Counter(
            sample.labels["cause"]
            for second, samples in self.samples[runner.EVERYTHING].items()
            for sample in samples
            if minutes[0] * 60 <= second <= minutes[1] * 60
            and sample.name == series
            and all(sample.labels.get(label) == value for label, value in labels.items())
        )
        return {cause for cause, count in seen.items() if count > 0.1 * sum(seen.values())}

    def lost(self, cause: str) -> float:
        """Share of the run's time lost to a cause, at the end."""
        return sum(
            sample.value
            for sample in self.samples[runner.EVERYTHING][LAST]
            if sample.name == "run_cause:time_lost:ratio5m" and sample.labels["cause"] == cause
        )

    def value(self, expression: str, second: int = LAST) -> float:
        """The one value of an expression."""
        (sample,) = self.samples[expression][second]
        return sample.value

    def firings(self) -> Sequence[Firing]:
        return list(account.firings(self.samples[runner.EVERYTHING], lambda name: 0.0))

    def loud(self) -> set[str]:
        """Names of the alerts above info."""
        return {firing.alert for firing in self.firings() if firing.loud}

    def text(self, alert: str) -> str:
        """All words of an alert's first instance."""
        assert self.words[alert], f"{alert} did not fire"
        return " ".join(self.words[alert][0].annotations.values())


@pytest.fixture(scope="module")
def answers() -> Mapping[str, Answer]:
    """Every story's answer, from one run of the engine."""
    series = [
        each for name, case in ACCEPTANCE.items() for each in render(case, 1, noise=False, labels={"cluster": name})
    ]
    everything = {runner.EVERYTHING: runner.evaluations(LAST), **dict.fromkeys(QUERIED, DURING)}
    said = runner.evaluate(
        series, everything, words=dict.fromkeys(WORDS, DURING), evaluation_seconds=EVALUATION_INTERVAL
    )

    def of(cluster: str, samples: Sequence[rule_engine.Sample]) -> list[rule_engine.Sample]:
        return [sample for sample in samples if sample.labels.get("cluster") == cluster]

    return {
        name: Answer(
            samples={
                expression: {second: of(name, samples) for second, samples in moments.items()}
                for expression, moments in said.samples.items()
            },
            words={
                alert: [words for found in moments.values() for words in found if words.labels.get("cluster") == name]
                for alert, moments in said.words.items()
            },
        )
        for name in ACCEPTANCE
    }


def numbers(text: str, before: str) -> Iterator[float]:
    """The numbers that a text has before a word."""
    yield from (float(found.replace(",", "")) for found in re.findall(rf"([\d,.]*\d)\s*{before}", text))


def test_ac_01_a_batch_of_4_is_a_small_batch_although_the_gpu_reads_90_percent(answers: Mapping[str, Answer]) -> None:
    assert answers["ac_01"].verdicts("run:verdict:ratio5m") <= {"small_batch", "launch_bound"}
    assert answers["ac_01"].verdicts("gpu:verdict:ratio5m", gpu="0") <= {"small_batch", "launch_bound"}


def test_ac_02_a_batch_of_512_is_healthy_and_raises_no_alert(answers: Mapping[str, Answer]) -> None:
    assert answers["ac_02"].verdicts("run:verdict:ratio5m") <= HEALTHY
    assert not answers["ac_02"].loud()


def test_ac_03_the_two_batches_give_the_gain_and_its_limit(answers: Mapping[str, Answer]) -> None:
    samples, steps, batch = QUERIED[1:]
    small, large = answers["ac_01"], answers["ac_02"]
    assert large.value(samples) / small.value(samples) == pytest.approx(14, rel=0.05)
    per_image = (1 / large.value(steps) - 1 / small.value(steps)) / (large.value(batch) - small.value(batch))
    assert 1 / per_image == pytest.approx(3900, rel=0.05)


def test_ac_04_two_gpus_at_87_percent_raise_nothing_above_info(answers: Mapping[str, Answer]) -> None:
    samples = QUERIED[1]
    efficiency = answers["ac_04"].value(samples) / (2 * answers["ac_02"].value(samples))
    assert efficiency == pytest.approx(0.87, abs=0.01)
    assert not answers["ac_04"].loud()
    assert answers["ac_04"].verdicts("run:verdict:ratio5m") <= HEALTHY


def test_ac_05_real_data_with_full_cpus_is_input_cpu_saturated(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_05"]
    assert answer.verdicts("run:verdict:ratio5m") == {"input_cpu_saturated"}
    assert answer.lost("input_cpu_saturated") == pytest.approx(0.295, abs=0.02)
    assert answer.loud() == {"TrainingInputCpuSaturated"}
    assert "up to 1.4 times" in answer.text("TrainingInputCpuSaturated")


def test_ac_06_a_gpu_outside_the_job_is_nobodys_problem(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_06"]
    assert answer.verdicts("gpu:verdict:ratio5m", gpu="1") == {"healthy"}
    assert not [firing for firing in answer.firings() if firing.labels.get("gpu") == "1"]


def test_ac_07_73_degrees_under_load_is_no_verdict(answers: Mapping[str, Answer]) -> None:
    assert answers["ac_07"].verdicts("gpu:verdict:ratio5m", gpu="0") <= HEALTHY
    assert not answers["ac_07"].loud()


def test_ac_08_a_full_network_link_is_named_with_its_ceiling(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_08"]
    assert answer.verdicts("run:verdict:ratio5m") == {"input_network_bound"}
    ceilings = list(numbers(answer.text("TrainingInputNetworkBound"), "samples"))
    assert pytest.approx(100, abs=5) in ceilings


def test_ac_09_the_period_of_a_callback_every_50_steps_is_reported(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_09"]
    assert answer.verdicts("run:verdict:ratio5m", minutes=(35, MINUTES)) == {"periodic_host_work"}
    assert answer.value("gpu:dip_period:steps30m") == pytest.approx(50, abs=2)
    assert pytest.approx(50, abs=2) in list(numbers(answer.text("GpuPeriodicHostWork"), "steps"))


def test_ac_10_a_batch_of_64_is_small_until_it_is_1024(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_10"]
    assert answer.verdicts("run:verdict:ratio5m", minutes=(16, 30)) == {"small_batch"}
    assert answer.verdicts("run:verdict:ratio5m", minutes=(40, MINUTES)) <= HEALTHY
    last = [firing for firing in answer.firings() if firing.loud and firing.last >= LAST]
    assert not last, "the verdict ends"


def test_ac_11_a_low_gpu_with_full_cpus_and_a_long_fetch_is_preprocessing(answers: Mapping[str, Answer]) -> None:
    assert answers["ac_11"].verdicts("run:verdict:ratio5m") == {"input_cpu_saturated"}


def test_ac_12_a_start_of_25_minutes_alerts_after_20_with_the_remedy(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_12"]
    reported = [firing for firing in answer.firings() if firing.alert == "TrainingLongInit"]
    assert [firing.severity for firing in reported] == ["warning"]
    assert 22 * 60 <= reported[0].first <= 24 * 60, "it started in minute 2"
    text = answer.text("TrainingLongInit").lower()
    assert "stream" in text
    assert "pre-stage" in text


def test_ac_16_room_for_another_experiment_is_reported_in_numbers(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_16"]
    reported = {(firing.alert, firing.severity) for firing in answer.firings()}
    assert ("GpuPackingCandidate", "info") in reported
    text = answer.text("GpuPackingCandidate")
    assert list(numbers(text, "(?:GiB|GB)")), f"no number of bytes: {text}"


def test_ac_17_two_jobs_on_one_gpu_beside_a_free_one_raise_an_alert(answers: Mapping[str, Answer]) -> None:
    answer = answers["ac_17"]
    reported = [firing for firing in answer.firings() if firing.alert == "GpuSharedUnexpectedly"]
    assert {firing.severity for firing in reported} == {"warning"}
    assert {firing.labels["gpu"] for firing in reported} == {"0"}
    assert "CUDA_VISIBLE_DEVICES" in answer.text("GpuSharedUnexpectedly")
