"""The pages of all exporters of a story, as one scraper stores them."""

from __future__ import annotations

import numpy as np

from stallscope.lab.replay.series import Series
from stallscope.model.catalogue.metrics import FAMILIES
from tests.scenarios.disturbance import Disturbance
from tests.scenarios.page_gpu import show_gpus
from tests.scenarios.page_host import show_host
from tests.scenarios.page_serving import server_pages
from tests.scenarios.page_training import show_training
from tests.scenarios.sheet import Sheet
from tests.scenarios.story import Story
from tests.scenarios.world import BEGIN, World

_SOURCES = (
    "nvidia",
    "cpu",
    "memory",
    "disk",
    "network",
    "nfs",
    "rdma",
    "pressure",
    "shared_memory",
    "owners",
    "process",
)


def pages(story: Story, disturbance: Disturbance) -> list[Series]:
    """Return every series that Prometheus stores for a story."""
    world = World(story, disturbance)
    found: list[Series] = []
    for node in range(len(story.nodes)):
        down = min((minute for number, minute in story.exporter_down if number == node), default=None)
        sheet = Sheet(node, disturbance, absent=(*story.absent, *disturbance.absent), down=down)
        found += node_page(sheet, world)
    return found + server_pages(world)


def node_page(sheet: Sheet, world: World) -> list[Series]:
    """Return the series of one node's exporter."""
    sheet.answers()
    show_gpus(sheet, world)
    show_host(sheet, world)
    show_training(sheet, world)
    _show_exporter(sheet, world)
    return _without_failing_sources(sheet, world.story)


def _show_exporter(sheet: Sheet, world: World) -> None:
    """Add the exporter's metrics about itself."""
    story, times = world.story, sheet.times
    node = story.nodes[sheet.node]
    since = BEGIN if sheet.restart is None else sheet.restart
    age = np.where(times >= since, times - since, times - BEGIN)
    sheet.add("stallscope_build_info", 1, version="0.5.0", python="3.11.2")
    fails = {source: minute * 60 for source, minute in story.failing_source}
    answers = np.any(
        [
            world.gpu_state(gpu, lambda state: float(state.present), times) > 0
            for gpu, (number, _index) in enumerate(world.gpus)
            if number == sheet.node
        ],
        axis=0,
    )
    for source in _SOURCES:
        if (source == "nfs" and not node.nfs) or (source == "rdma" and not node.rdma):
            continue
        # Where no GPU answers there is nothing to own, which is no failure.
        here = (times < fails.get("nvidia", np.inf)) & answers if source == "owners" else True
        begun = fails.get(source, np.inf)
        hangs = times >= begun
        # A GPU has a thread of its own; the others list the GPUs, and receive events.
        threads = node.gpus + bool(node.card.mig) + 2 if source == "nvidia" else 1
        last = np.maximum.accumulate(np.where(here, np.where(hangs, begun, times) - 0.5, -np.inf))
        sheet.add("stallscope_exporter_source_up", (~hangs).astype(np.float64), here, source=source)
        sheet.add("stallscope_exporter_source_read_seconds", 0.002, here, source=source)
        sheet.add(
            "stallscope_exporter_source_last_success_timestamp_seconds",
            sheet.clock(last),
            np.isfinite(last),
            source=source,
        )
        sheet.add("stallscope_exporter_source_failures_total", np.where(hangs, threads, 0), here, source=source)
        readings = threads * np.floor(age - np.maximum(0.0, times - begun) * hangs)
        sheet.add("stallscope_exporter_source_readings_total", readings, here, source=source)
        sheet.add("stallscope_exporter_source_stuck_threads", np.where(hangs, threads, 0), here, source=source)
    shown = [claim for claim in world.ranks_on(sheet.node) if claim.run.instrumented]
    reports = np.floor(len(shown) * age / 5)
    sheet.add("stallscope_exporter_reports_total", reports, reports > 0, transport="unix")
    refused = np.floor(np.maximum(0, times - 300) / 60 * story.reports_rejected)
    sheet.add("stallscope_exporter_reports_rejected_total", refused, refused > 0, reason="bad_field")
    sheet.add("stallscope_exporter_runs", len({claim.number for claim in shown}))
    sheet.add("stallscope_exporter_series", float(len(sheet.series)))
    dropped = np.floor(np.maximum(0, times - 300) / 60 * story.series_dropped)
    sheet.add("stallscope_exporter_series_dropped_total", dropped, limit="max_series")
    sheet.add("process_resident_memory_bytes", 3.1e7)
    sheet.add("process_cpu_seconds_total", 0.01 * age)
    sheet.add("process_start_time_seconds", np.where(times >= since, since, BEGIN))


def _without_failing_sources(sheet: Sheet, story: Story) -> list[Series]:
    """Remove the samples of a source whose calls hang; its GPUs are then reported as down, without an owner."""
    for source, minute in story.failing_source:
        broken = sheet.times >= minute * 60
        kept: list[Series] = []
        for each in sheet.series:
            if not _read_by(each.name, source):
                kept.append(each)
                continue
            values = [None if bad else value for bad, value in zip(broken.tolist(), each.values, strict=True)]
            if each.name == "stallscope_gpu_up":
                values = [0.0 if bad else value for bad, value in zip(broken.tolist(), each.values, strict=True)]
                reason = [1.0 if bad else None for bad in broken.tolist()]
                kept.append(Series("stallscope_gpu_lost_info", {**each.labels, "reason": "hung"}, reason))
            elif each.name == "stallscope_gpu_info":
                values = list(each.values)
            elif each.name == "stallscope_gpu_last_reading_timestamp_seconds":
                last = float(sheet.clock(minute * 60 - 0.5))
                values = [None if value is None else min(value, last) for value in each.values]
            if any(value is not None for value in values):
                kept.append(Series(each.name, each.labels, values))
        sheet.series = kept
    return sheet.series


def _read_by(name: str, source: str) -> bool:
    """Return True if the source reads the metric family of the series."""
    base = name
    for suffix in ("_bucket", "_sum", "_count"):
        if base not in FAMILIES:
            base = name.removesuffix(suffix)
    family = FAMILIES.get(base)
    if family is None:
        return False
    return (
        family.provider.startswith(("collectors.gpu", "collectors.owners"))
        if source == "nvidia"
        else family.provider == f"collectors.{source}"
    )
