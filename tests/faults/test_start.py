"""An exporter that starts on a machine whose driver is not there, not yet, or only in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.machine import FAILURES, SOURCE_UP, STUCK_THREADS, Machine
from tests.nvml_library.stand_in import DriverState, GpuState


def test_a_machine_without_the_library_has_no_gpu_series_and_no_failure(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.without_library = True
    machine.start()
    machine.logged(
        "source nvidia: not on this machine: .*, although the kernel lists GPUs; install the driver's library"
    )
    machine.until_newer(machine.page())
    page = machine.until(lambda page: page.get(SOURCE_UP, source="process") == 1)
    assert "stallscope_gpu_" not in page.text
    assert page.get(SOURCE_UP, source="nvidia") is None
    assert page.get(FAILURES, source="nvidia") in {None, 0}


def starts_quietly(machine: Machine) -> None:
    machine.start()
    machine.logged("source nvidia: not on this machine")
    page = machine.until_newer(machine.page())
    assert "stallscope_gpu_" not in page.text
    assert page.get(SOURCE_UP, source="nvidia") is None


def starts_down(machine: Machine, words: str) -> None:
    machine.start()
    machine.logged(f"level=warn.*source nvidia failed: DriverUnavailable: .*{words}")
    page = machine.until(lambda page: page.get(SOURCE_UP, source="nvidia") == 0)
    assert (page.get(FAILURES, source="nvidia") or 0) > 0
    assert "not on this machine" not in machine.log()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (DriverState.MISMATCHED, "version mismatch; .* reload its kernel module or reboot"),
        (DriverState.FORBIDDEN, "Insufficient Permissions; let the exporter's user open"),
        (DriverState.BLOCKED, "; let the exporter's cgroup open /dev/nvidia"),
        (DriverState.BROKEN, "Unknown Error; `nvidia-smi` must work first"),
    ],
)
def test_a_driver_that_refuses_from_the_start_is_down_until_it_answers(
    new_machine: Callable[..., Machine], state: DriverState, words: str
) -> None:
    machine = new_machine()
    machine.hide_hardware()
    machine.node.set_driver(state)
    starts_down(machine, words)
    machine.node.set_driver(DriverState.LOADED)
    machine.until_healthy()


@pytest.mark.parametrize("evidence", ["bus", "kernel module"])
def test_a_driver_that_is_not_loaded_is_down_on_a_machine_with_gpus(
    new_machine: Callable[..., Machine], evidence: str
) -> None:
    machine = new_machine()
    if evidence == "bus":
        machine.hide_hardware()
        machine.show_on_the_bus("0x8086", "0x10de")
    machine.node.set_driver(DriverState.NOT_LOADED)
    starts_down(machine, "Driver Not Loaded; load the kernel module")
    machine.node.set_driver(DriverState.LOADED)
    machine.until_healthy()


@pytest.mark.parametrize(
    ("vendors", "kernel_driver"),
    [((), ""), (("0x8086", "0x1002"), ""), (("0x10de",), "vfio-pci")],
    ids=["bus not visible", "other makers", "passed on to a virtual machine"],
)
def test_a_driver_that_is_not_loaded_is_absent_where_no_gpu_is_the_machines(
    new_machine: Callable[..., Machine], vendors: tuple[str, ...], kernel_driver: str
) -> None:
    machine = new_machine()
    machine.hide_hardware()
    machine.show_on_the_bus(*vendors, driver=kernel_driver)
    machine.node.set_driver(DriverState.NOT_LOADED)
    starts_quietly(machine)
    machine.node.set_driver(DriverState.LOADED)
    machine.until_healthy()


def test_a_library_that_cannot_be_loaded_is_down_on_a_machine_with_gpus(
    new_machine: Callable[..., Machine], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libnvidia-ml.so.1").write_bytes(b"not a library")
    machine = new_machine()
    machine.node.library_directory = broken
    starts_down(machine, "can't be loaded: .*; install the driver again")


def test_a_library_that_cannot_be_loaded_is_absent_without_a_gpu(
    new_machine: Callable[..., Machine], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libnvidia-ml.so.1").write_bytes(b"not a library")
    machine = new_machine()
    machine.hide_hardware()
    machine.node.library_directory = broken
    starts_quietly(machine)


def test_a_driver_that_lists_no_gpu_is_down_on_a_machine_with_gpus(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    count, machine.node.control.gpu_count = machine.node.control.gpu_count, 0
    starts_down(machine, "lists none of this machine's GPUs; see dmesg")
    machine.node.control.gpu_count = count
    machine.until_healthy()


def test_a_driver_that_lists_no_gpu_is_no_failure_on_a_machine_without_gpus(
    new_machine: Callable[..., Machine],
) -> None:
    machine = new_machine(gpus=0)
    machine.show_on_the_bus("0x8086")
    machine.start()
    machine.until_newer(machine.page())
    page = machine.until(lambda page: page.get(SOURCE_UP, source="process") == 1)
    assert page.get(SOURCE_UP, source="nvidia") in {None, 1}
    assert page.get(FAILURES, source="nvidia") in {None, 0}


def test_a_driver_that_blocks_from_the_start_is_down_until_it_answers(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.node.hang("nvmlInitWithFlags")
    machine.start()
    machine.logged("level=warn.*source nvidia has not come back from a reading")
    machine.until(lambda page: page.get(SOURCE_UP, source="nvidia") == 0)
    machine.node.hang("")
    machine.until_healthy()


def test_a_gpu_that_hangs_from_the_start_hides_no_other(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.node.gpu[2].state = GpuState.HUNG
    machine.start()
    others = [machine.uuid(index) for index in (0, 1, 3)]
    page = machine.until(lambda page: [page.state(uuid) for uuid in others] == ["up"] * 3)
    assert page.state(machine.uuid(2)) is None
    # The GPU has no series that could report it, so the source does.
    page = machine.until(lambda page: page.get(SOURCE_UP, source="nvidia") == 0)
    machine.node.gpu[2].state = GpuState.OK
    machine.until_healthy()
    machine.until(lambda page: page.get(STUCK_THREADS, source="nvidia") == 0)
