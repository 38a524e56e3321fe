"""A driver that says what can't be: none of it reaches the page as data, and all of it is counted by reason."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.faults.machine import OPENMETRICS, REJECTED, Machine, Page
from tests.nvml_library.stand_in import GpuState, Nonsense

REASONS = {
    Nonsense.ALL_BITS_SET: "sentinel",
    Nonsense.HUGE_NUMBERS: "sentinel",
    Nonsense.NOT_A_NUMBER: "not_a_number",
    Nonsense.OVER_100_PERCENT: "out_of_range",
    Nonsense.ZERO_TIMESTAMPS: "zero_timestamp",
    Nonsense.FUTURE_TIMESTAMPS: "future_timestamp",
    Nonsense.BACKWARDS: "backwards",
    Nonsense.MALFORMED_TEXT: "malformed_text",
}
MOST = {
    "_ratio": 1.0,
    "_bytes": 1e12,
    "_bytes_total": 1e15,
    "_seconds_total": 1e5,
    "_watts": 2e3,
    "_celsius": 150.0,
    "_hertz": 1e10,
    "_joules_total": 1e9,
    "_timestamp_seconds": time.time() + 3600,
}
"""Maximum of valid values of the fake GPUs, by suffix of the metric name."""


@pytest.mark.parametrize("nonsense", Nonsense, ids=lambda nonsense: nonsense.name.lower())
def test_nonsense_is_counted_and_never_shown(nonsense: Nonsense, machine: Machine) -> None:
    uuid, reason = machine.uuid(1), REASONS[nonsense]
    others = [machine.uuid(index) for index in (0, 2, 3)]
    before = machine.until_healthy()
    counted = before.get(REJECTED, source="nvidia", reason=reason) or 0.0

    def reported(page: Page) -> bool:
        _is_sound(page, uuid)
        return (page.get(REJECTED, source="nvidia", reason=reason) or 0.0) > counted

    with _talking(machine, nonsense):
        during = machine.until(lambda page: reported(page) and page.read_at(others[0]) > before.read_at(others[0]))
        counters: dict[tuple[object, ...], float] = {}
        for _ in range(3):
            during = machine.until_newer(during)
            assert reported(during)
            _only_grow(during, uuid, counters)
        machine.until(lambda page: [page.state(other) for other in others] == ["up"] * 3)
        _parses_everywhere(machine)

    after = machine.until_healthy(
        lambda page: (
            page.series("info", uuid=uuid, model="NVIDIA H100 80GB HBM3")
            and page.families(uuid) >= before.families(uuid)
        )
    )
    assert "\ufffd" not in after.text


@contextlib.contextmanager
def _talking(machine: Machine, nonsense: Nonsense) -> Iterator[None]:
    """Make a GPU return nonsense, and force new queries of all values, also of rarely polled ones."""
    gpu = machine.node.gpu[1]
    gpu.nonsense, gpu.state = nonsense, GpuState.NONSENSE
    machine.node.reload_driver()
    try:
        yield
    finally:
        gpu.state = GpuState.OK
        machine.node.reload_driver()


def _is_sound(page: Page, uuid: str) -> None:
    """Every value is one that a real GPU can have."""
    for name, labels, value in page.all():
        assert math.isfinite(value), f"{name}{labels} is {value}"
        if labels.get("uuid") == uuid:
            assert value >= 0, f"{name}{labels} is {value}"
            assert value not in {2.0**31 - 1, 2.0**32 - 1, 2.0**63 - 1, 2.0**64 - 1}, f"{name}{labels} is {value}"
            most = max((most for end, most in MOST.items() if name.endswith(end)), default=1e16)
            assert value <= most, f"{name}{labels} is {value}"


def _only_grow(page: Page, uuid: str, seen: dict[tuple[object, ...], float]) -> None:
    """Counters of one page after another go up, or stand still."""
    for name, labels, value in page.all():
        if labels.get("uuid") == uuid and name.endswith("_total"):
            key = (name, *sorted(labels.items()))
            assert value >= seen.get(key, 0.0), f"{name}{labels} went from {seen[key]} to {value}"
            seen[key] = value


def _parses_everywhere(machine: Machine) -> None:
    """Both formats are read by the client library's parsers, and promtool finds nothing to complain of."""
    assert Page(machine.fetch(accept=OPENMETRICS), openmetrics=True).uuids() == machine.page().uuids()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=machine.fetch(), text=True, capture_output=True, check=False
    )
    assert checked.returncode in {0, 3}, checked.stderr  # 3 is a matter of taste
