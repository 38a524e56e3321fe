"""Real queries of a fake driver library, and the devices on the bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.tools.doctor.drivers import drivers
from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn

CALL_LIMIT = 30.0
"""Seconds in which a call responds on any machine."""
HANG_LIMIT = 3.0
"""Seconds to wait for a call that hangs: long for one that responds."""


@pytest.fixture
def driver(nvml_stand_in: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> NvmlStandIn:
    for name, value in nvml_stand_in.environment.items():
        monkeypatch.setenv(name, value)
    return nvml_stand_in


def on_the_bus(root: Path, gpus: int) -> None:
    for number in range(gpus):
        device = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")


def test_a_driver_that_responds_is_reported_with_its_versions(driver: NvmlStandIn, tmp_path: Path) -> None:
    found = list(drivers(tmp_path, CALL_LIMIT))
    assert {each.status for each in found} == {"ok"}
    assert "NVML" in found[0].message
    assert "8 NVIDIA GPUs" in found[1].message


def test_gpus_that_are_lost_or_hang_fail_and_the_others_are_counted(driver: NvmlStandIn, tmp_path: Path) -> None:
    on_the_bus(tmp_path, 9)
    driver.gpu[3].state = GpuState.LOST
    driver.gpu[5].hang_function = b"nvmlDeviceGetPowerUsage"
    found = list(drivers(tmp_path, HANG_LIMIT))
    lost, hung = (each.message for each in found if each.status == "failed")
    assert "1 of the GPUs can't be identified" in lost
    assert hung.startswith("GPU 5 (GPU-")
    assert [each.message for each in found if each.status == "warning"] == [
        "the PCI bus has 9 NVIDIA GPUs, but the driver reports 7"
    ]


def test_a_driver_that_hangs_fails_without_blocking_the_check(driver: NvmlStandIn, tmp_path: Path) -> None:
    driver.control.hang_function = b"nvmlDeviceGetCount_v2"
    (found,) = drivers(tmp_path, HANG_LIMIT)
    assert found.status == "failed"
    assert "driver hangs" in found.message


def other_device_on_the_bus(root: Path) -> None:
    device = root / "sys/bus/pci/devices/0000:00:1f.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x8086\n")
    (device / "class").write_text("0x060100\n")


def test_a_driver_that_is_not_loaded_fails_where_a_gpu_is_or_may_be(driver: NvmlStandIn, tmp_path: Path) -> None:
    driver.set_driver(DriverState.NOT_LOADED)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert (found.status, "Driver Not Loaded" in found.message) == ("failed", True), "the bus is not visible"
    other_device_on_the_bus(tmp_path)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert (found.status, "modprobe" in found.remedy) == ("warning", True), "the bus has no GPU"
    on_the_bus(tmp_path, 2)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert found.status == "failed"
    assert "2 NVIDIA GPUs" in found.message


@pytest.mark.parametrize(
    ("state", "words"), [(DriverState.MISMATCHED, "version mismatch"), (DriverState.FORBIDDEN, "Permissions")]
)
def test_a_driver_that_refuses_fails_even_where_the_bus_shows_no_gpu(
    state: DriverState, words: str, driver: NvmlStandIn, tmp_path: Path
) -> None:
    other_device_on_the_bus(tmp_path)
    driver.set_driver(state)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert (found.status, words in found.message) == ("failed", True)
    assert found.remedy


@pytest.mark.parametrize(
    ("state", "words"),
    [(DriverState.MISMATCHED, "reload its kernel module or reboot"), (DriverState.BLOCKED, "cgroup")],
)
def test_a_driver_that_refuses_on_a_machine_with_gpus_has_the_remedy_of_its_reason(
    state: DriverState, words: str, driver: NvmlStandIn, tmp_path: Path
) -> None:
    on_the_bus(tmp_path, 4)
    driver.set_driver(state)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert (found.status, found.message.startswith("this machine has 4 NVIDIA GPUs, but")) == ("failed", True)
    assert words in found.remedy
    assert words not in found.message, "the remedy is shown once"


def test_a_driver_without_a_known_version_is_not_ok(driver: NvmlStandIn, tmp_path: Path) -> None:
    driver.control.driver_version = b""
    found = list(drivers(tmp_path, CALL_LIMIT))
    assert (found[0].status, "no version" in found[0].message) == ("warning", True)


def test_a_machine_without_library_and_gpu_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert (found.status, "bus is not visible" in found.message) == ("skipped", True)
    other_device_on_the_bus(tmp_path)
    (found,) = drivers(tmp_path, CALL_LIMIT)
    assert (found.status, found.message) == ("skipped", "this machine has no NVIDIA or AMD GPU")
