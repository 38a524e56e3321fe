"""The model of a node contains exactly the values of its pages."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stallscope.model.catalogue.metrics import STEP_BUCKETS, Family
from stallscope.model.view import observer
from stallscope.model.view.model import Owner, Run, no_step_for, runs_of
from stallscope.model.view.observer import Observer
from stallscope.model.view.verdicts import RunName
from stallscope.node.sampling.reading import Distribution, Sample
from tests.captures.golden import captures, golden
from tests.terminal.pages import GIB, NOW, PHASE_SHARES, node, page, sample


def test_a_gpu_is_derived_from_two_pages() -> None:
    gpu = node(1000, 1002).gpus[1]
    assert (gpu.index, gpu.uuid, gpu.model, gpu.up, gpu.mig) == ("1", "GPU-1", "NVIDIA L40S", True, "")
    # Over the two seconds between the pages, not the gauge of the newest second.
    assert gpu.utilization == pytest.approx(0.9)
    assert gpu.sm_active == pytest.approx(0.6)
    assert gpu.throttled == {"hw_thermal": pytest.approx(0.25)}
    assert (gpu.memory_used, gpu.memory_total) == (21 * GIB, 48 * GIB)
    assert (gpu.power, gpu.power_limit, gpu.temperature) == (251.4, 350, 61)
    assert (gpu.clock, gpu.clock_max) == (2.49e9, 2.52e9)
    assert gpu.processes == 2
    assert gpu.owners == (Owner("", "", "", "41", "alice", 18 * GIB),)


def test_one_page_has_the_gauge_and_no_rates() -> None:
    found = node(1000)
    assert found.gpus[0].utilization == 0.5
    assert found.gpus[0].sm_active is None
    assert found.gpus[1].throttled == {}
    assert found.host.cpu is None
    assert found.host.pressure == {}


def test_missing_series_leave_values_unset() -> None:
    left_out = (
        *(
            observer.UTILIZATION,
            observer.BUSY,
            observer.POWER,
            observer.TEMPERATURE,
            observer.CLOCK,
            observer.PROCESSES,
        ),
        *(
            observer.MEMORY_USED,
            observer.OWNER_INFO,
            observer.CPU_SECONDS,
            observer.SAMPLES,
            observer.LOSS,
            observer.STEPS_PLANNED,
        ),
    )
    found = node(1000, 1002, without=left_out)
    gpu, run = found.gpus[0], runs_of(found.ranks)[0]
    assert gpu.utilization is gpu.power is gpu.temperature is gpu.clock is gpu.processes is gpu.memory_used is None
    assert gpu.owners == ()
    assert found.host.cpu is found.host.busiest_cpu is None
    assert run.samples_per_second is run.loss is run.steps_planned is run.seconds_left is None


def test_an_idle_gpu_has_zero_and_not_an_unknown_value() -> None:
    idle = [sample(observer.BUSY, ("0", "GPU-0"), 7.0)]
    assert node(1000, 1002, without=[observer.BUSY], extra=idle).gpus[0].utilization == 0


def test_a_gpu_that_was_not_read_again_keeps_its_gauge() -> None:
    watching = Observer()
    watching.observe(page(1000), 0)
    assert watching.observe(page(1000), 2).gpus[0].utilization == 0.5


def test_a_page_that_was_not_renewed_keeps_its_rates() -> None:
    watching = Observer()
    watching.observe(page(1000), 0)
    found = watching.observe(page(1002), 2)
    assert watching.observe(page(1002), 4) == found
    assert found.host.cpu is not None
    # The next page is compared with it, not with the page before.
    assert watching.observe(page(1006), 6).host.cpu == pytest.approx(found.host.cpu)


def test_a_lost_gpu_says_why() -> None:
    lost = [sample(observer.GPU_UP, ("7", "GPU-7"), 0), sample(observer.LOST_INFO, ("7", "GPU-7", "gpu_lost"))]
    gpu = node(1000, 1002, extra=lost).gpus[-1]
    assert (gpu.index, gpu.up, gpu.reason, gpu.model) == ("7", False, "gpu_lost", "")


def test_the_host_is_derived_from_two_pages() -> None:
    host = node(1000, 1002).host
    assert host.cpu == pytest.approx(0.3)
    assert host.iowait == pytest.approx(0.1)
    assert host.busiest_cpu == pytest.approx(0.95)
    assert host.pressure == {"cpu": pytest.approx(0.125), "io": pytest.approx(0.03125)}
    assert host.disks == {"nvme0n1": pytest.approx(0.5)}
    assert (host.read, host.written, host.received, host.sent) == (1024, 512, 2048, 256)
    assert (host.memory_used, host.memory_total) == (64 * GIB, 256 * GIB)


def test_a_run_is_described_since_its_start_at_first() -> None:
    (run,) = runs_of(node(1000, 1002).ranks)
    assert run.name == RunName("resnet50", "")
    assert run.since is None
    assert run.states == {"running": 2}
    assert run.activities == ("training",)
    assert (run.step, run.steps_planned, run.world_size) == (2004, 10_000, 2)
    assert run.step_seconds == pytest.approx(0.5)
    assert run.samples_per_second == pytest.approx(2 * 64)
    total = sum(run.phases.values())
    assert {name: seconds / total for name, seconds in run.phases.items()} == pytest.approx(PHASE_SHARES)
    assert [rank.gpus for rank in run.ranks] == [("0",), ("1",)]


def test_a_run_is_then_described_over_the_last_half_minute() -> None:
    """Rates use a page that is a quarter to half a minute old."""
    (run,) = runs_of(node(*range(1000, 1042, 2)).ranks)
    assert run.since is not None
    assert 15 <= run.since <= 30
    assert run.ranks[0].recent.steps == run.since * 2
    assert run.seconds_left == pytest.approx((10_000 - 2080) * 0.5)
    assert run.last_step == NOW + 1039


def hung(seconds: float, *extra: Sample, without: Iterable[Family] = ()) -> Run:
    """Return the run whose last step ended this long ago, as the newest page shows it."""
    steps = [sample(observer.LAST_STEP, ("resnet50", str(rank)), NOW + 1040 - seconds - rank) for rank in range(2)]
    found = node(*range(1000, 1042, 2), without=[observer.LAST_STEP, *without], extra=[*steps, *extra])
    (run,) = runs_of(found.ranks)
    return run


def test_a_run_without_steps_has_the_time_since_the_last_one_and_no_rates() -> None:
    run = hung(545)
    assert [rank.without_step for rank in run.ranks] == [545, 546]
    assert run.without_step == 545
    assert no_step_for(545) == "no step for 9 min"
    assert run.step_seconds is run.samples_per_second is run.seconds_left is run.ranks[0].step_seconds is None
    assert run.states == {"running": 2}


def test_a_run_whose_last_step_is_recent_has_its_rates() -> None:
    run = hung(58)
    assert run.without_step is None
    assert run.samples_per_second == pytest.approx(128)


def test_a_run_with_long_steps_is_without_one_only_after_several_of_them() -> None:
    """Its mean step takes 100 s."""
    long = [
        sample(observer.STEP_SECONDS, ("resnet50", str(rank)), Distribution((0,) * len(STEP_BUCKETS) + (9,), 900.0, 9))
        for rank in range(2)
    ]

    def after(seconds: float) -> float | None:
        steps = [sample(observer.LAST_STEP, ("resnet50", str(rank)), NOW + 1000 - seconds) for rank in range(2)]
        without = [observer.LAST_STEP, observer.STEP_SECONDS]
        (run,) = runs_of(node(1000, without=without, extra=[*steps, *long]).ranks)
        return run.without_step

    assert after(450) is None
    assert after(550) == 550


def test_a_run_with_one_rank_that_makes_steps_is_not_without_steps() -> None:
    steps = [sample(observer.LAST_STEP, ("resnet50", str(rank)), NOW + 1039 - 300 * rank) for rank in range(2)]
    (run,) = runs_of(node(*range(1000, 1042, 2), without=[observer.LAST_STEP], extra=steps).ranks)
    assert [rank.without_step for rank in run.ranks] == [None, 301]
    assert run.without_step is None
    assert run.samples_per_second == pytest.approx(64)


def test_a_rank_that_has_made_no_step_yet_and_one_that_has_ended_are_not_without_steps() -> None:
    ended = [
        sample(observer.RANK_STATE, ("resnet50", str(rank), state), float(state == "finished"))
        for rank in range(2)
        for state in ("running", "finished")
    ]
    assert hung(545, *ended, without=[observer.RANK_STATE]).without_step is None
    (run,) = runs_of(node(1000, without=[observer.LAST_STEP]).ranks)
    assert run.without_step is None


def test_a_restarted_rank_counts_from_its_start() -> None:
    watching = Observer()
    watching.observe(page(1000), 0)
    rank = watching.observe(page(20, without=[observer.BUSY]), 20).ranks[0]
    assert rank.recent.since is None
    assert rank.recent.steps == 40


def test_a_restarted_exporter_has_no_history() -> None:
    watching = Observer()
    watching.observe(page(1000), 0)
    again = watching.observe(page(5), 20)
    assert again.gpus[0].utilization == 0.5
    assert again.host.cpu is None


def test_time_outside_steps_lowers_the_throughput() -> None:
    pause = [sample(observer.PHASE_SECONDS, ("resnet50", str(rank), "evaluation"), 1000.0) for rank in range(2)]
    (run,) = runs_of(node(1000, extra=pause).ranks)
    assert run.samples_per_second == pytest.approx(64)


def test_an_ended_run_has_no_throughput_and_is_listed_last() -> None:
    ended = [
        sample(observer.RANK_INFO, ("alexnet", "0", *[""] * 10)),
        sample(observer.RANK_STATE, ("alexnet", "0", "failed")),
        sample(observer.SAMPLES, ("alexnet", "0"), 100.0),
    ]
    first, last = runs_of(node(1000, 1002, extra=ended).ranks)
    assert (first.name.run, last.name.run) == ("resnet50", "alexnet")
    assert last.samples_per_second is None
    assert last.states == {"failed": 1}


def test_ranks_on_several_nodes_are_one_run() -> None:
    one = node(1000, ranks=1)
    other = node(1000, ranks=2)
    (run,) = runs_of([*one.ranks, *other.ranks[1:]])
    assert [rank.number for rank in run.ranks] == [0, 1]


@pytest.mark.parametrize("number", ["-1", "first", "9" * 5000, "²"])
def test_a_rank_without_a_number_is_ignored(number: str) -> None:
    assert not node(1000, ranks=0, extra=[sample(observer.RANK_INFO, ("a", number, *[""] * 10))]).ranks


def test_instances_are_listed_after_their_gpu() -> None:
    capture = next(each for each in captures() if "mig" in each.name)
    found = Observer().observe(observer.wanted(golden(capture).read_text(encoding="utf-8")), 0.0)
    assert [gpu.mig for gpu in found.gpus[:3]] == ["", "1c.3g.71gb", "1g.18gb"]
    assert {gpu.index for gpu in found.gpus} == {"0", "1"}


def test_series_without_their_labels_are_accepted() -> None:
    bare = "".join(f"{name} 1\n" for name in sorted(observer.WANTED))
    watching = Observer()
    for second in (0.0, 20.0):
        found = watching.observe(observer.wanted(bare), second)
    assert [gpu.uuid for gpu in found.gpus] == [""]
