"""A survey reports every GPU, and does not wait for a GPU that hangs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from stallscope.lab.simulation.simulation import Simulation
from stallscope.node.collectors.amd import AmdCollector
from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.gpu.survey import survey
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.sampling.clock import SystemClock
from stallscope.node.sampling.reading import Sample
from tests.waiting import giving_up_on


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    simulation = Simulation.named("healthy", clock=SystemClock(), gpus=2)
    yield simulation
    simulation.stop()


def source(simulation: Simulation) -> NvidiaCollector:
    return NvidiaCollector(Environment(driver=simulation.driver))


def test_every_gpu_is_listed_with_its_signals(simulation: Simulation) -> None:
    found = survey(source(simulation), readings=2, pause=0.05, limit=60.0)
    assert [gpu.info["gpu"] for gpu in found.gpus] == ["0", "1"]
    assert not found.problem
    for gpu in found.gpus:
        assert not gpu.trouble
        assert any(signal.supported and signal.samples for signal in gpu.signals)
        assert all(not signal.samples for signal in gpu.signals if signal.supported is False)


def test_a_gpu_that_hangs_is_named_and_the_other_is_read(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = source(simulation)
    hanging.read()
    (uuid,) = (uuid for uuid, gpu in hanging.gpus.items() if gpu.identity.index == 1)
    monkeypatch.setattr("stallscope.node.collectors.gpu.survey.run_concurrently", giving_up_on(uuid))
    simulation.hang(1)
    well, hung = survey(hanging, readings=2, pause=0.05, limit=3.0).gpus
    assert (well.trouble, well.hung) == ("", False)
    assert hung.hung
    assert hung.trouble == "it did not answer within 3 s"
    simulation.release()


def test_gpus_of_another_vendor_are_listed_alike() -> None:
    tree = Path(__file__).parents[2] / "recorded_trees" / "amd_mi300x"
    found = survey(AmdCollector(Environment(root=tree)), readings=2, pause=0.05, limit=60.0)
    assert found.gpus
    for gpu in found.gpus:
        assert gpu.info["model"].startswith("AMD Instinct")
        assert {signal.family.signal: signal.call for signal in gpu.signals}["power_watts"] == "power1_input"


def test_a_machine_without_a_driver_is_read_once_and_the_reason_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = AmdCollector(Environment(root=tmp_path))
    queried: list[None] = []
    read = absent.read

    def counted() -> Iterable[Sample]:
        queried.append(None)
        return read()

    monkeypatch.setattr(absent, "read", counted)
    found = survey(absent, readings=2, pause=0.05, limit=60.0)
    assert not found.gpus
    assert found.problem
    assert not found.hung
    assert len(queried) == 1
