"""The pages of stories imitate what the exporter's sources make of drivers and the kernel: the two agree by series."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import pytest

from stallscope.model.catalogue.metrics import MetricType
from stallscope.node.collectors.base import Environment, available
from stallscope.node.sampling.clock import ScriptedClock
from tests.collectors.recorded import TREES
from tests.scenarios.disturbance import Disturbance
from tests.scenarios.page import node_page
from tests.scenarios.page_host import show_host
from tests.scenarios.real_pages import collected
from tests.scenarios.test_cases import BY_NAME, SERIES_NAMES
from tests.scenarios.world import World
from tests.scenarios.world_driver import sheet_at

Key = tuple[str, frozenset[tuple[str, str]]]
Values = list[float | None]

_WARM = 120
"""Seconds for which the sources have read before the first page."""
_APART = 30
_OFF = 7
"""Seconds after a whole minute: the newest answers to most queries are then some seconds old."""
_NOT_OF_A_STORY = re.compile(r"stallscope_exporter_source_(\w*read\w*_seconds\w*|cpu_seconds_total)")
"""The cost of reading for the exporter."""
_WITHIN = (
    # Drivers give whole per cent of each sample, the story the exact share.
    (r"stallscope_gpu_memory_(busy_seconds_total|utilization_ratio)", 0.02, 0.3),
    # As above; processes are queried every 5 s, and a sample may speak for the idle time since then.
    (r"stallscope_gpu_owner_busy_seconds_total", 0.02, 5.0),
    # Not counted by the driver: a second in which the reason was seen once is one of it.
    (r"stallscope_gpu_throttled_seconds_total", 0.0, 1.0),
    # Drawn at scrapes only: owners are read until the GPUs are gone.
    (r"stallscope_exporter_source_last_success_timestamp_seconds source=owners", 0.0, 30.0),
    # A page is made up to a second after the reading.
    (r"\w+_timestamp_seconds\b.*", 0.0, 1.0),
    # Two scrapes' readings, and those until a hanging thread is one.
    (r"stallscope_exporter_source_readings_total", 0.0, 4.0),
    (r".*", 1e-5, 1e-6),
)
"""Relative and absolute tolerance; the first that fits. Gauges are held to it, and counters' growth within a minute."""
FEW = [
    ("input_bound_laptop", 7),
    ("lost_laptop", 7),
    ("held_only_gpu_gone", 7),
    ("mem_zombie_workstation", 7),
    ("held_one_worker_on_a_mig_instance", 7),
    ("two_runs_on_a_time_sliced_gpu", 2),
    ("driver_is_silent", 8),
    ("run_that_finished", 11),
]
MANY = [
    *(
        (name, 7)
        for name in (
            "ac_01_batch_of_four",
            "checkpoint_stall_laptop",
            "ecc_uncorrected_node",
            "held_one_shard_for_twelve_workers",
            "held_four_processors_for_a_t4",
            "held_hot_rank_of_two",
            "held_row_remapped_and_recorded",
            "idle_allocated_server",
            "input_cgroup_throttled_pods",
            "lost_node",
            "nvlink_down_two_of_eighteen",
            "nvlink_errors_crc",
            "pcie_degraded_generation",
            "pcie_degraded_width",
            "pcie_replays_server",
            "power_brake_node",
            "power_capped_server",
            "row_remap_failed_node",
            "serving_starved_sglang",
            "stalled_two_nodes",
            "thermal_throttle_node",
            "xid_app_illegal_access",
            "xid_hw_double_bit",
        )
    ),
    ("clocks_limited_node", 1),
    ("display_beside_a_training", 1),
    ("held_two_runs_on_two_mig_instances", 1),
    ("notebook_now_and_then", 4),
    ("restart_loop_server", 29),
]


