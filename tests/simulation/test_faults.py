"""Faults of scenarios show in what the simulated driver, ranks and host report, from their onset on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.lab.simulation import Simulation
from stallscope.lab.simulation.driver import SimulatedDriver
from stallscope.lab.simulation.gpu import IDLE_WATTS, MEMORY_BYTES
from stallscope.lab.simulation.node import Node
from stallscope.lab.simulation.scenarios import SCENARIOS, HardwareFault, LoadChange, Scenario, scenario
from stallscope.lab.simulation.workload import PhaseEffect
from stallscope.model.view.stack_groups import grouped, sentence
from stallscope.node.drivers.device import Device
from stallscope.node.intake.pending import PassedFile
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.intake.stacks import StackFiles
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import Report, parse
from stallscope.training.protocol.stacks import Stack
from tests.simulation.numbers import clock, highest_clock, number
from tests.simulation.verdicts import verdicts

ONSET = 20.0


class Gpus:
    """GPUs of a scenario on a scripted clock."""

    def __init__(self, name: str) -> None:
        self.clock = ScriptedClock()
        self.driver = SimulatedDriver(Node(scenario(name, onset=ONSET), self.clock, seed=1, gpus=2))
        self.driver.open()
        self.well, self.ill = self.driver.devices()


@pytest.fixture(params=["power_brake", "clocks_limited"])
def slowed(request: pytest.FixtureRequest) -> Gpus:
    return Gpus(request.param)


def reason_seconds(device: Device, reason: str) -> float:
    return number(device, "counters", "throttled_seconds_total", reason)


def test_clocks_fall_at_the_onset(slowed: Gpus) -> None:
    slowed.clock.advance(ONSET - 1)
    assert clock(slowed.ill, "sm") == highest_clock(slowed.ill, "sm")
    slowed.clock.advance(10)
    assert clock(slowed.ill, "sm") < 0.7 * highest_clock(slowed.ill, "sm")


def test_the_reason_of_lower_clocks_is_that_of_the_fault() -> None:
    gpus = Gpus("power_brake")
    gpus.clock.advance(ONSET + 30)
    assert gpus.ill.throttle_reasons() == {"power_brake"}
    assert reason_seconds(gpus.ill, "power_brake") > 25
    assert reason_seconds(gpus.ill, "sw_thermal") == 0
    assert gpus.well.throttle_reasons() == frozenset()
    assert reason_seconds(gpus.well, "power_brake") == 0


def test_clocks_that_are_set_lower_have_no_reason() -> None:
    gpus = Gpus("clocks_limited")
    gpus.clock.advance(ONSET + 30)
    assert gpus.ill.throttle_reasons() == frozenset()
    assert number(gpus.ill, "clocks_configured", "clock_configured_hertz", "sm") == 1_188e6
    assert sum(reason_seconds(gpus.ill, reason) for reason in ("sw_thermal", "power_brake", "power_cap")) == 0


def test_counters_grow_from_the_onset_on_and_only_on_the_faulty_gpu() -> None:
    gpus = Gpus("pcie_replays")
    gpus.clock.advance(ONSET - 1)
    assert number(gpus.ill, "health", "pcie_replays_total") == 0
    gpus.clock.advance(121)
    assert number(gpus.ill, "health", "pcie_replays_total") == 180
    assert number(gpus.well, "health", "pcie_replays_total") == 0


def test_counters_with_labels_keep_the_labels_that_do_not_grow() -> None:
    gpus = Gpus("nvlink_errors")
    gpus.clock.advance(ONSET + 60)
    assert gpus.ill.read("health")["nvlink_errors_total"] == {"replay": 60, "recovery": 3, "crc": 0}


def test_an_xid_is_reported_once() -> None:
    gpus = Gpus("xid_hw")
    listener = gpus.driver.listen([gpus.well, gpus.ill])
    assert listener.wait(0) == []
    gpus.clock.advance(ONSET + 1)
    (event,) = listener.wait(0)
    assert (event.device, event.xid) == (gpus.ill, 119)
    assert listener.wait(0) == []


def reports(name: str, seconds: float) -> Iterator[Report]:
    """Yield the newest report of each of two ranks."""
    clock, newest = ScriptedClock(), dict[int, Report]()

    def take(data: bytes) -> None:
        report = parse(data)
        newest[report.rank] = report

    Simulation.named(name, clock=clock, deliver=take, gpus=2, onset=ONSET).advance(seconds)
    return iter(newest.values())


def test_a_pause_is_a_phase_of_all_ranks() -> None:
    for report in reports("checkpoint_stall", 200.0):
        assert report.phases["checkpoint"].occurrences in (11, 12)
        assert report.phases["checkpoint"].max == pytest.approx(3.0, abs=0.1)


def test_a_restart_is_a_new_process_that_goes_on_from_a_checkpoint() -> None:
    received: list[Report] = []
    clock = ScriptedClock()
    simulation = Simulation.named(
        "restart_loop", clock=clock, gpus=1, deliver=lambda data: received.append(parse(data))
    )
    simulation.advance(60.0)
    (first,) = {report.session for report in received}
    assert received[-1].state == "running"
    simulation.advance(20.0)
    failed = next(report for report in received if report.state == "failed")
    starting = received[-1]
    assert failed.session == first != starting.session
    assert (starting.state, starting.activity) == ("starting", "initialization")
    simulation.advance(45.0)
    running = received[-1]
    assert (running.session, running.state) == (starting.session, "running")
    assert running.phases["initialization"].seconds == pytest.approx(45.0)
    steps = running.gauges["step"] - running.phases["forward"].occurrences
    assert failed.gauges["step"] - 50 <= steps <= failed.gauges["step"]


def test_a_job_in_initialization_reports_its_age_and_makes_no_step() -> None:
    clock = ScriptedClock(10_000.0)
    received: list[Report] = []
    simulation = Simulation.named("long_init", clock=clock, gpus=1, deliver=lambda data: received.append(parse(data)))
    simulation.advance(600.0)
    assert {(report.state, report.activity) for report in received} == {("starting", "initialization")}
    assert received[-1].start == 10_000.0 - 1_140.0


def test_steps_grow_from_the_onset_on() -> None:
    (report, _) = reports("step_time_drift", ONSET + 3600.0)
    assert report.phases["forward"].max > 1.6 * 0.35


def test_a_quota_stops_the_ranks_in_a_share_of_its_periods() -> None:
    for report in reports("input_cgroup_throttled", ONSET + 300.0):
        stopped = report.counters["cpu_throttled_periods"]
        assert stopped == pytest.approx(0.6 * report.counters["cpu_periods"], rel=0.05)
        assert report.gauges["cpu_limit_cores"] == 2.0
    assert all("cpu_periods" not in report.counters for report in reports("healthy", 60.0))


def test_values_for_scaling_and_arithmetic_are_reported() -> None:
    (report, _) = reports("scaling_inefficient", 60.0)
    assert report.values == {"single_gpu_samples_per_second": 480.0}
    assert report.counters["samples"] / 60.0 < 0.7 * 480.0
    (report, _) = reports("low_mfu", 60.0)
    assert report.counters["flops"] / 60.0 < 0.1 * 989e12


def test_a_job_starts_on_the_gpu_of_another_and_leaves_its_own_free() -> None:
    gpus = Gpus("shared_unexpectedly")
    shared, free = gpus.well, gpus.ill
    assert [len(gpu.processes()) for gpu in (shared, free)] == [1, 1]
    gpus.clock.advance(ONSET + 10)
    assert [len(gpu.processes()) for gpu in (shared, free)] == [2, 0]
    assert sum(each.memory or 0 for each in shared.processes()) == number(shared, "memory", "memory_used_bytes")
    assert number(free, "memory", "memory_used_bytes") < 500e6
    assert (shared.utilization().gpu > 0.5, free.utilization().gpu) == (True, 0.0)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        (name, phase)
        for name, story in SCENARIOS.items()
        if isinstance(story.fault, LoadChange)
        for phase in story.fault.workload.lines
    ],
)
def test_a_phase_that_loses_time_has_lines_of_the_program(name: str, phase: str) -> None:
    *_, report = reports(name, 300.0)
    fault = scenario(name).fault
    assert isinstance(fault, LoadChange)
    (lines,) = report.code.values()
    assert [line[:2] for line in lines] == [(line.location, line.function) for line in fault.workload.lines[phase]]
    spent = sum(line.seconds for line in lines)
    assert 0.3 * report.phases[phase].seconds < spent < report.phases[phase].seconds


@pytest.mark.parametrize("name", ["healthy", "comm_bound", "h2d_bound", "step_outliers", "straggler_rank"])
def test_other_ranks_have_no_lines(name: str) -> None:
    assert [report.code for report in reports(name, 300.0)] == [{}, {}]


WAITING = "7 ranks wait in all_reduce at simulated/gradients.py:19"


def stacks(name: str, seconds: float) -> dict[int, Stack]:
    """Return the stack of each rank at a standstill, as the exporter reads them."""
    clock = ScriptedClock()
    registry = RunRegistry(clock=clock)
    files = StackFiles(registry, clock=clock)

    def deliver(data: bytes) -> Report:
        return registry.accept(data, "http", os.getpid())

    simulation = Simulation.named(
        name,
        clock=clock,
        deliver=deliver,
        deliver_with_file=lambda data, file: files.keep(deliver(data), PassedFile(os.dup(file))),
        onset=ONSET,
    )
    simulation.advance(seconds)
    clock.advance(1.0)
    files.refresh()
    return {rank: stack for (_, rank), stack in files.standstills.items()}


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("hang_spin", f"{WAITING}; rank 1 is in all_gather at simulated/metrics.py:46"),
        ("gpu_lost", f"{WAITING}; rank 5 is in synchronize at simulated/train.py:79"),
        ("hang_io", "ranks 0, 1, 2, 3, 4, 5, 6 and 7 are in open at simulated/dataset.py:27"),
        ("stalled", "ranks 0, 1, 2, 3, 4, 5, 6 and 7 are in __next__ at simulated/train.py:74"),
    ],
)
def test_ranks_leave_their_stacks_a_minute_after_their_last_report(name: str, summary: str) -> None:
    assert stacks(name, ONSET + 50.0) == {}
    found = stacks(name, ONSET + 90.0)
    assert sentence(grouped({rank: [stack] for rank, stack in found.items()})) == summary


def test_ranks_that_make_steps_leave_no_stack() -> None:
    assert stacks("input_bound", 120.0) == {}


def test_a_load_of_one_rank_leaves_the_others_as_they_are() -> None:
    first, second = reports("straggler_input", 120.0)
    assert second.phases["data_wait"].seconds > 10 * first.phases["data_wait"].seconds
    assert first.phases["communication"].seconds > 2 * second.phases["communication"].seconds


def test_time_outside_of_phases_counts_as_other() -> None:
    (report, _) = reports("sync_stall", 120.0)
    assert report.phases["other"].seconds > 15


def test_a_loss_that_is_not_a_number_is_counted_from_the_onset_on() -> None:
    (before, _), (after, _) = reports("loss_nonfinite", ONSET - 1), reports("loss_nonfinite", 60.0)
    assert before.counters["nonfinite_losses"] == 0
    assert after.counters["nonfinite_losses"] > 20


def test_the_allocator_grows_from_the_onset_on_and_fails_as_often_as_the_scenario_says() -> None:
    (leak, _), (full, _) = reports("gpu_mem_leak", ONSET + 3600.0), reports("gpu_mem_near_oom", ONSET + 300.0)
    assert leak.gauges["allocator_used_bytes"] == pytest.approx(0.52 * MEMORY_BYTES, rel=0.01)
    assert full.counters["allocator_retries"] == pytest.approx(10, abs=1)


def test_gpus_of_an_idle_job_do_not_wait_for_one_another() -> None:
    gpus = Gpus("idle_allocated")
    gpus.clock.advance(300.0)
    assert number(gpus.ill, "counters", "energy_joules_total") == pytest.approx(300.0 * IDLE_WATTS, rel=0.01)


def test_memory_that_no_process_holds_stays_in_use() -> None:
    gpus = Gpus("mem_zombie")
    assert gpus.ill.processes() == []
    assert number(gpus.ill, "memory", "memory_used_bytes") > 10e9


@pytest.mark.parametrize("story", [each for each in SCENARIOS.values() if each.fault], ids=lambda each: each.name)
def test_every_fault_names_signals_and_units_that_exist(story: Scenario) -> None:
    fault = story.fault
    if isinstance(fault, HardwareFault):
        device = Gpus("healthy").ill
        for query, signals in (*fault.readings.items(), *fault.per_minute.items()):
            assert signals.keys() <= device.read(query).keys()
    if isinstance(fault, LoadChange):
        assert fault.workload.kernels.keys() <= set(PhaseEffect._fields)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rules_find_the_causes(tmp_path: Path) -> None:
    """One of each kind: of a GPU, of one rank, of the host, of the job, and of two jobs."""
    names = ("nvlink_down", "straggler_input", "input_remote_latency", "restart_loop", "shared_unexpectedly")
    found = verdicts(names, tmp_path, seconds=480, gpus=2)
    assert [name for name in names if name not in found[name]["run"] | found[name]["gpu"]] == []
