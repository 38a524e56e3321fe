"""Real queries of a fake driver library, and the devices on the bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.doctor.drivers import drivers
from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn


@pytest.fixture
def driver(nvml_stand_in: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> NvmlStandIn:
    for name, value in nvml_stand_in.environment.items():
        monkeypatch.setenv(name, value)
    return nvml_stand_in


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what hangs behind early, and what answers time enough."""
    monkeypatch.setattr("stallscope.doctor.drivers._CALL_LIMIT", 3.0)


def on_the_bus(root: Path, gpus: int) -> None:
    for number in range(gpus):
        device = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")


def test_a_driver_that_answers_is_told_with_its_versions(driver: NvmlStandIn, tmp_path: Path) -> None:
    found = list(drivers(tmp_path))
    assert {each.status for each in found} == {"ok"}
    assert "NVML" in found[0].message
    assert "8 NVIDIA GPUs" in found[1].message


def test_gpus_that_are_lost_or_hang_fail_and_the_others_are_counted(
    soon: None, driver: NvmlStandIn, tmp_path: Path
) -> None:
    on_the_bus(tmp_path, 9)
    driver.gpu[3].state = GpuState.LOST
    driver.gpu[5].hang_function = b"nvmlDeviceGetPowerUsage"
    found = list(drivers(tmp_path))
    lost, hung = (each.message for each in found if each.status == "failed")
    assert "1 of the GPUs do not say what they are" in lost
    assert hung.startswith("GPU 5 (GPU-")
    assert [each.message for each in found if each.status == "warning"] == [
        "the PCI bus has 9 NVIDIA GPUs, but the driver reports 7"
    ]


def test_a_driver_that_hangs_fails_and_holds_nobody_up(soon: None, driver: NvmlStandIn, tmp_path: Path) -> None:
    driver.control.hang_function = b"nvmlDeviceGetCount_v2"
    (found,) = drivers(tmp_path)
    assert found.status == "failed"
    assert "driver hangs" in found.message


def test_a_driver_that_is_not_loaded_fails_where_there_are_gpus_and_only_there(
    driver: NvmlStandIn, tmp_path: Path
) -> None:
    driver.set_driver(DriverState.NOT_LOADED)
    assert [each.status for each in drivers(tmp_path)] == ["skipped"]
    on_the_bus(tmp_path, 2)
    (found,) = drivers(tmp_path)
    assert found.status == "failed"
    assert "2 NVIDIA GPUs" in found.message
