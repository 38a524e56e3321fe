from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from stallscope.lab.simulation import Simulation
from stallscope.lab.simulation.workload import EFFECTS
from stallscope.node.drivers.device import DeviceLost
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock, SystemClock
from stallscope.training.protocol.report import Report, parse
from tests.simulation.numbers import watts


class Story:
    """A scenario on a scripted clock, and the newest report of each rank."""

    def __init__(
        self, name: str, *, onset: float | None = None, seed: int = 1, gpus: int = 8, report_interval: float = 5.0
    ) -> None:
        self.clock = ScriptedClock()
        self.reports: list[Report] = []
        self.simulation = Simulation.named(
            name,
            clock=self.clock,
            deliver=lambda data: self.reports.append(parse(data)),
            onset=onset,
            seed=seed,
            gpus=gpus,
            report_interval=report_interval,
        )

    def newest(self) -> dict[int, Report]:
        return {report.rank: report for report in self.reports}


def phase_share(earlier: Report, later: Report, name: str) -> float:
    """Share of the loop's wall time between two reports that went into a phase."""
    seconds = {phase: later.phases[phase].seconds - earlier.phases[phase].seconds for phase in earlier.phases}
    return seconds[name] / sum(seconds.values())


def test_every_rank_reports_what_the_intake_accepts() -> None:
    story = Story("healthy")
    story.simulation.advance(60.0)
    assert sorted(story.newest()) == list(range(8))
    for rank, report in story.newest().items():
        assert report.state == "running"
        assert report.activity == "training"
        assert report.info["world_size"] == "8"
        assert report.info["hostname"].startswith("simulated")
        assert [gpu.gpu for gpu in report.gpus] == [str(rank)]


def test_ranks_name_the_gpus_that_the_driver_shows() -> None:
    story = Story("healthy")
    story.simulation.advance(10.0)
    driver = story.simulation.driver()
    driver.open()
    uuids = {device.identity().index: device.identity().uuid for device in driver.devices()}
    assert {rank: report.gpus[0].uuid for rank, report in story.newest().items()} == uuids


def test_the_same_seed_gives_the_same_story_and_another_seed_another() -> None:
    def reported(seed: int) -> list[tuple[object, ...]]:
        story = Story("healthy", seed=seed, gpus=2)
        story.simulation.advance(120.0)
        return [(r.rank, r.sent, r.step_seconds, sorted(r.phases.items())) for r in story.reports]

    assert reported(3) == reported(3)
    assert reported(3) != reported(4)


def test_phases_sum_to_the_wall_time_of_the_loop() -> None:
    story = Story("healthy", gpus=2)
    story.simulation.advance(300.0)
    for report in story.newest().values():
        assert sum(phase.seconds for phase in report.phases.values()) == pytest.approx(
            report.sent - report.start, abs=2e-3
        )


def test_steps_and_wall_time_agree() -> None:
    story = Story("healthy", gpus=2)
    story.simulation.advance(300.0)
    report = story.newest()[0]
    assert report.step_seconds is not None
    assert report.step_seconds.sum == pytest.approx(300.0, abs=3.0)
    assert report.step_seconds.count == sum(report.step_seconds.counts)


def test_all_ranks_share_their_steps() -> None:
    story = Story("thermal_throttle", onset=30.0, report_interval=1.0)
    story.simulation.advance(600.0)
    reports = story.newest().values()
    assert len({report.first_step for report in reports}) == 1
    counts = [report.step_seconds.count for report in reports if report.step_seconds is not None]
    assert len(counts) == 8
    assert max(counts) - min(counts) <= 1


def test_reports_contain_the_work_done() -> None:
    story = Story("healthy", gpus=2)
    story.simulation.advance(120.0)
    report = story.newest()[0]
    assert report.step_seconds is not None
    assert report.counters["samples"] == 512 * report.step_seconds.count
    assert report.gauges["dataloader_workers"] == 8
    assert 0 < report.gauges["loss"] < 20


def test_waiting_for_data_takes_a_third_once_cpus_are_saturated() -> None:
    story = Story("input_cpu_saturated", onset=60.0, gpus=2)
    story.simulation.advance(60.0)
    calm = story.newest()[0]
    story.simulation.advance(300.0)
    assert phase_share(calm, story.newest()[0], "data_wait") == pytest.approx(0.36, abs=0.03)
    assert calm.phases["data_wait"].seconds < 0.03 * (calm.sent - calm.start)


def test_ranks_wait_for_the_throttled_one() -> None:
    story = Story("thermal_throttle", onset=60.0)
    story.simulation.advance(300.0)
    earlier = story.newest()
    story.simulation.advance(300.0)
    waiting = {rank: phase_share(earlier[rank], story.newest()[rank], "communication") for rank in earlier}
    assert min(waiting, key=lambda rank: waiting[rank]) == 3
    assert all(share > 0.15 for rank, share in waiting.items() if rank != 3)


