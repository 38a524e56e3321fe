"""Events over the real pynvml."""

from __future__ import annotations

import pytest

from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import DriverState, EventFault, Group, NvmlStandIn


@pytest.fixture
def listening(driver_process: DriverProcess) -> DriverProcess:
    """A child that listens to all GPUs."""
    assert driver_process.execute("listener = driver.listen(driver.devices())") is None
    return driver_process


def test_a_wait_without_events_is_empty(listening: DriverProcess) -> None:
    assert listening.evaluate("listener.wait(0.01)") == []


def test_events_name_their_gpu_and_code(listening: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.raise_xid(3, 79)
    nvml_stand_in.raise_xid(0, 31)
    nvml_stand_in.raise_mig_change(1)
    assert listening.evaluate("listener.wait(10)") == [
        {"device": NvmlStandIn.uuid(3), "xid": 79},
        {"device": NvmlStandIn.uuid(0), "xid": 31},
        {"device": NvmlStandIn.uuid(1), "xid": None},
    ]
    assert listening.evaluate("listener.wait(0)") == []


def test_events_from_before_the_listener_are_not_returned(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.raise_xid(0, 31)
    driver_process.execute("listener = driver.listen(driver.devices())")
    assert driver_process.evaluate("listener.wait(0)") == []


def test_an_implausible_code_is_left_out_and_counted(listening: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.raise_xid(0, 2**64 - 1)
    nvml_stand_in.raise_xid(0, 13)
    assert [each["xid"] for each in listening.evaluate("listener.wait(10)")] == [13]
    assert listening.evaluate("gpu.rejected") == {"out_of_range": 1}


def test_a_gpu_without_events_is_passed_over(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].lack(Group.EVENTS)
    driver_process.execute("listener = driver.listen(driver.devices())")
    nvml_stand_in.raise_xid(1, 79)
    assert [each["device"] for each in driver_process.evaluate("listener.wait(10)")] == [NvmlStandIn.uuid(1)]


def test_a_gpu_that_knows_only_xids_is_listened_to_for_these(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    for gpu in nvml_stand_in.gpu:
        gpu.event_types = 0x8
    assert driver_process.execute("listener = driver.listen(driver.devices())") is None
    nvml_stand_in.raise_xid(1, 79)
    assert len(driver_process.evaluate("listener.wait(10)")) == 1


def test_where_no_gpu_has_events_listening_is_unsupported(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    for gpu in nvml_stand_in.gpu:
        gpu.lack(Group.EVENTS)
    assert driver_process.evaluate("driver.listen(driver.devices())") == ["Unsupported", "not_supported"]
    assert nvml_stand_in.control.event_sets == 0


def test_a_set_that_fails_is_freed_and_another_can_be_made(
    listening: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.set_event_fault(EventFault.UNKNOWN_ERROR)
    assert listening.evaluate("listener.wait(10)") == ["DriverError", "driver_error"]
    assert nvml_stand_in.control.event_sets == 0
    nvml_stand_in.set_event_fault(EventFault.NONE)
    listening.execute("listener = driver.listen(driver.devices())")
    nvml_stand_in.raise_xid(0, 31)
    assert len(listening.evaluate("listener.wait(10)")) == 1


def test_a_driver_that_goes_ends_the_wait(listening: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.set_driver(DriverState.NOT_LOADED)
    assert listening.evaluate("listener.wait(10)") == ["DriverUnavailable", "uninitialized"]


def test_a_closed_listener_is_freed_and_receives_nothing(listening: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    listening.execute("listener.close(); listener.close()")
    assert nvml_stand_in.control.event_sets == 0
    assert listening.evaluate("listener.wait(0)") == ["DriverUnavailable", "uninitialized"]


def test_closing_the_driver_under_a_wait_ends_it(listening: DriverProcess) -> None:
    listening.execute(
        """
import threading, time
outcome = []
def wait():
    try:
        while True: listener.wait(0.05)
    except DriverError as problem:
        outcome.append(problem.reason)
thread = threading.Thread(target=wait)
thread.start()
driver.close()
thread.join(60)
"""
    )
    assert listening.evaluate("outcome") == ["uninitialized"]
