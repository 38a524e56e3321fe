"""Every fault that GPUs and their driver know: what `/metrics` shows before, during and after.

Each record of `FAULTS` is inflicted on the real exporter, which reads the stand-in for the driver's library, and
repaired again. All of them share one process: what a fault leaves behind, the next one meets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.faults.machine import READINGS, SOURCE_UP, STUCK_THREADS, Machine, Page
from tests.nvml_library.stand_in import DriverState, EventFault, GpuState, Group, NvmlStandIn

ALL = (0, 1, 2, 3)
SCRAPES = 50
ACTIVITY = frozenset(
    {
        "sm_active_seconds_total",
        "sm_occupancy_seconds_total",
        "dram_active_seconds_total",
        "pipe_active_seconds_total",
    }
)
STAYS = {"info", "up", "lost_info", "last_reading_timestamp_seconds"}
"""Families that a GPU still has while it is down."""


@dataclass(frozen=True)
class Fault:
    """A fault, and what it does to the page."""

    name: str
    inflict: Callable[[NvmlStandIn], None]
    repair: Callable[[NvmlStandIn], None]
    down: tuple[int, ...] = ()
    """GPUs that it takes down."""
    reason: str = ""
    """Why, in `stallscope_gpu_lost_info`."""
    source_up: int = 1
    """A fault of one GPU is reported in its own series and does not fail the source."""
    stuck: int = 0
    """Threads that hang."""
    elsewhere: frozenset[str] = frozenset()
    """Families that healthy GPUs do not have meanwhile."""


def gpu_state(index: int, state: GpuState) -> Callable[[NvmlStandIn], None]:
    def set_it(node: NvmlStandIn) -> None:
        node.gpu[index].state = state

    return set_it


def gpu_hang(index: int, function: str) -> Callable[[NvmlStandIn], None]:
    def set_it(node: NvmlStandIn) -> None:
        node.gpu[index].hang_function = function.encode()

    return set_it


def driver(state: DriverState) -> Callable[[NvmlStandIn], None]:
    return lambda node: node.set_driver(state)


def hang_in(function: str, *, reload: bool = False) -> Callable[[NvmlStandIn], None]:
    """Let a function hang; one that is called at the begin of a session only needs a new one."""

    def set_it(node: NvmlStandIn) -> None:
        node.hang(function)
        if reload:
            node.reload_driver()

    return set_it


def hang_with_global_lock(node: NvmlStandIn) -> None:
    node.set_global_lock(True)
    node.gpu[2].state = GpuState.HUNG


def release_global_lock(node: NvmlStandIn) -> None:
    node.gpu[2].state = GpuState.OK
    node.set_global_lock(False)


def events(fault: EventFault) -> Callable[[NvmlStandIn], None]:
    return lambda node: node.set_event_fault(fault)


FAULTS = (
    Fault(
        "a GPU falls off the bus, and returns",
        gpu_state(1, GpuState.LOST),
        gpu_state(1, GpuState.OK),
        down=(1,),
        reason="gpu_lost",
    ),
    Fault(
        "a GPU needs a reset, and gets it",
        gpu_state(1, GpuState.NEEDS_RESET),
        gpu_state(1, GpuState.OK),
        down=(1,),
        reason="reset_required",
    ),
    Fault(
        "a GPU answers everything with an unknown error",
        gpu_state(1, GpuState.FAILING),
        gpu_state(1, GpuState.OK),
        down=(1,),
        reason="driver_error",
        source_up=0,
    ),
    Fault(
        "every call to a GPU hangs",
        gpu_state(1, GpuState.HUNG),
        gpu_state(1, GpuState.OK),
        down=(1,),
        reason="hung",
        source_up=0,
        stuck=1,
    ),
    Fault(
        "one call to a GPU hangs",
        gpu_hang(1, "nvmlDeviceGetPowerUsage"),
        gpu_hang(1, ""),
        down=(1,),
        reason="hung",
        source_up=0,
        stuck=1,
    ),
    Fault(
        "a GPU hangs in its performance counters, which GPUs take turns at",
        gpu_hang(1, "nvmlGpmSampleGet"),
        gpu_hang(1, ""),
        down=(1,),
        reason="hung",
        source_up=0,
        stuck=1,
        elsewhere=ACTIVITY,
    ),
    Fault(
        "a GPU hangs in its list of processes, which is rarely queried",
        gpu_hang(1, "nvmlDeviceGetComputeRunningProcesses_v3"),
        gpu_hang(1, ""),
        down=(1,),
        reason="hung",
        source_up=0,
        stuck=1,
    ),
    Fault(
        "a GPU hangs in a library that makes one call at a time",
        hang_with_global_lock,
        release_global_lock,
        down=ALL,
        reason="hung",
        source_up=0,
        stuck=4,
    ),
    Fault(
        "waiting for events hangs",
        hang_in("nvmlEventSetWait_v2"),
        hang_in(""),
        source_up=0,
        stuck=1,
    ),
    Fault(
        "registering for events hangs",
        hang_in("nvmlDeviceRegisterEvents", reload=True),
        hang_in(""),
        source_up=0,
        stuck=1,
    ),
    Fault(
        "waiting for events fails for no known reason",
        events(EventFault.UNKNOWN_ERROR),
        events(EventFault.NONE),
        source_up=0,
    ),
    Fault(
        "beginning a session with the driver hangs",
        hang_in("nvmlInitWithFlags", reload=True),
        hang_in(""),
        down=ALL,
        reason="hung",
        source_up=0,
        stuck=1,
    ),
    Fault(
        "the driver is unloaded, and loaded",
        driver(DriverState.NOT_LOADED),
        driver(DriverState.LOADED),
        down=ALL,
        reason="driver_not_loaded",
        source_up=0,
    ),
    Fault(
        "the driver was updated under the library, until the machine restarts",
        driver(DriverState.MISMATCHED),
        driver(DriverState.LOADED),
        down=ALL,
        reason="version_mismatch",
        source_up=0,
    ),
    Fault(
        "the right to use the driver is taken away, and given",
        driver(DriverState.FORBIDDEN),
        driver(DriverState.LOADED),
        down=ALL,
        reason="no_permission",
        source_up=0,
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Fault, machine: Machine) -> None:
    uuids = machine.uuids()
    down = [uuids[index] for index in fault.down]
    others = [uuid for uuid in uuids if uuid not in down]
    before = machine.until_healthy(lambda page: page.get(STUCK_THREADS, source="nvidia") == 0)
    has = {uuid: before.families(uuid) for uuid in uuids}
    assert not before.series("lost_info")

    fault.inflict(machine.node)
    try:
        during = machine.until(lambda page: _shows(page, fault, down, others))
        for uuid in down:
            assert during.families(uuid) == STAYS, "nothing that a GPU measured is shown while it is down"
        for uuid in others:
            machine.until(lambda page, uuid=uuid: page.families(uuid) >= has[uuid] - fault.elsewhere)  # type: ignore[misc]
            machine.until(lambda page, uuid=uuid: not page.families(uuid) & fault.elsewhere)  # type: ignore[misc]
        during = _stays_while_pages_renew(machine, during, fault, down, others)
        _scrapes_do_not_query_the_driver(machine, during)
    finally:
        fault.repair(machine.node)
    after = machine.until_healthy(
        lambda page: (
            page.get(STUCK_THREADS, source="nvidia") == 0 and all(page.families(uuid) >= has[uuid] for uuid in uuids)
        )
    )
    assert not after.series("lost_info")
    for uuid in uuids:
        assert (after.get("busy_seconds_total", uuid=uuid) or 0.0) >= (before.get("busy_seconds_total", uuid=uuid) or 0)
        assert after.read_at(uuid) > before.read_at(uuid)


def test_a_driver_reloaded_between_two_calls_is_reopened_and_queried_again(machine: Machine) -> None:
    uuid = machine.uuid(0)
    machine.until_healthy()
    machine.until(lambda page: page.get("signal_supported", uuid=uuid, signal="bar1_total_bytes") == 1)
    opened = machine.node.calls("nvmlInitWithFlags")
    machine.node.gpu[0].lack(Group.BAR1)
    machine.node.reload_driver()
    # What was learnt in the old session is forgotten: only a new one finds the signal gone.
    machine.until(lambda page: page.get("signal_supported", uuid=uuid, signal="bar1_total_bytes") == 0)
    page = machine.until_healthy()
    assert "bar1_total_bytes" not in page.families(uuid)
    assert machine.node.calls("nvmlInitWithFlags") == opened + 1
    machine.node.gpu[0].lack()
    machine.node.reload_driver()
    machine.until(lambda page: "bar1_total_bytes" in page.families(uuid))


def _shows(page: Page, fault: Fault, down: list[str], others: list[str]) -> bool:
    return (
        [page.state(uuid) for uuid in down] == [fault.reason] * len(down)
        and [page.state(uuid) for uuid in others] == ["up"] * len(others)
        and page.get(SOURCE_UP, source="nvidia") == fault.source_up
        and page.get(STUCK_THREADS, source="nvidia") == fault.stuck
    )


def _stays_while_pages_renew(machine: Machine, page: Page, fault: Fault, down: list[str], others: list[str]) -> Page:
    """The exporter goes on: pages are renewed, GPUs that are well are read, those that are not leave nothing new."""
    page = machine.until_newer(machine.until_newer(page))  # a reading that was under way may still have come
    stood = {uuid: page.read_at(uuid) for uuid in (*down, *others)}
    newer = machine.until_newer(page)
    newer = machine.until(lambda newer: all(newer.read_at(uuid) > stood[uuid] for uuid in others))
    newer = machine.until(lambda newer: _shows(newer, fault, down, others))
    assert [newer.read_at(uuid) for uuid in down] == [stood[uuid] for uuid in down]
    return newer


def _scrapes_do_not_query_the_driver(machine: Machine, page: Page) -> None:
    """Scrapes are answered from memory: driver calls are as many as readings need, however often it is scraped."""
    machine.node.reset_counts()
    for _ in range(SCRAPES):
        machine.fetch()
    calls = machine.node.calls("nvmlDeviceGetPowerUsage")
    newer = machine.until_newer(page)
    readings = (newer.get(READINGS, source="nvidia") or 0) - (page.get(READINGS, source="nvidia") or 0)
    # One in each reading of a GPU, and those of readings under way, which were not counted yet.
    assert calls <= readings + len(machine.uuids())
