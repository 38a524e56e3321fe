"""Fixtures for the tests of the NVIDIA driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.nvidia.asking import Asking
from tests.nvml_library.stand_in import GpuState, NvmlStandIn


@pytest.fixture
def asking(nvml_stand_in: NvmlStandIn) -> Iterator[Asking]:
    """A child that has met the first GPU of the stand-in node."""
    with Asking(nvml_stand_in) as child:
        child.meet()
        nvml_stand_in.reset_counts()
        yield child


@pytest.fixture(scope="module")
def _module_asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NvmlStandIn, Asking]]:
    node = NvmlStandIn(Path(tmp_path_factory.mktemp("node")))
    with Asking(node) as child:
        child.meet()
        yield node, child


@pytest.fixture
def shared_asking(_module_asking: tuple[NvmlStandIn, Asking]) -> tuple[NvmlStandIn, Asking]:
    """A node and a child that the module's tests share, for many small questions; the first GPU is well again."""
    node, child = _module_asking
    node.gpu[0].state = GpuState.OK
    child.meet()
    return node, child
