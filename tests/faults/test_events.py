"""Xid errors and other events of the driver, and what becomes of them while GPUs and event sets fail."""

from __future__ import annotations

import time

from tests.faults.machine import SOURCE_UP, Machine, Page
from tests.nvml_library.stand_in import EventFault, GpuState


def xids(page: Page, uuid: str) -> dict[str, float]:
    """Events so far by code."""
    return {labels["xid"]: value for labels, value in page.series("xid_events_total", uuid=uuid)}


def test_an_xid_is_told_before_and_while_its_gpu_is_down_and_after_it_came_back(machine: Machine) -> None:
    uuid, began = machine.uuid(1), time.time()
    before = machine.until_healthy()
    machine.until(lambda page: page.get("signal_supported", uuid=uuid, signal="xid_events_total") == 1)
    assert not xids(before, uuid)
    machine.node.raise_xid(1, 79)
    machine.node.gpu[1].state = GpuState.LOST
    page = machine.until(lambda page: page.state(uuid) == "gpu_lost" and xids(page, uuid))
    assert xids(page, uuid) == {"79": 1}
    heard = page.get("xid_last_timestamp_seconds", uuid=uuid, xid="79") or 0.0
    assert began - 1 <= heard <= time.time()
    assert xids(machine.until_newer(page), uuid) == {"79": 1}, "it stays as long as the GPU is down, and counts once"
    machine.node.gpu[1].state = GpuState.OK
    assert xids(machine.until_healthy(), uuid) == {"79": 1}


def test_xids_are_counted_by_gpu_and_code(machine: Machine) -> None:
    machine.until_healthy()
    has = [xids(machine.page(), uuid) for uuid in machine.uuids()]
    machine.until(lambda page: page.get("signal_supported", uuid=machine.uuid(2), signal="xid_events_total") == 1)
    for xid in (31, 31, 94, 31):
        machine.node.raise_xid(2, xid)
    machine.node.raise_xid(3, 31)
    page = machine.until(lambda page: xids(page, machine.uuid(2)) and xids(page, machine.uuid(3)))
    page = machine.until_newer(page)
    assert [xids(page, uuid) for uuid in machine.uuids()] == [has[0], has[1], {"31": 3, "94": 1}, {"31": 1}]


def test_an_event_set_that_failed_is_made_anew_and_hears_again(machine: Machine) -> None:
    machine.until_healthy()
    uuid = machine.uuid(0)

    def hears(page: Page) -> bool:
        return page.get("signal_supported", uuid=uuid, signal="xid_events_total") == 1

    for fault, problem, source_up in (
        (EventFault.UNKNOWN_ERROR, "Unknown", 0),
        (EventFault.GPU_IS_LOST, "lost", 1),
    ):
        has = xids(machine.page(), uuid).get("13", 0)
        machine.node.set_event_fault(fault)
        machine.logged(f"events failed.*{problem}")
        # Until a page tells of the failure an Xid may come between two sets, and no driver keeps it for the next one.
        page = machine.until(lambda page, up=source_up: not hears(page) and page.get(SOURCE_UP, source="nvidia") == up)  # type: ignore[misc]
        assert page.state(uuid) == "up", "the readings do not depend on the events"
        machine.node.set_event_fault(EventFault.NONE)
        machine.until_healthy()
        machine.until(hears)
        machine.node.raise_xid(0, 13)
        machine.until(lambda page, has=has: xids(page, uuid).get("13", 0) == has + 1)  # type: ignore[misc]
    assert machine.node.control.event_sets == 1, "sets that failed are freed"
