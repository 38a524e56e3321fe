"""The host's memory stands for the one of a GPU that has none, and for no other GPU's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.drivers.device import DriverError, Identity, Unsupported
from stallscope.node.drivers.unified_memory import HostMemory, has_unified_memory, host_memory, read_memory
from tests.collectors.gpu.scripted_driver import ScriptedDevice, memory

# As published of a DGX Spark.
MEMINFO = "MemTotal:       127600748 kB\nMemFree:        95003452 kB\nMemAvailable:   118566368 kB\nCached: 1 kB\n"
TOTAL, AVAILABLE = 127_600_748 * 1024, 118_566_368 * 1024


def identity(model: str, capability: str, mig: str = "") -> Identity:
    return Identity(0, "GPU-0", model, "", "", "", "", capability, mig=mig)


SPARK = identity("NVIDIA GB10", "12.1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "capability", "unified"),
    [
        ("NVIDIA GB10", "12.1", True),
        ("NVIDIA Thor", "11.0", True),
        ("Orin (nvgpu)", "8.7", True),
        ("Orin (nvgpu)", "", True),
        ("NVIDIA GH200 480GB", "9.0", False),
        ("NVIDIA GB200", "10.0", False),
        ("NVIDIA GB300", "10.3", False),
        ("NVIDIA GeForce RTX 5090", "12.0", False),
        ("NVIDIA A10", "8.6", False),
        ("", "", False),
    ],
)
def test_systems_on_a_chip_have_unified_memory_and_gpus_with_memory_of_their_own_have_not(
    model: str, capability: str, unified: bool
) -> None:
    assert has_unified_memory(identity(model, capability)) is unified
    assert not has_unified_memory(identity(model, capability, mig="1g.10gb"))


def test_a_gpu_without_memory_of_its_own_has_what_the_host_has_left(root: Path) -> None:
    device = ScriptedDevice(identity=SPARK)
    assert read_memory(device, root) == memory(TOTAL, TOTAL - AVAILABLE)


def test_a_driver_that_reports_memory_is_believed(root: Path) -> None:
    device = ScriptedDevice(identity=SPARK, memory=memory(100, 10, 1))
    assert read_memory(device, root) == memory(100, 10, 1)


@pytest.mark.parametrize("capability", ["9.0", "10.0", "12.0", ""])
def test_a_discrete_gpu_whose_query_is_refused_has_no_memory_of_the_host(root: Path, capability: str) -> None:
    with pytest.raises(Unsupported):
        read_memory(ScriptedDevice(identity=identity("NVIDIA GH200 480GB", capability)), root)


def test_a_query_that_fails_otherwise_is_not_replaced(root: Path) -> None:
    device = ScriptedDevice(identity=SPARK, memory=DriverError("timeout", "no answer"))
    with pytest.raises(DriverError, match="no answer"):
        read_memory(device, root)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MemTotal: 1 kB\n",
        "MemTotal: x kB\nMemAvailable: 1 kB\n",
        "MemTotal:\nMemAvailable: 1 kB\n",
        "MemTotal: 1 kB\nMemAvailable: 2 kB\n",
    ],
)
def test_a_kernel_that_does_not_report_available_memory_leaves_the_gpu_without(root: Path, text: str) -> None:
    (root / "proc/meminfo").write_text(text)
    assert host_memory(root) is None
    with pytest.raises(Unsupported):
        read_memory(ScriptedDevice(identity=SPARK), root)


def test_the_hosts_memory_is_read_in_bytes(root: Path) -> None:
    assert host_memory(root) == HostMemory(TOTAL, AVAILABLE)
    assert host_memory(root / "nowhere") is None
