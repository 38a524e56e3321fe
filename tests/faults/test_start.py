"""An exporter that starts on a machine whose driver is not there, not yet, or only in part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.machine import SOURCE_UP, STUCK_THREADS, Machine
from tests.nvml_library.stand_in import DriverState, GpuState


def test_a_machine_without_the_library_has_no_gpu_series_and_no_failure(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.without_library = True
    machine.start()
    machine.logged("source nvidia: not on this machine")
    machine.until_newer(machine.page())
    page = machine.until(lambda page: page.get(SOURCE_UP, source="process") == 1)
    assert "stallscope_gpu_" not in page.text
    assert page.get(SOURCE_UP, source="nvidia") is None
    assert page.get("stallscope_exporter_source_failures_total", source="nvidia") in {None, 0}


@pytest.mark.parametrize("state", [DriverState.NOT_LOADED, DriverState.FORBIDDEN, DriverState.MISMATCHED])
def test_a_driver_that_comes_after_the_exporter_is_found(
    new_machine: Callable[..., Machine], state: DriverState
) -> None:
    machine = new_machine()
    machine.node.set_driver(state)
    machine.start()
    machine.logged("source nvidia: not on this machine")
    page = machine.until_newer(machine.page())
    assert "stallscope_gpu_" not in page.text
    assert page.get(SOURCE_UP, source="nvidia") is None
    machine.node.set_driver(DriverState.LOADED)
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
