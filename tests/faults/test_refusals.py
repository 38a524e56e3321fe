"""A driver that refuses for seconds what it answered before, under the real exporter."""

from __future__ import annotations

from tests.faults.machine import Machine, Page
from tests.nvml_library.stand_in import Group

REFUSED = (
    *(Group.MEMORY, Group.POWER, Group.ENERGY, Group.THROTTLE_COUNTERS, Group.THROTTLE_REASONS),
    *(Group.SAMPLES, Group.UTILIZATION, Group.GPM, Group.TEMPERATURE, Group.CLOCK),
)
SIGNALS = ("memory_total_bytes", "energy_joules_total", "throttled_seconds_total", "sm_active_seconds_total")


def supported(page: Page, uuid: str) -> list[float | None]:
    """Return the page's values of these signals of a GPU."""
    return [page.get("signal_supported", uuid=uuid, signal=signal) for signal in SIGNALS]


def test_what_a_gpu_refuses_for_seconds_is_announced_and_returns(machine: Machine) -> None:
    uuid = machine.uuid(1)
    before = machine.until_healthy(lambda page: supported(page, uuid) == [1, 1, 1, 1])
    said = len(machine.lines)
    machine.node.gpu[1].lack(*REFUSED)
    during = machine.until(lambda page: supported(page, uuid) == [0, 0, 0, 0])
    assert not {"memory_used_bytes", "energy_joules_total", "busy_seconds_total"} & during.families(uuid)
    assert during.state(uuid) == "up"
    machine.logged(rf"{uuid}.*no longer reports .*memory_total_bytes", since=said)
    machine.node.gpu[1].lack()
    after = machine.until_healthy(
        lambda page: supported(page, uuid) == [1, 1, 1, 1] and page.families(uuid) >= before.families(uuid)
    )
    machine.logged(rf"{uuid}.*reports .*memory_total_bytes.* again", since=said)
    grown = (after.get("energy_joules_total", uuid=uuid) or 0) - (before.get("energy_joules_total", uuid=uuid) or 0)
    assert 0 < grown < 1e5
    assert after.get("info", uuid=uuid) == 1