@pytest.mark.parametrize("name", ["stalled", "hang_spin", "gpu_lost"])
def test_a_job_that_stands_still_falls_silent_in_the_middle_of_training(name: str) -> None:
    story = Story(name, onset=60.0)
    story.simulation.advance(600.0)
    for report in story.newest().values():
        assert report.state == "running"
        assert report.activity == "training"
        assert report.last_step is not None
        assert report.last_step - report.start < 65.0


def test_a_stalled_job_stays_running_in_the_intake_however_long_it_is_silent() -> None:
    clock = ScriptedClock()
    registry = RunRegistry(clock=clock)
    simulation = Simulation.named(
        "stalled", clock=clock, deliver=lambda data: registry.accept(data, "http", os.getpid()), onset=30.0
    )
    simulation.advance(7200.0)
    registry.check_processes()
    assert len(registry.held) == 8
    assert not any(held.lost for held in registry.held)
    assert {held.report.state for held in registry.held} == {"running"}


def test_gpus_are_busy_just_when_the_ranks_compute() -> None:
    story = Story("input_cpu_saturated", onset=0.0, gpus=2)
    driver = story.simulation.driver()
    driver.open()
    device = driver.devices()[1]
    values: list[float] = []
    newest = 0
    for _ in range(30):
        story.simulation.advance(10.0)
        samples = device.utilization_samples("gpu", newest)
        newest = samples[-1].timestamp_us
        values.extend(sample.value for sample in samples)
    phases = story.newest()[1].phases
    busy = sum(phase.seconds for name, phase in phases.items() if name in EFFECTS and EFFECTS[name].busy)
    assert sum(values) / len(values) == pytest.approx(busy / sum(p.seconds for p in phases.values()), abs=0.01)


def test_a_job_without_the_shim_reports_nothing() -> None:
    story = Story("underused")
    story.simulation.advance(60.0)
    assert story.reports == []


def test_two_hours_pass_in_one_call() -> None:
    story = Story("healthy", gpus=2, report_interval=60.0)
    story.simulation.advance(7200.0)
    assert sorted(story.newest()) == [0, 1]
    for report in story.newest().values():
        assert report.sent - report.start == pytest.approx(7200.0, abs=61.0)
        assert report.step_seconds is not None
        assert report.step_seconds.count > 6000


def test_a_node_too_small_for_the_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu_lost needs more than 5 GPUs, got 4"):
        Simulation.named("gpu_lost", clock=ScriptedClock(), gpus=4)


def test_a_real_clock_cannot_be_advanced() -> None:
    with pytest.raises(TypeError, match="ScriptedClock"):
        Simulation.named("healthy", clock=SystemClock()).advance(1.0)


def test_only_the_lost_gpu_is_lost_to_a_driver_that_was_open() -> None:
    story = Story("gpu_lost", onset=20.0)
    driver = story.simulation.driver()
    driver.open()
    devices = driver.devices()
    story.simulation.advance(30.0)
    with pytest.raises(DeviceLost):
        watts(devices[5])
    assert all(watts(device) > 0 for device in (*devices[:5], *devices[6:]))


def test_the_host_stays_real_unless_a_tree_is_given(tmp_path: Path) -> None:
    clock = ScriptedClock()
    tree = tmp_path / "tree"
    Simulation.named("healthy", clock=clock).advance(1.0)
    assert not tree.exists()
    simulation = Simulation.named("healthy", clock=clock, host_tree=tree)
    before = (tree / "proc/stat").read_text()
    simulation.advance(10.0)
    assert (tree / "proc/stat").read_text() != before


def test_a_released_hang_lets_the_caller_go_on() -> None:
    simulation = Simulation.named("healthy", clock=ScriptedClock())
    driver = simulation.driver()
    driver.open()
    device = driver.devices()[0]
    simulation.hang(0)
    answers: list[float] = []
    caller = threading.Thread(target=lambda: answers.append(watts(device)))
    caller.start()
    assert watts(driver.devices()[1]) > 0
    simulation.release()
    caller.join(timeout=60)
    assert len(answers) == 1


def test_a_started_simulation_follows_the_real_clock_until_stopped(tmp_path: Path) -> None:
    arrived = threading.Event()

    def take(data: bytes) -> None:
        report = parse(data)
        if report.last_step is not None and abs(report.sent - time.time()) < 60:
            arrived.set()

    simulation = Simulation.named("healthy", clock=SystemClock(), deliver=take, host_tree=tmp_path)
    simulation.start()
    try:
        assert arrived.wait(timeout=60)
    finally:
        simulation.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "simulation"]
