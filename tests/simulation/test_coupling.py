"""GPUs that follow the phases of ranks: what the real shim reports on a scripted clock, as the driver then shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.lab.simulation import Simulation
from stallscope.lab.simulation.coupling import DELAY_SECONDS
from stallscope.lab.simulation.driver import SimulatedDevice
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import Report, parse
from stallscope.training.shim.run import Run
from tests.simulation.numbers import memory, number, watts

STEP = {"data_wait": 0.1, "forward": 0.1, "backward": 0.15, "optimizer": 0.05}


class Node:
    """A coupled node of four GPUs, and the real ranks that report to it."""

    def __init__(self) -> None:
        self.clock = ScriptedClock()
        self.newest: dict[str, Report] = {}
        self.simulation = Simulation.named(
            "coupled", clock=self.clock, gpus=4, reports=lambda: list(self.newest.values())
        )
        driver = self.simulation.driver()
        driver.open()
        self.gpus = [device for device in driver.devices() if isinstance(device, SimulatedDevice)]

    def take(self, payload: bytes) -> None:
        report = parse(payload)
        self.newest[report.run] = report

    def rank(self, name: str, gpu: str, uuid: str = "") -> Run:
        """A rank of one process that claims a GPU."""
        return SimulatedRun(
            name, rank=0, gpus=[{"gpu": gpu, "uuid": uuid}], pid=4711, clock=self.clock, sender=self.take, info={}
        )

    def spend(self, run: Run, **phases: float) -> None:
        """Let the rank spend time in phases."""
        for phase, seconds in phases.items():
            with run.phase(phase):
                self.simulation.advance(seconds)

    def train(self, run: Run, steps: int, **phases: float) -> None:
        """Let the rank make steps."""
        for _ in range(steps):
            self.spend(run, **phases)
            run.step()

    def busy_seconds(self, gpu: int = 0) -> float:
        activity = self.gpus[gpu].activity()
        assert activity is not None
        return activity.seconds * (activity.graphics or 0.0)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def run(node: Node) -> Iterator[Run]:
    with node.rank("job", "0") as run:
        node.train(run, 10, **STEP)
        node.busy_seconds()
        yield run


def test_kernels_run_in_the_phases_that_compute_and_in_no_other(node: Node, run: Run) -> None:
    node.train(run, 100, **STEP)
    assert node.busy_seconds() == pytest.approx(100 * 0.3, rel=0.03)
    assert node.gpus[0].utilization().gpu == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize("phase", ["checkpoint", "logging", "data_wait", "restore", "my own"])
def test_a_gpu_idles_in_a_phase_of_the_host(node: Node, run: Run, phase: str) -> None:
    for _ in range(10):
        node.spend(run, **{phase: 3.0})
        node.train(run, 5, **STEP)
    assert node.busy_seconds() == pytest.approx(10 * 5 * 0.3, rel=0.05), "however long the host is silent in it"


def test_host_work_that_no_phase_names_leaves_one_gap_and_not_many_small_ones(node: Node, run: Run) -> None:
    for _ in range(10):
        node.train(run, 20, forward=0.1)
        node.simulation.advance(1.0)
    samples = [sample.value for sample in node.gpus[0].utilization_samples("gpu", 0)[-72:]]
    assert samples.count(0.0) == pytest.approx(24, abs=5)
    assert samples.count(1.0) == pytest.approx(48, abs=8)


def test_a_gpu_computes_in_the_rest_of_a_step_where_no_phase_of_its_own_is_measured(node: Node) -> None:
    with node.rank("tracked", "1") as run:
        for count in (10, 100):
            node.busy_seconds(1)
            for _ in range(count):
                node.spend(run, data_wait=0.1)
                node.simulation.advance(0.3)
                run.step()
        assert node.busy_seconds(1) == pytest.approx(100 * 0.3, rel=0.03)


def test_an_evaluation_keeps_the_gpu_busy(node: Node, run: Run) -> None:
    for _ in range(100):
        node.spend(run, evaluation=0.5)
    assert node.busy_seconds() == pytest.approx(50, rel=0.05)


def test_a_wait_longer_than_the_drivers_samples_shows_as_idle_samples(node: Node, run: Run) -> None:
    node.train(run, 15, forward=1.0, data_wait=1.0)
    samples = [sample.value for sample in node.gpus[0].utilization_samples("gpu", 0)[-48:]]
    assert samples.count(0.0) == pytest.approx(24, abs=5)
    assert samples.count(1.0) == pytest.approx(24, abs=5)


def test_power_clocks_and_units_follow_the_work(node: Node, run: Run) -> None:
    node.train(run, 20, forward=0.5)
    working = watts(node.gpus[0])
    activity = node.gpus[0].activity()
    node.spend(run, data_wait=5.0)
    assert working > 3 * watts(node.gpus[0])
    assert activity is not None
    assert activity.sm is not None
    assert activity.sm > 0.8


def test_a_silent_rank_leaves_its_gpu_idle_after_the_delay(node: Node, run: Run) -> None:
    node.train(run, 20, forward=0.5)
    node.simulation.advance(DELAY_SECONDS + 0.5)
    node.busy_seconds()
    node.simulation.advance(60.0)
    assert node.busy_seconds() == 0.0
    assert node.gpus[0].processes(), "its process is still there"


def test_counters_never_fall_and_time_is_never_made_up(node: Node, run: Run) -> None:
    energy = number(node.gpus[0], "counters", "energy_joules_total")
    for turn in range(200):
        node.train(run, 1, forward=0.05 + turn % 7, data_wait=turn % 3)
        now = number(node.gpus[0], "counters", "energy_joules_total")
        assert now >= energy
        energy = now
        activity = node.gpus[0].activity()
        assert activity is not None
        assert 0.0 <= (activity.graphics or 0.0) <= 1.0


def test_each_rank_drives_the_gpu_that_it_claims_by_index_or_uuid(node: Node, run: Run) -> None:
    with node.rank("other", "", node.gpus[2].identity().uuid) as other:
        node.train(other, 100, **STEP)
        for gpu in (1, 2, 3):
            node.busy_seconds(gpu)
        node.train(other, 100, **STEP)
        assert node.busy_seconds(2) == pytest.approx(30, rel=0.05)
        assert node.busy_seconds(1) == node.busy_seconds(3) == 0.0


def test_a_claim_of_hardware_drives_no_simulated_gpu(node: Node) -> None:
    with node.rank("elsewhere", "1", "GPU-5e2cba60-7a04-4bb1-a1d6-000000000000") as run:
        node.train(run, 20, **STEP)
        assert node.gpus[1].processes() == []


def test_a_claimed_gpu_holds_the_ranks_own_process_and_memory(node: Node, run: Run) -> None:
    assert [process.pid for process in node.gpus[0].processes()] == [4711]
    assert memory(node.gpus[0], "used") > 0.5 * memory(node.gpus[0], "total")
    assert node.gpus[1].processes() == []
    assert memory(node.gpus[1], "used") < 0.01 * memory(node.gpus[1], "total")


def test_a_rank_that_ended_lets_its_gpu_go(node: Node, run: Run) -> None:
    node.train(run, 20, **STEP)
    node.newest.clear()
    node.simulation.advance(10.0)
    node.busy_seconds()
    node.simulation.advance(10.0)
    assert node.busy_seconds() == 0.0
    assert node.gpus[0].processes() == []


def test_a_restarted_rank_drives_its_gpu_again(node: Node, run: Run) -> None:
    run.silence()
    node.simulation.advance(30.0)
    with node.rank("job", "0") as again:
        node.train(again, 20, **STEP)
        node.busy_seconds()
        node.train(again, 100, **STEP)
        assert node.busy_seconds() == pytest.approx(30, rel=0.05)


def test_a_coupled_scenario_without_real_ranks_or_a_real_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="coupled needs the reports of real ranks"):
        Simulation.named("coupled", clock=ScriptedClock())
    with pytest.raises(ValueError, match="and the real host"):
        Simulation.named("coupled", clock=ScriptedClock(), reports=list, host_tree=tmp_path)
