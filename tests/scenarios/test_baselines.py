"""The baselines diagnose as their originals would, on data with an obvious diagnosis."""

from __future__ import annotations

import math

import pytest

from stallscope.lab.replay.series import Series
from tests.scenarios.baselines import data_wait_over_10, jensen_shannon, sagemaker, utilisation_under_70

SCRAPES = 121
TARGET = {"job": "stallscope", "instance": "node1:19400"}
BOUNDS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0)


def gauge(name: str, value: float, **labels: str) -> Series:
    return Series(name, {**TARGET, **labels}, [value] * SCRAPES)


def counter(name: str, per_second: float, **labels: str) -> Series:
    return Series(name, {**TARGET, **labels}, [per_second * 30 * scrape for scrape in range(SCRAPES)])


def gpu(samples: dict[float, float], index: int = 0, memory: float = 0.5) -> list[Series]:
    """A GPU with the given shares of samples by value."""
    labels = {"gpu": str(index), "uuid": f"GPU-{index}"}
    total = sum(samples.values())
    return [
        gauge("stallscope_gpu_up", 1, **labels),
        counter("stallscope_gpu_busy_seconds_total", sum(value * part for value, part in samples.items()), **labels),
        counter(
            "stallscope_gpu_below_seconds_total",
            sum(part for value, part in samples.items() if value < 0.1),
            level="0.1",
            **labels,
        ),
        counter("stallscope_gpu_utilization_samples_count", 6 * total, **labels),
        *(
            counter(
                "stallscope_gpu_utilization_samples_bucket",
                6 * sum(part for value, part in samples.items() if value <= bound),
                le=f"{bound:g}",
                **labels,
            )
            for bound in BOUNDS
        ),
        gauge("stallscope_gpu_memory_used_bytes", 80e9 * memory, **labels),
        gauge("stallscope_gpu_memory_total_bytes", 80e9, **labels),
    ]


def host(busy: float = 0.2, *, iowait: float = 0.0, busiest: float = 0.5) -> list[Series]:
    return [
        counter("stallscope_host_cpu_seconds_total", 64 * busy, mode="user"),
        counter("stallscope_host_cpu_seconds_total", 64 * iowait, mode="iowait"),
        counter("stallscope_host_cpu_seconds_total", 64 * (1 - busy - iowait), mode="idle"),
        counter("stallscope_host_busiest_cpu_seconds_total", busiest),
    ]


def rank(wait: float, index: int = 0) -> list[Series]:
    labels = {"run": "train", "rank": str(index)}
    return [
        counter("stallscope_training_phase_seconds_total", wait, phase="data_wait", **labels),
        counter("stallscope_training_phase_seconds_total", 1 - wait, phase="forward", **labels),
    ]


FULL, HALF, FLUCTUATING = {0.95: 1.0}, {0.5: 1.0}, {0.95: 0.7, 0.05: 0.3}


def test_utilisation_is_judged_over_five_minutes() -> None:
    said = utilisation_under_70(gpu({0.6: 1.0}))
    assert said[9] == []
    assert said[10] == ["underused"]
    assert utilisation_under_70(gpu(FULL))[-1] == []
    assert utilisation_under_70(gpu(FULL) + gpu({0.0: 1.0}, 1))[-1] == ["underused"], "any GPU of any owner"


def test_utilisation_of_a_gpu_that_is_down_is_not_judged() -> None:
    down = [
        Series(each.name, each.labels, [0.0] * SCRAPES) if each.name == "stallscope_gpu_up" else each
        for each in gpu({0.0: 1.0})
    ]
    assert utilisation_under_70(down)[-1] == []


def test_a_counter_that_begins_again_is_no_loss() -> None:
    name = "stallscope_gpu_busy_seconds_total"
    reset = [
        Series(name, each.labels, [(29.0 * scrape) % 900 for scrape in range(SCRAPES)]) if each.name == name else each
        for each in gpu(FULL)
    ]
    assert utilisation_under_70(reset)[-1] == []


def test_the_data_wait_is_a_mean_over_ranks() -> None:
    assert data_wait_over_10(rank(0.11))[-1] == ["input_bound"]
    assert data_wait_over_10(rank(0.16) + rank(0.0, 1))[-1] == []
    assert data_wait_over_10([])[-1:] == []


