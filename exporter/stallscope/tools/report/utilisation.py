"""Utilization of each GPU: percentiles, time below 10 %, memory, power, temperature, and utilization over time."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.model.clients.expressions import any_of
from stallscope.tools.report.document import Block, Column, Figure, HeatMap, Notice, Table, Value
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.ranks import Ranks, numerically
from stallscope.tools.report.subject import GPU_LABELS
from stallscope.tools.report.words import percent

KEY = "utilisation"
TITLE = "GPU utilization"
_HEAT_COLUMNS = 120
_HEAT_ROWS = 64


class Gpu(NamedTuple):
    """One GPU or MIG instance."""

    instance: str
    gpu: str
    uuid: str
    mig: str
    """Profile of a MIG instance; empty for a whole GPU."""
    rank: str
    """Rank of the run; empty if the subject is not a run."""
    busy: float | None
    """Mean share of time with a kernel on the GPU, for the order only: it includes times outside of the run. None for a
    GPU whose activity is unknown, such as one that was lost early."""

    @property
    def name(self) -> str:
        """Rank, node and index."""
        rank = f"rank {self.rank}, " if self.rank else ""
        return f"{rank}{self.instance} GPU {self.gpu}{f' ({self.mig})' if self.mig else ''}"


def blocks(queries: Queries, found: Ranks | None) -> list[Block]:
    """Return the blocks of the section."""
    every = _gpus(queries, found)
    known = [gpu for gpu in every if gpu.busy is not None]
    if not known:
        return [
            Notice(
                "warning",
                "The activity of GPUs is unknown"
                + (", or no rank of the run claims a GPU." if queries.subject.run is not None else "."),
            )
        ]
    least = sorted(every, key=_activity)
    shown = least[: queries.options.rows]
    if found is not None:  # include stragglers, however busy
        shown = list(dict.fromkeys([*(gpu for gpu in every if gpu.rank in found.worst[:4]), *shown]))[
            : queries.options.rows
        ]
    shown.sort(key=_order)
    drawn = sorted(known, key=_activity)[:_HEAT_ROWS]
    among = f"uuid=~{any_of(sorted({gpu.uuid for gpu in (*shown, *drawn)}))}"
    busy = queries.mean_of_gpus(f"gpu:busy:ratio5m{{{queries.subject.node_matchers}, {among}}}", among)
    blocks: list[Block] = [_table(queries, shown, busy, len(every))]
    heat = _heat_map(queries, sorted(drawn, key=_order), busy, len(known))
    if heat is not None:
        blocks.append(heat)
    return blocks


def _gpus(queries: Queries, found: Ranks | None) -> list[Gpu]:
    """Return every GPU with its mean activity."""
    subject = queries.subject
    which = f"{{{subject.node_matchers}}}[{queries.window}]"
    # Minus one for a GPU without activity.
    busy = f"avg_over_time(gpu:busy:ratio5m{which}) or 0 * last_over_time(gpu:up:max{which}) - 1"
    ranks = {uuid: rank for rank, place in found.places.items() for uuid in place.uuids} if found is not None else {}
    every = queries.instant(f"max by (instance, gpu, uuid, mig) ({busy})")
    return [
        Gpu(
            each.labels.get("instance", ""),
            each.labels.get("gpu", ""),
            each.labels.get("uuid", ""),
            each.labels.get("mig", ""),
            ranks.get(each.labels.get("uuid", ""), ""),
            each.value if each.value >= 0 else None,
        )
        for each in every
        if found is None or each.labels.get("uuid") in ranks
    ]


def _table(queries: Queries, shown: list[Gpu], busy: dict[str, float], number: int) -> Table:
    among = f"uuid=~{any_of(gpu.uuid for gpu in shown)}"
    which = f"{queries.subject.node_matchers}, {among}"

    def over_time(function: str, expression: str) -> dict[str, float]:
        """Evaluate for the times at which the GPU belongs to the subject."""
        own = f"max by ({GPU_LABELS}) ({expression}){queries.subject.and_own_gpus(among)}"
        return queries.by("uuid", f"max by (uuid) ({queries.over_time(function, own, resolution=queries.coarse)})")

    def rate(counter: str, labels: str = "") -> dict[str, float]:
        """Return the mean rate of a counter over the time in which the GPU was observed."""
        rate = f"max by ({GPU_LABELS}) (rate({counter}{{{which}{labels}}}[5m]))"
        return queries.mean_of_gpus(f"{rate} / gpu:observed:ratio5m{{{which}}}", among)

    utilisation = f"stallscope_gpu_utilization_ratio{{{which}}}"
    figures = [
        over_time("max_over_time", utilisation),
        *(over_time(f"quantile_over_time({share}, ", utilisation) for share in (0.99, 0.95, 0.5, 0.05)),
        over_time("min_over_time", utilisation),
        busy,
        rate("stallscope_gpu_below_seconds_total", ', level="0.1"'),
        queries.mean_of_gpus(f"gpu:sm_active:ratio5m{{{which}}}", among),
        over_time(
            "max_over_time",
            f"stallscope_gpu_memory_used_bytes{{{which}}} / stallscope_gpu_memory_total_bytes{{{which}}}",
        ),
        rate("stallscope_gpu_energy_joules_total"),
        over_time("max_over_time", f'stallscope_gpu_temperature_celsius{{{which}, sensor="gpu"}}'),
        over_time("min_over_time", f"gpu:sm_clock:ratio5m{{{which}}}"),
    ]
    rows: list[tuple[Value, ...]] = [(gpu.name, *(figure.get(gpu.uuid) for figure in figures)) for gpu in shown]
    note = (
        "Percentiles are of the utilization at each scrape, not of means. A dip between two scrapes shows only in the "
        "time below 10 %, which the exporter counts at the driver's own rate."
        + (" Means leave out the first five minutes of the run." if queries.subject.run is not None else "")
    )
    if number > len(shown):
        note += f" {len(shown)} of {number} GPUs: the least busy, and those of stragglers."
    return Table(
        (
            Column("GPU", key="name"),
            Column("Maximum", "share", "utilization", key="utilization_max_ratio"),
            Column("99 %", "share", "percentile of utilization", key="utilization_p99_ratio"),
            Column("95 %", "share", "percentile of utilization", key="utilization_p95_ratio"),
            Column("Median", "share", "of utilization", key="utilization_p50_ratio"),
            Column("5 %", "share", "percentile of utilization", key="utilization_p5_ratio"),
            Column("Minimum", "share", "utilization", key="utilization_min_ratio"),
            Column("Busy", "share", "mean time with a kernel on the GPU", key="gpu_busy_ratio"),
            Column("Below 10 %", "share", "mean time with so low a utilization", key="below_10_ratio"),
            Column("SM active", "share", "mean", key="sm_active_ratio"),
            Column("Memory", "share", "maximum in use", key="memory_used_max_ratio"),
            Column("Power", "watts", "mean", key="power_watts"),
            Column("Temperature", "celsius", "maximum", key="temperature_max_celsius"),
            Column(
                "SM clock",
                "share",
                "minimum over five minutes, relative to the maximum clock",
                key="sm_clock_min_ratio",
            ),
        ),
        tuple(rows),
        title="Utilization of each GPU",
        note=note,
        key="gpus",
    )


def _heat_map(queries: Queries, shown: list[Gpu], busy: dict[str, float], number: int) -> Figure | None:
    among = f"uuid=~{any_of(gpu.uuid for gpu in shown)}"
    which = f"{queries.subject.node_matchers}, {among}"
    step = queries.counter_step(_HEAT_COLUMNS)
    rates = (f"rate(stallscope_gpu_{what}_seconds_total{{{which}}}[{step:.0f}s])" for what in ("busy", "observed"))
    share = " / ".join(f"max by ({GPU_LABELS}) ({rate})" for rate in rates)
    result = queries.over_range(f"max by (uuid) (clamp_max({share}, 1){queries.subject.and_own_gpus(among)})", step)
    by_uuid = {curve.labels.get("uuid", ""): curve.values for curve in result.series}
    rows = [gpu for gpu in shown if gpu.uuid in by_uuid]
    if not rows:
        return None
    means = sorted((busy[gpu.uuid], gpu.name) for gpu in rows if gpu.uuid in busy)
    said = _in_words(means) if means else "A mean needs five minutes."
    title = "Time with a kernel on the GPU"
    if number > len(rows):
        title += f" ({len(rows)} of {number}, the least busy)"
    times = tuple(moment - result.step for moment in result.times)
    return Figure(
        title, HeatMap(tuple(gpu.name for gpu in rows), times, tuple(by_uuid[gpu.uuid] for gpu in rows)), said
    )


def _activity(gpu: Gpu) -> float:
    return -1.0 if gpu.busy is None else gpu.busy


def _in_words(means: list[tuple[float, str]]) -> str:
    """Return the text alternative for the means in ascending order."""
    least, most = percent(means[0][0]), percent(means[-1][0])
    if least != most:
        return f"Busy for {least} ({means[0][1]}) to {most} of the time on average."
    return f"{'Each busy' if len(means) > 1 else 'Busy'} for {least} of the time on average."


def _order(gpu: Gpu) -> tuple[tuple[int, str], str, tuple[int, str]]:
    return numerically(gpu.rank), gpu.instance, numerically(gpu.gpu)
