"""A driver that refuses for a while what it answered before, under the real source, on a recorded GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drivers.nvidia.faulty import H100, MIG, Node

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, INVALID_ARGUMENT = 3, 4, 13, 2
SESSION = {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}


def unlike(before: dict[str, float], after: dict[str, float]) -> set[str]:
    """Series that are gone, and signals of which the page now says otherwise."""
    support = {name for name in before if name.startswith(("signal_supported", "info", "up"))}
    return (before.keys() - after.keys()) | {name for name in support if before[name] != after.get(name)}


GROUPS: dict[str, Callable[[str], bool]] = {
    "everything": lambda name: name not in SESSION,
    "memory": lambda name: "MemoryInfo" in name,
    "power": lambda name: "Power" in name,
    "fields": lambda name: name == "nvmlDeviceGetFieldValues",
    "samples": lambda name: name in {"nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"},
    "clocks": lambda name: "Clock" in name,
    "links": lambda name: "Pcie" in name or "NvLink" in name,
    "activity": lambda name: name.startswith("nvmlGpm") and not name.endswith("Free"),
    "processes": lambda name: "Processes" in name or "ProcessUtilization" in name,
    "temperature": lambda name: "Temperature" in name,
    "events": lambda name: "Event" in name and not name.endswith("Free"),
}


@pytest.mark.parametrize(
    ("group", "code"),
    [
        *(("everything", code) for code in (NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND)),
        *((group, NO_PERMISSION) for group in sorted(GROUPS.keys() - {"everything"})),
    ],
)
def test_nothing_is_lost_by_functions_that_are_refused_for_a_while(group: str, code: int) -> None:
    node = Node()
    before = node.after(70)
    node.library.refused = lambda name: code if GROUPS[group](name) else 0
    node.after(12)  # also what is queried every ten seconds is refused once
    node.library.refused = lambda _: 0
    assert unlike(before, node.after(70)) == set()


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT])
def test_nothing_is_lost_by_fields_that_are_refused_for_a_while(code: int) -> None:
    node = Node()
    before = node.after(70)
    for odd in (0, 1):
        node.library.refused_entry = lambda _, each, odd=odd: code if each % 2 == odd else 0  # type: ignore[misc]
        node.after(12)
    node.library.refused_entry = lambda *_: 0
    assert unlike(before, node.after(70)) == set()


@pytest.mark.parametrize("capture", [H100, MIG], ids=["whole", "mig"])
def test_nothing_is_lost_where_all_is_refused_from_the_start(capture: Path) -> None:
    before = Node(capture).after(200)
    node = Node(capture)
    node.library.refused = lambda name: NO_PERMISSION if name not in SESSION else 0
    node.after(3)
    node.library.refused = lambda _: 0
    assert unlike(before, node.after(200)) == set()


def test_texts_of_a_gpu_that_were_refused_when_it_was_met_are_completed() -> None:
    full = next(name for name in Node().after(2) if name.startswith("info"))
    texts = {"nvmlDeviceGetSerial", "nvmlDeviceGetPciInfo", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetArchitecture"}
    node = Node()
    node.library.refused = lambda name: NOT_SUPPORTED if name in texts else 0
    (first, _) = (name for name in node.after(3) if name.startswith("info"))
    assert 'serial=""' in first
    node.library.refused = lambda _: 0
    page = node.after(130)
    assert full in page
    assert first not in page


def test_a_step_of_the_drivers_clock_costs_one_reading_of_activity() -> None:
    node = Node()
    before = node.after(30)
    node.library.refused_entry = lambda name, _: INVALID_ARGUMENT if name == "nvmlGpmMetricsGet" else 0
    node.after(1)
    node.library.refused_entry = lambda *_: 0
    assert unlike(before, node.after(2)) == set()
    node.library.refused = lambda name: INVALID_ARGUMENT if name == "nvmlGpmMetricsGet" else 0
    node.after(1)
    node.library.refused = lambda _: 0
    after = node.after(2)
    assert unlike(before, after) == set()
    metrics = [batch for batch in node.library.batches if isinstance(batch[0], int)]
    assert metrics[-1] == metrics[10], "and no metric of later drivers"


def test_what_a_gpu_lacks_costs_calls_rarely() -> None:
    node = Node()
    node.after(1000)
    node.library.queried.clear()
    node.after(600)
    steady = len(node.library.queried)
    fans = node.library.queried.count("nvmlDeviceGetNumFans")
    assert 2 <= fans <= 8, "two GPUs without fans"
    assert steady < 13 * 2 * 600


def test_a_sum_over_links_is_absent_while_a_link_that_was_counted_is_refused() -> None:
    node = Node()
    page = node.after(30)
    links = [name for name in page if name.startswith("nvlink_links")]
    assert links
    refused = iter([NOT_SUPPORTED] * 3)
    node.library.refused_entry = lambda _, each: next(refused, 0) if each == 165 else 0
    page = node.after(11)
    assert not [name for name in links if name in page and page[name] < 18]


def test_an_error_that_lasts_is_in_the_log_and_in_what_is_supported(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.after(30)
    node.library.refused = lambda name: 1234 if name == "nvmlDeviceGetMemoryInfo" else 0
    page = node.after(5)
    supported = [value for name, value in page.items() if 'signal="memory_total_bytes"' in name]
    assert supported == [0, 0]
    said = [record.getMessage() for record in caplog.records if "memory_total_bytes" in record.getMessage()]
    assert len(said) == 2
    assert "nvmlDeviceGetMemoryInfo: unknown error 1234" in said[0]
    node.library.refused = lambda _: 0
    page = node.after(1)
    assert [value for name, value in page.items() if 'signal="memory_total_bytes"' in name] == [1, 1]


def test_a_gpu_that_is_down_for_an_unknown_error_says_its_code() -> None:
    node = Node()
    node.after(5)
    node.library.refused = lambda name: 1234 if name not in SESSION else 0
    page = node.after(5)
    assert [name for name in page if name.startswith("lost_info") and 'reason="unknown_error_1234"' in name]
