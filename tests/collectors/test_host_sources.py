"""Properties of every host source: on this machine, on every recorded tree, and on the simulated host."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.lab.simulation.host import SimulatedHost
from stallscope.lab.simulation.node import Node
from stallscope.lab.simulation.scenarios import scenario
from stallscope.model.catalogue.metrics import HOST_FAMILIES, PROCESS_FAMILIES
from stallscope.node.collectors.base import Collector, NotPresent, available
from stallscope.node.sampling.clock import ScriptedClock
from tests.collectors.recorded import TREES, source_at, values

HOST = {
    name: source
    for name, source in available().items()
    if source.__module__ in {f"stallscope.node.{family.provider}" for family in (*HOST_FAMILIES, *PROCESS_FAMILIES)}
}


def read_or_absent(source: Collector) -> set[str]:
    """Names of the families read; none where the machine has no such part."""
    try:
        return {key[0] for key in values(source)}
    except NotPresent:
        return set()


ONLY_AFTER_A_KILL = {"cgroup_oom_kills_total"}
"""Families that a single reading does not have; see test_memory.py."""


@pytest.mark.parametrize("name", HOST)
def test_reads_this_machine_twice_or_says_that_it_has_no_such_part(name: str) -> None:
    source = source_at(HOST[name], Path("/"))
    assert read_or_absent(source) == read_or_absent(source)


@pytest.mark.parametrize("name", ["cpu", "memory", "process"])
def test_what_every_linux_has_is_read_on_this_machine(name: str) -> None:
    assert read_or_absent(source_at(HOST[name], Path("/")))


@pytest.mark.parametrize("name", HOST)
def test_is_found_in_the_file_of_its_name_and_says_what_it_reads(name: str) -> None:
    assert HOST[name].__module__ == f"stallscope.node.collectors.{name}"
    assert HOST[name].summary.endswith(").")


def test_every_host_family_comes_from_the_source_that_the_catalogue_names() -> None:
    trees = [tree for tree in TREES.iterdir() if (tree / "proc/stat").is_file()]
    for name, source in HOST.items():
        named = {
            family.name.removeprefix("stallscope_host_")
            for family in (*HOST_FAMILIES, *PROCESS_FAMILIES)
            if family.provider == f"collectors.{name}"
        } - ONLY_AFTER_A_KILL
        assert set().union(*(read_or_absent(source_at(source, tree)) for tree in trees)) == named


def test_the_simulated_host_is_read_like_a_real_one(tmp_path: Path) -> None:
    clock = ScriptedClock()
    host = SimulatedHost(tmp_path, Node(scenario("healthy"), clock, seed=1, gpus=8))
    sources = {name: source_at(source, tmp_path, clock) for name, source in HOST.items()}
    for _ in range(3):
        read = {name: read_or_absent(source) for name, source in sources.items()}
        clock.advance(1.0)
        host.write()
    assert {name for name, families in read.items() if not families} == {"nfs", "rdma", "shared_memory"}


def test_no_counter_of_the_simulated_host_ever_falls(tmp_path: Path) -> None:
    clock = ScriptedClock()
    host = SimulatedHost(tmp_path, Node(scenario("input_cpu_saturated", onset=5.0), clock, seed=1, gpus=8))
    sources = [source_at(HOST[name], tmp_path, clock) for name in ("cpu", "disk", "memory", "network", "pressure")]
    before: dict[tuple[str, ...], float] = {}
    for _ in range(30):
        for source in sources:
            for key, value in values(source).items():
                assert isinstance(value, (int, float))
                if key[0].endswith("_total"):
                    assert value >= before.get(key, 0.0), key
                    before[key] = value
        clock.advance(0.7)
        host.write()
    assert before