def _pages(name: str, minute: float, minutes: float) -> tuple[dict[Key, Values], dict[Key, Values]]:
    """The imitated and the real pages of a case's first node, by series, from a minute before a moment on."""
    case = BY_NAME[name]
    world = World(case.story, Disturbance(case.story, 1, int(case.length * 2) + 1, 30, noise=False, case=name))
    first = int(minute * 60) - 60 + _OFF
    times = list(range(first, min(first + int(60 * minutes), int(world.horizon) - 10), _APART))
    imitated: dict[Key, Values] = {}
    for each in node_page(sheet_at(world, 0, times), world):
        own = {label: value for label, value in each.labels.items() if label not in ("job", "instance")}
        imitated[each.name, frozenset(own.items())] = list(each.values)
    real: dict[Key, Values] = {}
    for place, page in enumerate(collected(world, 0, first - _OFF - _WARM, times)):
        for series, value in page.items():
            family, _, rest = series.partition("{")
            labels = frozenset(pair for pair in re.findall(r'(\w+)="([^"]*)"', rest) if pair[1])
            real.setdefault((family, labels), [None] * len(times))[place] = value
    compared = [{key: values for key, values in page.items() if _is_of_gpus(key)} for page in (imitated, real)]
    return compared[0], compared[1]


def _is_of_gpus(key: Key) -> bool:
    name, labels = key
    if _NOT_OF_A_STORY.fullmatch(name):
        return False
    of_source = {("source", "nvidia"), ("source", "owners")} & labels
    return name.startswith("stallscope_gpu_") or (bool(of_source) and name.startswith("stallscope_exporter_source_"))


def _differences(imitated: dict[Key, Values], real: dict[Key, Values]) -> list[str]:
    found = []
    for key in sorted(imitated.keys() | real.keys(), key=lambda key: (key[0], sorted(key[1]))):
        ours, theirs = imitated.get(key, []), real.get(key, [])
        shown = " ".join([key[0], *(f"{label}={value}" for label, value in sorted(key[1]))])
        if [value is not None for value in ours] != [value is not None for value in theirs]:
            found.append(f"{shown}: there or absent: {ours} {theirs}")
            continue
        family = SERIES_NAMES[key[0]]
        grows = family.type in (MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.SUMMARY) or "sumsq" in key[0]
        if "dip_interval" in key[0]:
            # The sources know of no dip before they began: their first interval begins with the first one since.
            count = real["stallscope_gpu_dip_interval_seconds_count", key[1]]
            ours = [value if known else None for value, known in zip(ours, count, strict=True)]
        relative, absolute = next(limits for name, *limits in _WITHIN if re.match(name, shown))
        for place in range(2 if grows else 0, len(ours)):
            pair = [
                None
                if page[place] is None or (grows and page[place - 2] is None)
                else page[place] - (page[place - 2] if grows else 0.0)  # type: ignore[operator]
                for page in (ours, theirs)
            ]
            if None not in pair and pair[0] != pytest.approx(pair[1], rel=relative, abs=absolute):
                found.append(f"{shown}: value at place {place}: {pair[0]} {pair[1]}")
                break
    return found


@pytest.mark.parametrize(
    ("name", "minute", "minutes"),
    [
        *((*each, 3.5) for each in FEW),
        *(pytest.param(*each, 6.0, marks=pytest.mark.nightly) for each in MANY),
    ],
)
def test_gpu_pages_are_those_that_the_sources_make_of_the_same_gpus(name: str, minute: float, minutes: float) -> None:
    imitated, real = _pages(name, minute, minutes)
    assert len(real) > 90
    assert not _differences(imitated, real)


def test_hosts_show_the_series_of_a_recorded_machine() -> None:
    """With all hardware that stories have; values of closed lists are compared, names of devices are not."""
    root = TREES / "gpu_server"
    environment = Environment(root=root, clock=ScriptedClock(), statvfs=lambda _: os.statvfs("/"))
    sources = ("cpu", "memory", "disk", "network", "nfs", "rdma", "pressure", "shared_memory")
    real = {
        _kind(sample.family.name, zip(sample.family.labels, sample.labels, strict=True))
        for source in sources
        for sample in available()[source](environment).read()
    }
    case = BY_NAME["healthy_node"]
    world = World(case.story, Disturbance(case.story, 1, 10, 30, noise=False, case=case.name))
    sheet = sheet_at(world, 0, [0.0])
    show_host(sheet, world)
    assert {_kind(each.name, each.labels.items()) for each in sheet.series} == real


def _kind(name: str, labels: Iterable[tuple[str, str]]) -> Key:
    listed = dict(SERIES_NAMES[name].values)
    own = ((label, value) for label, value in labels if label not in ("job", "instance"))
    return name, frozenset((label, value if label in listed else "") for label, value in own)
