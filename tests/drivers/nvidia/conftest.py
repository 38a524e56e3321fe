"""Fixtures for the tests of the NVIDIA driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import GpuState, NvmlStandIn


@pytest.fixture
def driver_process(nvml_stand_in: NvmlStandIn) -> Iterator[DriverProcess]:
    """A child that has met the first GPU of the stand-in node."""
    with DriverProcess(nvml_stand_in) as child:
        child.open()
        nvml_stand_in.reset_counts()
        yield child


@pytest.fixture(scope="module")
def _module_driver_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NvmlStandIn, DriverProcess]]:
    node = NvmlStandIn(Path(tmp_path_factory.mktemp("node")))
    with DriverProcess(node) as child:
        child.open()
        yield node, child


@pytest.fixture
def shared_driver(_module_driver_process: tuple[NvmlStandIn, DriverProcess]) -> tuple[NvmlStandIn, DriverProcess]:
    """A node and a child that the module's tests share, for many small questions; the first GPU is well again."""
    node, child = _module_driver_process
    node.gpu[0].state = GpuState.OK
    child.open()
    return node, child
