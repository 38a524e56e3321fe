"""Faults again and again: threads, open files and memory stay what they were.

`STALLSCOPE_FAULT_REPETITIONS=1000` has each fault come a thousand times, which takes ten minutes on a quiet machine; by
default all of them together come eight hundred times.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.machine import REJECTED, STUCK_THREADS, Machine
from tests.nvml_library.stand_in import GpuState, Nonsense

GIBIBYTE = 1 << 30
REPETITIONS = int(os.environ.get("STALLSCOPE_FAULT_REPETITIONS", "100"))
"""How often each of the eight faults comes."""
MOST_GROWTH = 3 << 20
"""Bytes of resident memory between the first part of the repetitions and the end."""
MOST_GONE = 64
"""How many GPUs and instances that are gone are remembered."""

# A GPU for each fault; the first stays well, so that there is always one that must be read.
WELL, LOST, HUNG, TALKING, CUT, FAILING, EVENTFUL, SWAPPED = range(8)


class Resources:
    """Resources that the exporter's process holds now."""

    def __init__(self, pid: int) -> None:
        process = Path(f"/proc/{pid}")
        self.threads = len(list((process / "task").iterdir()))
        self.files = len(list((process / "fd").iterdir()))
        resident = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
        assert resident is not None
        self.memory = int(resident[1]) << 10


@pytest.mark.nightly
@pytest.mark.slow(180)
@pytest.mark.timeout(300 + 8 * REPETITIONS)
def test_hundreds_of_faults_leave_no_thread_no_file_and_no_memory_behind(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine(gpus=8, interval=0.1)
    machine.start()
    page = machine.until_healthy()
    listening = machine.until(lambda page: len(page.series("signal_supported", signal="xid_events_total")) == 8)
    machine.fetch_at_once(64)  # the server starts its threads as it needs them
    base = Resources(machine.process.pid)
    read_at = listening.read_at(machine.uuid(WELL))

    early = base
    for repetition in range(REPETITIONS):
        inflict(machine, repetition)
        page = machine.until_newer(page)
        if repetition % 25 == 24:  # for long enough to be noticed everywhere
            machine.until(lambda page: page.state(machine.uuid(HUNG)) == "hung")
        repair(machine, repetition)
        page = machine.until_newer(page)
        if repetition % 5 == 4:
            across_the_node(machine, repetition)
        if repetition == max(REPETITIONS // 5, MOST_GONE + 16):  # as many are remembered by then as ever will be
            early = Resources(machine.process.pid)

    page = machine.until_healthy()
    page = machine.until(lambda page: page.get(STUCK_THREADS, source="nvidia") == 0)
    assert page.read_at(machine.uuid(WELL)) > read_at
    assert {labels["reason"] for labels, _ in page.series(REJECTED)} >= {"sentinel", "out_of_range"}, "faults were seen"
    assert sum(value for _, value in page.series("xid_events_total", uuid=machine.uuid(EVENTFUL))) > REPETITIONS / 2
    machine.until(lambda page: Resources(machine.process.pid).threads <= base.threads)
    machine.until(lambda page: Resources(machine.process.pid).files <= base.files)
    assert len(machine.page().uuids()) <= 8 + MOST_GONE
    # There is a moment with no event set between closing one and opening the next.
    machine.until(lambda _page: machine.node.control.event_sets == 1)
    assert machine.node.control.gpm_samples <= 2 * 8, "and so are samples"
    growth = Resources(machine.process.pid).memory - early.memory
    print(f"{REPETITIONS} repetitions of each fault: resident memory grew by {growth >> 10} KiB")
    assert growth < MOST_GROWTH


def inflict(machine: Machine, repetition: int) -> None:
    """One fault on each GPU but one."""
    node, gpu = machine.node, machine.node.gpu
    gpu[LOST].state = GpuState.LOST
    gpu[HUNG].state = GpuState.HUNG
    gpu[TALKING].nonsense = list(Nonsense)[repetition % len(Nonsense)]
    gpu[TALKING].state = GpuState.NONSENSE
    gpu[CUT].cut(("1g.10gb", 10 * GIBIBYTE), ("3g.40gb", 40 * GIBIBYTE))
    node.raise_mig_change(CUT)
    gpu[FAILING].state = (GpuState.FAILING, GpuState.NEEDS_RESET)[repetition % 2]
    node.raise_xid(EVENTFUL, (13, 31, 48, 79)[repetition % 4])
    gpu[SWAPPED].state = GpuState.LOST


def repair(machine: Machine, repetition: int) -> None:
    """All is well again, and where one GPU was there is another."""
    gpu = machine.node.gpu
    for place in (LOST, HUNG, TALKING, FAILING):
        gpu[place].state = GpuState.OK
    gpu[CUT].uncut()
    machine.node.raise_mig_change(CUT)
    machine.node.swap(SWAPPED)


def across_the_node(machine: Machine, repetition: int) -> None:
    """The eighth fault hits all GPUs: the driver is reloaded, released and reacquired, or a GPU comes and goes."""
    kind = repetition // 5 % 3
    if kind == 0:
        machine.node.reload_driver()
    elif kind == 1:
        machine.post("/-/release?for=10m")
        machine.until(lambda page: page.state(machine.uuid(WELL)) == "released" and not machine.held_files())
        machine.post("/-/resume")
        machine.until(lambda page: page.state(machine.uuid(WELL)) == "up")
    else:
        machine.node.remove(SWAPPED)
        machine.until_newer(machine.page())
        machine.node.add()
