"""Xid errors and other events of the driver, and what becomes of them while GPUs and event sets fail."""

from __future__ import annotations

import time

from tests.faults.machine import SOURCE_UP, Machine, Page
from tests.nvml_library.stand_in import EventFault, GpuState


def xids(page: Page, uuid: str) -> dict[str, float]:
    """Events so far by code."""
    return {labels["xid"]: value for labels, value in page.series("xid_events_total", uuid=uuid)}


def until_listening(machine: Machine) -> Page:
    """Return a page on which every GPU is up and its events are received.

    While one is not, a new event set is due, and no driver keeps what happens between two of them.
    """
    supported = {"signal": "xid_events_total"}
    return machine.until_healthy(
        lambda page: all(page.get("signal_supported", uuid=uuid, **supported) == 1 for uuid in machine.uuids())
    )


def test_an_xid_is_exported_while_its_gpu_is_down_and_after_it_came_back(machine: Machine) -> None:
    uuid, began = machine.uuid(1), time.time()
    has = xids(until_listening(machine), uuid)
    then = {**has, "79": has.get("79", 0) + 1}
    machine.node.raise_xid(1, 79)
    machine.node.gpu[1].state = GpuState.LOST
    page = machine.until(lambda page: page.state(uuid) == "gpu_lost" and xids(page, uuid) != has)
    assert xids(page, uuid) == then
    last_seen = page.get("xid_last_timestamp_seconds", uuid=uuid, xid="79") or 0.0
    assert began - 1 <= last_seen <= time.time()
    assert xids(machine.until_newer(page), uuid) == then, "it stays as long as the GPU is down, and counts once"
    machine.node.gpu[1].state = GpuState.OK
    assert xids(machine.until_healthy(), uuid) == then


def test_xids_are_counted_by_gpu_and_code(machine: Machine) -> None:
    before = until_listening(machine)
    has = [xids(before, uuid) for uuid in machine.uuids()]
    for xid in (31, 31, 94, 31):
        machine.node.raise_xid(2, xid)
    machine.node.raise_xid(3, 31)  # reported last
    page = machine.until_newer(machine.until(lambda page: xids(page, machine.uuid(3)) != has[3]))
    for uuid, had, raised in zip(machine.uuids(), has, ({}, {}, {"31": 3, "94": 1}, {"31": 1}), strict=True):
        assert xids(page, uuid) == {**had, **{xid: had.get(xid, 0) + count for xid, count in raised.items()}}


def test_an_event_set_that_failed_is_recreated_and_receives_events(machine: Machine) -> None:
    uuid = machine.uuid(0)
    for fault, problem, source_up in (
        (EventFault.UNKNOWN_ERROR, "Unknown", 0),
        (EventFault.GPU_IS_LOST, "lost", 1),
    ):
        has = xids(until_listening(machine), uuid).get("13", 0)
        began = len(machine.lines)
        machine.node.set_event_fault(fault)
        machine.logged(f"events failed.*{problem}", since=began)
        # The readings do not depend on the events.
        machine.until(
            lambda page, up=source_up: (  # type: ignore[misc]
                page.state(uuid) == "up"
                and page.get("signal_supported", uuid=uuid, signal="xid_events_total") is None
                and page.get(SOURCE_UP, source="nvidia") == up
            )
        )
        machine.node.set_event_fault(EventFault.NONE)
        # Only from then on does a set stay: one that is about to fail may be on a page too.
        machine.logged("source nvidia events answers again", since=began)
        until_listening(machine)
        machine.node.raise_xid(0, 13)
        machine.until(lambda page, has=has: xids(page, uuid).get("13", 0) == has + 1)  # type: ignore[misc]
    machine.until(lambda _page: machine.node.control.event_sets == 1)  # sets that failed are freed