@pytest.mark.parametrize(
    ("series", "said"),
    [
        pytest.param(gpu(FULL) + host(), [], id="a full GPU"),
        pytest.param(gpu(HALF, memory=0.9) + host(), ["underused"], id="low at the 95th percentile"),
        pytest.param(gpu(FLUCTUATING) + host(), ["underused"], id="high at the 95th and low at the 5th"),
        pytest.param(gpu(HALF) + host(), ["small_batch", "underused"], id="GPU, its memory and CPUs low"),
        pytest.param(gpu(HALF) + host(0.9), ["underused"], id="CPUs not low"),
        pytest.param(gpu(HALF), ["underused"], id="CPUs unknown"),
        pytest.param(
            gpu({0.0: 0.6, 0.9: 0.4}) + host(busiest=0.95),
            ["input_cpu_saturated", "underused"],
            id="one hot CPU, GPU idle for more than half",
        ),
        pytest.param(
            gpu({0.0: 0.4, 0.9: 0.6}) + host(busiest=0.95), ["underused"], id="one hot CPU, GPU idle for less"
        ),
        pytest.param(
            gpu({0.0: 0.6, 0.9: 0.4}, memory=0.9) + host(0.1, iowait=0.6),
            ["input_disk_bound", "underused"],
            id="CPUs wait for I/O",
        ),
        pytest.param(
            gpu(HALF, memory=0.9) + gpu({0.2: 1.0}, 1, memory=0.9) + host(),
            ["gpu_load_imbalance", "underused"],
            id="two GPUs with nothing in common",
        ),
        pytest.param(
            gpu(FULL) + gpu({0.2: 1.0}, 1, memory=0.9) + host(),
            ["underused"],
            id="a GPU that is always full is left out",
        ),
    ],
)
def test_sagemakers_rules(series: list[Series], said: list[str]) -> None:
    assert sagemaker(series)[-1] == said


def test_sagemakers_rules_wait_for_their_patience() -> None:
    assert sagemaker(gpu(HALF) + host())[16] == []


def initialising(minutes: float) -> list[Series]:
    labels = {**TARGET, "run": "train", "rank": "0"}
    first = [None if 30 * scrape < 60 * minutes else 60 * minutes for scrape in range(SCRAPES)]
    return [
        gauge("stallscope_training_start_timestamp_seconds", 0.0, run="train", rank="0"),
        Series("stallscope_training_first_step_timestamp_seconds", labels, list(first)),
    ]


def test_sagemakers_rule_on_a_start_of_more_than_twenty_minutes() -> None:
    said = sagemaker(initialising(30))
    assert (said[40], said[42], said[62]) == ([], ["long_init"], [])
    assert not any(sagemaker(initialising(19)))


def test_sagemakers_rule_on_memory_sees_jumps_and_no_leaks() -> None:
    def memory(values: list[float]) -> list[Series]:
        labels = {**TARGET, "gpu": "0", "uuid": "GPU-0"}
        used = Series("stallscope_gpu_memory_used_bytes", labels, [80e9 * value for value in values])
        return [used, gauge("stallscope_gpu_memory_total_bytes", 80e9, gpu="0", uuid="GPU-0")]

    assert not any(sagemaker(memory([0.3 + 0.004 * scrape for scrape in range(SCRAPES)])))
    assert ["gpu_mem_leak"] in sagemaker(memory([0.3] * 60 + [0.4] * 61))


def steps(slow: float) -> list[Series]:
    """A step a second of 0.1 s, a share of them of 10 s."""
    labels = {"run": "train", "rank": "0"}
    name = "stallscope_training_step_seconds_bucket"
    return [
        counter(name, 0.0, le="0.08", **labels),
        counter(name, 1 - slow, le="0.12", **labels),
        counter(name, 1 - slow, le="8", **labels),
        counter(name, 1.0, le="12", **labels),
        counter(name, 1.0, le="+Inf", **labels),
    ]


def test_sagemakers_rule_on_outliers_cannot_see_many() -> None:
    assert sagemaker(steps(0.02))[-1] == ["step_outliers"]
    assert sagemaker(steps(0.12))[-1] == [], (
        "slow steps of a tenth or more widen three standard deviations beyond themselves"
    )


def test_the_distance_of_distributions() -> None:
    assert jensen_shannon([0.5, 0.5], [0.5, 0.5]) == 0
    assert jensen_shannon([1.0, 0.0], [0.0, 1.0]) == pytest.approx(math.sqrt(math.log(2)))
