"""The real driver library decides if GPUs have to be simulated."""

from __future__ import annotations

import pytest

from stallscope.lab.stack.driver import driver_answer
from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn


@pytest.fixture
def node(nvml_stand_in: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> NvmlStandIn:
    for variable, value in nvml_stand_in.environment.items():
        monkeypatch.setenv(variable, value)
    return nvml_stand_in


def test_a_driver_that_responds_is_described_with_its_gpus(node: NvmlStandIn) -> None:
    answer = driver_answer(timeout=60)
    assert answer is not None
    assert "(8), driver " in answer


def test_one_lost_gpu_makes_no_simulated_node_of_a_real_one(node: NvmlStandIn) -> None:
    node.gpu[3].state = GpuState.LOST
    assert driver_answer(timeout=60) is not None


def test_a_driver_that_is_not_loaded_does_not_answer(node: NvmlStandIn) -> None:
    node.set_driver(DriverState.NOT_LOADED)
    assert driver_answer() is None


def test_a_driver_that_hangs_does_not_hang_the_launcher(node: NvmlStandIn) -> None:
    for gpu in node.gpu:
        gpu.state = GpuState.HUNG
    assert driver_answer(timeout=1.5) is None
