"""How busy each GPU was: percentiles, time under 10 %, memory, power, temperature, and all of it over time."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.clients.expressions import any_of
from stallscope.report.asking import Asker
from stallscope.report.document import (
    Block,
    Column,
    Figure,
    HeatMap,
    Notice,
    Numbers,
    Section,
    Table,
    Value,
)
from stallscope.report.ranks import Ranks, numerically
from stallscope.report.subject import GPU_LABELS
from stallscope.report.words import percent

KEY = "utilisation"
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
    """Of the run; empty where the subject is none."""
    busy: float
    """Mean share of time with a kernel resident."""

    @property
    def name(self) -> str:
        """In a few words."""
        rank = f"rank {self.rank}, " if self.rank else ""
        return f"{rank}{self.instance} GPU {self.gpu}{f' ({self.mig})' if self.mig else ''}"


def section(asker: Asker, found: Ranks | None) -> Section:
    """Tell it."""
    return Section(KEY, "Use of each GPU", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: Ranks | None) -> list[Block]:
    every = _gpus(asker, found)
    if not every:
        return [
            Notice(
                "warning",
                "No GPU told how busy it was"
                + (", or none that a rank of the run claims." if asker.subject.run is not None else "."),
            )
        ]
    least = sorted(every, key=lambda gpu: gpu.busy)
    shown = least[: asker.options.rows]
    if found is not None:  # whom others wait for belongs here however busy
        shown = list(dict.fromkeys([*(gpu for gpu in every if gpu.rank in found.worst[:4]), *shown]))[
            : asker.options.rows
        ]
    shown.sort(key=_order)
    blocks: list[Block] = [_table(asker, shown, len(every))]
    heat = _heat_map(asker, sorted(least[:_HEAT_ROWS], key=_order), len(every))
    if heat is not None:
        blocks.append(heat)
    return blocks


def _gpus(asker: Asker, found: Ranks | None) -> list[Gpu]:
    """Every GPU with its mean, the least busy among them."""
    subject = asker.subject
    busy = f"avg_over_time(gpu:busy:ratio5m{{{subject.told_by_nodes}}}[{asker.window}])"
    ranks = {uuid: rank for rank, place in found.places.items() for uuid in place.uuids} if found is not None else {}
    every = asker.ask(f"max by (instance, gpu, uuid, mig) ({busy})")
    return [
        Gpu(
            each.labels.get("instance", ""),
            each.labels.get("gpu", ""),
            each.labels.get("uuid", ""),
            each.labels.get("mig", ""),
            ranks.get(each.labels.get("uuid", ""), ""),
            each.value,
        )
        for each in every
        if found is None or each.labels.get("uuid") in ranks
    ]


def _table(asker: Asker, shown: list[Gpu], number: int) -> Table:
    among = f"uuid=~{any_of(gpu.uuid for gpu in shown)}"
    which = f"{asker.subject.told_by_nodes}, {among}"

    def over_time(function: str, expression: str, before: str = "") -> dict[str, float]:
        """At the moments at which the GPU is the subject's."""
        own = f"max by ({GPU_LABELS}) ({expression}){asker.subject.of_its_gpus(among, before)}"
        return asker.by("uuid", f"max by (uuid) ({asker.over_time(function, own, resolution=asker.coarse)})")

    def rate(counter: str, labels: str = "") -> dict[str, float]:
        """Mean of what a counter integrates, at the moments before which the GPU was the subject's for five minutes."""
        return over_time("avg_over_time", f"rate({counter}{{{which}{labels}}}[{asker.rate_window}])", "5m")

    utilisation = f"stallscope_gpu_utilization_ratio{{{which}}}"
    figures = [
        over_time("max_over_time", utilisation),
        *(over_time(f"quantile_over_time({share}, ", utilisation) for share in (0.99, 0.95, 0.5, 0.05)),
        over_time("min_over_time", utilisation),
        rate("stallscope_gpu_busy_seconds_total"),
        rate("stallscope_gpu_below_seconds_total", ', level="0.1"'),
        rate("stallscope_gpu_sm_active_seconds_total"),
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
        "Percentiles are of utilisation as each scrape read it, not of means: a dip between two scrapes shows only in "
        "the time under 10 %, which the exporter counts at the driver's own rate."
    )
    if number > len(shown):
        note += f" {len(shown)} of {number} GPUs: the least busy, and those that the others wait for."
    return Table(
        (
            Column("GPU"),
            Column("Most", "share", "utilisation"),
            Column("99 %", "share", "percentile of utilisation"),
            Column("95 %", "share", "percentile of utilisation"),
            Column("Median", "share", "of utilisation"),
            Column("5 %", "share", "percentile of utilisation"),
            Column("Least", "share", "utilisation"),
            Column("Busy", "share", "mean time with a kernel resident"),
            Column("Under 10 %", "share", "mean time in which utilisation was that low"),
            Column("SMs active", "share", "mean"),
            Column("Memory", "share", "most that was held"),
            Column("Power", "watts", "mean"),
            Column("Hottest", "celsius"),
            Column("Lowest clock", "share", "of the SMs, over the highest, a mean of five minutes"),
        ),
        tuple(rows),
        title="Utilisation of each GPU",
        note=note,
    )


def _heat_map(asker: Asker, shown: list[Gpu], number: int) -> Figure | None:
    among = f"uuid=~{any_of(gpu.uuid for gpu in shown)}"
    which = f"{asker.subject.told_by_nodes}, {among}"
    step = asker.step_of_counters(_HEAT_COLUMNS)
    busy = f"max by ({GPU_LABELS}) (rate(stallscope_gpu_busy_seconds_total{{{which}}}[{step:.0f}s]))"
    curves = asker.curves(f"max by (uuid) ({busy}{asker.subject.of_its_gpus(among)})", step)
    by_uuid = {curve.labels.get("uuid", ""): curve.values for curve in curves.curves}
    rows = [gpu for gpu in shown if gpu.uuid in by_uuid]
    if not rows:
        return None
    means = sorted((_mean(by_uuid[gpu.uuid]), gpu.name) for gpu in rows)
    least, most = percent(means[0][0]), percent(means[-1][0])
    others = f" ({means[0][1]}) to {most}" if least != most else ""
    said = f"{'Each busy' if len(rows) > 1 and not others else 'Busy'} for {least}{others} of the time, in the mean"
    title = "Time with a kernel resident, by GPU"
    if number > len(rows):
        title += f" ({len(rows)} of {number}, the least busy)"
    times = tuple(moment - curves.step for moment in curves.times)
    return Figure(
        title, HeatMap(tuple(gpu.name for gpu in rows), times, tuple(by_uuid[gpu.uuid] for gpu in rows)), f"{said}."
    )


def _mean(values: Numbers) -> float:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else 0.0


def _order(gpu: Gpu) -> tuple[tuple[int, str], str, tuple[int, str]]:
    return numerically(gpu.rank), gpu.instance, numerically(gpu.gpu)
