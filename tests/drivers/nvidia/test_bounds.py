"""Values that no GPU can have: absent, counted, and no other series suffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.drivers.nvidia.faulty import Node


def named(page: dict[str, float], name: str) -> dict[str, float]:
    """The series of that name on the first GPU."""
    return {each: value for each, value in page.items() if each.startswith(name + "{") and 'gpu="0"' in each}


def memory(total: int) -> SimpleNamespace:
    return SimpleNamespace(total=total, used=0, reserved=0, free=0)


def bar1(total: int) -> SimpleNamespace:
    return SimpleNamespace(bar1Total=total, bar1Used=0, bar1Free=0)


FUNCTIONS: list[tuple[str, Any, set[str]]] = [
    ("nvmlDeviceGetMemoryInfo", memory(0), {"memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"}),
    ("nvmlDeviceGetMemoryInfo", memory(1 << 59), {"memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"}),
    ("nvmlDeviceGetBAR1MemoryInfo", bar1(0), {"bar1_total_bytes", "bar1_used_bytes"}),
    ("nvmlDeviceGetBAR1MemoryInfo", bar1(1 << 59), {"bar1_total_bytes", "bar1_used_bytes"}),
    ("nvmlDeviceGetCurrPcieLinkGeneration", 0, {"pcie_link_generation"}),
    ("nvmlDeviceGetCurrPcieLinkGeneration", 40, {"pcie_link_generation"}),
    ("nvmlDeviceGetMaxPcieLinkGeneration", 0, {"pcie_link_generation_max"}),
    ("nvmlDeviceGetCurrPcieLinkWidth", 0, {"pcie_link_width"}),
    ("nvmlDeviceGetCurrPcieLinkWidth", 64, {"pcie_link_width"}),
    ("nvmlDeviceGetMaxPcieLinkWidth", 0, {"pcie_link_width_max"}),
    ("nvmlDeviceGetPowerUsage", 10**8, {"power_watts"}),
    ("nvmlDeviceGetEnforcedPowerLimit", 0, {"power_limit_watts"}),
    ("nvmlDeviceGetEnforcedPowerLimit", 10**8, {"power_limit_watts"}),
    ("nvmlDeviceGetPowerManagementDefaultLimit", 0, {"power_limit_default_watts"}),
    ("nvmlDeviceGetTemperatureThreshold", 999, {"temperature_limit_celsius"}),
    ("nvmlDeviceGetClockInfo", 60_000, {"clock_hertz"}),
    ("nvmlDeviceGetMaxClockInfo", 60_000, {"clock_max_hertz"}),
]


@pytest.mark.parametrize(("function", "answer", "absent"), FUNCTIONS)
def test_an_implausible_answer_is_absent_and_counted(function: str, answer: object, absent: set[str]) -> None:
    usual = Node().after(3)
    node = Node()
    node.library.answers[function] = answer
    page = node.after(3)
    assert {name.partition("{")[0] for name in usual.keys() - page.keys()} - {"signal_supported"} == absent
    rejected = [gpu.rejected for gpu in node.source.gpus.values()]
    assert all(each["out_of_range"] > 0 for each in rejected)


@pytest.mark.parametrize("celsius", [0, 151, 255, 999, 65_535, 0x7FFF_FFF0, 0xFFFF_FFFF])
def test_a_temperature_that_no_sensor_measures_is_absent(celsius: int) -> None:
    node = Node()
    node.library.answers["nvmlDeviceGetTemperature"] = celsius
    assert not [name for name in named(node.after(3), "temperature_celsius") if 'sensor="gpu"' in name]
    node = Node()
    node.library.fields[82] = celsius
    page = named(node.after(3), "temperature_celsius")
    assert [name for name in page if 'sensor="gpu"' in name]
    assert not [name for name in page if 'sensor="memory"' in name]


def test_a_fan_with_an_implausible_speed_costs_no_other_fan() -> None:
    node = Node()
    speeds = [45, 4_000_000, 50]
    node.library.answers["nvmlDeviceGetNumFans"] = 3
    node.library.answers["nvmlDeviceGetFanSpeed_v2"] = lambda _, fan: speeds[fan]
    page = named(node.after(3), "fan_speed_ratio")
    assert sorted(page.values()) == [0.45, 0.5]
    assert [name for name in page if 'fan="2"' in name]


# Field, what its counter jumps by, and what the series may have grown by ten seconds later.
JUMPS = [
    (74, 202 * 10**9, "throttled_seconds_total", 15.0),
    (269, 10**17, "throttled_seconds_total", 15.0),
    (83, 10**12, "energy_joules_total", 1e4),
    (3, 10**12, "ecc_errors_total", 1e7),
    (94, 10**12, "pcie_replays_total", 1e7),
    (138, 10**12, "nvlink_transmit_bytes_total", 1e14),
    (161, 1 << 60, "nvlink_errors_total", 1e13),
]


@pytest.mark.parametrize(("field", "jump", "name", "most"), JUMPS)
def test_a_counter_that_leaps_beyond_what_can_happen_adds_nothing_and_goes_on(
    field: int, jump: int, name: str, most: float
) -> None:
    node = Node()
    node.library.fields[field] = 1_000
    before = named(node.after(21), name)
    node.library.fields[field] += jump
    leap = named(node.after(11), name)
    node.library.fields[field] += 1_000
    after = named(node.after(11), name)
    assert before.keys() == leap.keys() == after.keys()
    assert all(value - before[each] <= most for each, value in leap.items())
    assert sum(after.values()) > sum(leap.values())
    assert all(gpu.rejected["out_of_range"] == 1 for gpu in node.source.gpus.values())


@pytest.mark.parametrize("metric", [20, 21])
def test_activity_that_moved_more_bytes_than_a_link_can_adds_nothing(metric: int) -> None:
    node = Node()
    node.library.refused_entry = lambda _, each: 3 if each in {197, 198} else 0  # leaves only GPM for PCIe
    node.after(10)
    before = named(node.after(10), "pcie_transmit_bytes_total" if metric == 20 else "pcie_receive_bytes_total")
    assert before
    node.library.metrics[metric] = float(1 << 23)  # MiB a second
    after = named(node.after(10), "pcie_transmit_bytes_total" if metric == 20 else "pcie_receive_bytes_total")
    assert all(value - before[name] < 1e12 for name, value in after.items())
    assert all(gpu.rejected["out_of_range"] >= 9 for gpu in node.source.gpus.values())
