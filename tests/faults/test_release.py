"""Letting go of the driver on request, so that it can be reloaded under the exporter."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.machine import SOURCE_UP, Machine, Page
from tests.nvml_library.stand_in import DriverState, GpuState

READ_SECONDS = "stallscope_exporter_source_read_seconds"


def by_signal(machine: Machine, *, resume: bool) -> None:
    machine.process.send_signal(signal.SIGUSR2 if resume else signal.SIGUSR1)


def by_post(machine: Machine, *, resume: bool) -> None:
    machine.post("/-/resume" if resume else "/-/release?for=10m")


def released(machine: Machine) -> Callable[[Page], bool]:
    return lambda page: all(page.state(uuid) == "released" for uuid in machine.uuids())


@pytest.mark.parametrize("release", [by_signal, by_post])
def test_a_driver_can_be_reloaded_while_the_exporter_has_released_it(
    machine: Machine, release: Callable[..., None]
) -> None:
    before = machine.until_healthy()
    assert machine.held_files()
    release(machine, resume=False)
    # A requested release is no failure, and a driver that is not polled is not up either.
    page = machine.until(
        lambda page: (
            released(machine)(page) and page.get(SOURCE_UP, source="nvidia") is None and not machine.held_files()
        )
    )
    for uuid in machine.uuids():
        assert page.families(uuid) == {"info", "up", "lost_info", "last_reading_timestamp_seconds"}

    machine.node.set_driver(DriverState.NOT_LOADED)
    page = machine.until_newer(page)
    assert released(machine)(page)
    calls = machine.node.calls()
    page = machine.until_newer(page)
    assert machine.node.calls() == calls, "a released driver is not queried"
    machine.node.set_driver(DriverState.LOADED)

    release(machine, resume=True)
    after = machine.until_healthy(
        lambda page: all(page.families(uuid) >= before.families(uuid) for uuid in machine.uuids())
    )
    assert not after.series("lost_info")


def test_it_takes_the_driver_up_again_by_itself(machine: Machine) -> None:
    machine.until_healthy()
    began = len(machine.lines)
    machine.post("/-/release?for=3s")
    machine.logged("the driver was released", since=began)
    released_at = time.time()
    machine.until_healthy(
        lambda page: machine.held_files() and all(page.read_at(uuid) > released_at for uuid in machine.uuids())
    )


def test_a_call_that_hangs_holds_the_driver_and_the_exporter_says_so_until_it_returns(machine: Machine) -> None:
    machine.until_healthy()
    uuid, began = machine.uuid(2), len(machine.lines)
    machine.node.gpu[2].state = GpuState.HUNG
    machine.logged(f"source nvidia {uuid} has not come back", since=began)
    # A reading that a slow machine delayed would be reported too; the next one hangs for good.
    machine.until_newer(machine.page())
    machine.until(lambda page: page.state(uuid) == "hung")
    machine.post("/-/release?for=10m")
    machine.logged(f"can't be released.*{uuid}", since=began)
    machine.until_newer(machine.page())
    # It waits for the call once: a reading that takes a second each time would pass for one that hangs.
    machine.until(
        lambda page: (
            page.state(uuid) == "hung"
            and page.get(SOURCE_UP, source="nvidia") == 0
            and (page.get(READ_SECONDS, source="nvidia") or 0.0) < 0.5
        )
    )
    assert machine.held_files(), "it must not claim a release"

    machine.node.gpu[2].state = GpuState.OK
    machine.until(lambda page: not machine.held_files() and page.get(SOURCE_UP, source="nvidia") is None)
    machine.post("/-/resume")
    machine.until_healthy()
