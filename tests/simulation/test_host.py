from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.lab.simulation.host import CPUS, SimulatedHost
from stallscope.lab.simulation.node import Node, pid
from stallscope.lab.simulation.scenarios import scenario
from stallscope.node.collectors.base import Collector, Environment, available
from stallscope.node.owners.processes import Processes
from stallscope.node.sampling.clock import ScriptedClock


class World:
    def __init__(self, root: Path, name: str, onset: float | None = None) -> None:
        self.root = root
        self.clock = ScriptedClock()
        self.host = SimulatedHost(root, Node(scenario(name, onset=onset), self.clock, seed=1, gpus=8))

    def cpu_ticks(self) -> list[int]:
        return [int(field) for field in (self.root / "proc/stat").read_text().splitlines()[0].split()[1:]]

    def sectors_read(self) -> int:
        return int((self.root / "proc/diskstats").read_text().split()[5])

    def waiting_seconds(self) -> float:
        return int((self.root / "proc/pressure/cpu").read_text().splitlines()[0].rpartition("=")[2]) / 1e6

    def after(self, seconds: float) -> World:
        self.clock.advance(seconds)
        self.host.write()
        return self


def busy_share(earlier: list[int], later: list[int]) -> float:
    passed = [b - a for a, b in zip(earlier, later, strict=True)]
    return 1.0 - (passed[3] + passed[4]) / sum(passed)


def values(source: Collector) -> list[float]:
    return [float(str(sample.value)) for sample in source.read()]


def test_the_host_is_labelled_as_simulated(tmp_path: Path) -> None:
    World(tmp_path, "healthy")
    assert (tmp_path / "proc/sys/kernel/osrelease").read_text() == "simulated\n"
    assert "model name\t: Simulated " in (tmp_path / "proc/cpuinfo").read_text()


def test_cpus_saturate_at_the_onset_of_the_scenario(tmp_path: Path) -> None:
    world = World(tmp_path, "input_cpu_saturated", onset=100.0)
    start = world.cpu_ticks()
    calm = world.after(100.0).cpu_ticks()
    saturated = world.after(100.0).cpu_ticks()
    assert busy_share(start, calm) < 0.5
    assert busy_share(calm, saturated) > 0.95


def test_pressure_rises_with_saturation(tmp_path: Path) -> None:
    world = World(tmp_path, "input_cpu_saturated", onset=100.0)
    calm = world.after(100.0).waiting_seconds()
    saturated = world.after(100.0).waiting_seconds() - calm
    assert calm < 5
    assert saturated > 40


@pytest.mark.parametrize("name", ["healthy", "thermal_throttle", "stalled"])
def test_other_scenarios_leave_the_host_calm(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name)
    start = world.cpu_ticks()
    assert busy_share(start, world.after(600.0).cpu_ticks()) < 0.5


@pytest.mark.parametrize("name", ["stalled", "hang_spin", "gpu_lost"])
def test_a_stopped_job_needs_little_of_the_host(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name, onset=60.0)
    start = world.cpu_ticks()
    training, read = world.after(60.0).cpu_ticks(), world.sectors_read()
    assert read > 0
    standing = world.after(60.0).cpu_ticks()
    assert busy_share(training, standing) < busy_share(start, training) / 2
    assert world.sectors_read() == read


def test_modes_sum_to_the_time_of_all_cpus(tmp_path: Path) -> None:
    world = World(tmp_path, "input_cpu_saturated", onset=10.0).after(60.0)
    assert sum(world.cpu_ticks()) == pytest.approx(60.0 * 100 * CPUS, rel=1e-3)


def test_cpus_sum_to_the_line_of_all(tmp_path: Path) -> None:
    World(tmp_path, "healthy").after(33.3)
    lines = (tmp_path / "proc/stat").read_text().splitlines()
    rows = [[int(field) for field in line.split()[1:]] for line in lines if line.startswith("cpu")]
    assert len(rows) == CPUS + 1
    assert rows[0] == [sum(column) for column in zip(*rows[1:], strict=True)]


def test_no_half_written_file_is_left_beside_the_others(tmp_path: Path) -> None:
    World(tmp_path, "healthy").after(1.0)
    assert not list(tmp_path.rglob("*.new"))


def test_the_ranks_are_tasks_of_a_simulated_slurm_job(tmp_path: Path) -> None:
    World(tmp_path, "healthy")
    found = Processes(tmp_path).look_up(pid(rank) for rank in range(9))
    assert sorted(found) == [pid(rank) for rank in range(8)]
    assert {(each.slurm_job, each.user) for each in found.values()} == {("4242", "simulated")}


def test_shared_memory_fills_at_the_onset(tmp_path: Path) -> None:
    world = World(tmp_path, "shm_full", onset=20.0)

    def used() -> float:
        environment = Environment(root=tmp_path, statvfs=world.host.statvfs)
        size, taken = values(available()["shared_memory"](environment))
        return taken / size

    assert used() < 0.1
    world.after(30.0)
    assert used() == pytest.approx(0.9, abs=0.001)


def test_operations_of_a_remote_file_system_wait_from_the_onset_on(tmp_path: Path) -> None:
    world = World(tmp_path, "input_remote_latency", onset=20.0)
    source = available()["nfs"](Environment(root=tmp_path, clock=world.clock))
    assert set(values(source)) == {0}
    world.after(30.0)
    _read, operations, waited = values(source)
    assert waited == pytest.approx(200 * 10.0)
    assert waited / operations == pytest.approx(0.05)


def test_two_jobs_share_a_gpu_of_the_simulated_host(tmp_path: Path) -> None:
    World(tmp_path, "shared_unexpectedly")
    found = Processes(tmp_path).look_up([pid(0), pid(1)])
    assert [found[pid(rank)].slurm_job for rank in (0, 1)] == ["4242", "4243"]
