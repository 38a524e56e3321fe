"""How long steps take, which are outliers and when, and what is done in a second."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import NamedTuple

from stallscope.clients.expressions import quoted
from stallscope.common.formatting import duration
from stallscope.report.asking import Asker, Curves, settled
from stallscope.report.document import (
    Block,
    Column,
    Fact,
    Facts,
    Figure,
    HeatMap,
    Histogram,
    Lines,
    Mark,
    Notice,
    Numbers,
    Paragraph,
    Section,
    Series,
    Table,
    Value,
)
from stallscope.report.ranks import Ranks
from stallscope.report.words import percent, plain

KEY = "steps"
_SHARES = (0.5, 0.95, 0.99)
_HEAT_COLUMNS = 120
_MOST_OUTLIERS = 8


class _Bucket(NamedTuple):
    """Steps of about one length."""

    over: float
    at_most: float
    """Infinite in the last one."""
    number: float

    @property
    def middle(self) -> float:
        """A length between its limits, as far from the one as from the other in proportion."""
        if self.at_most == inf:
            return 2**0.5 * self.over
        return (self.over * self.at_most) ** 0.5 or self.at_most / 2

    @property
    def name(self) -> str:
        """Its limits in words."""
        upper = (
            f"{duration(self.over)} to {duration(self.at_most)}"
            if self.at_most < inf
            else f"over {duration(self.over)}"
        )
        return upper if self.over > 0 else f"up to {duration(self.at_most)}"


def section(asker: Asker, found: Ranks) -> Section:
    """Tell it."""
    return Section(KEY, "Steps", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: Ranks) -> list[Block]:
    by_edge = f"sum by (le) (run:step_seconds_bucket:rate5m{{{asker.subject.told_by_run}}})"
    counts = asker.by("le", asker.integral(by_edge))
    buckets = _buckets({edge: number for edge, number in counts.items() if edge})
    if not buckets:
        return [
            Notice(
                "warning", "No step was recorded in this time: either none was made, or the rules were not evaluated."
            )
        ]
    mean = _mean(asker, found)
    return [
        _facts(asker, found, mean),
        _percentiles(buckets),
        # Of one bucket alone nothing is to be seen that the table does not say.
        *([_histogram(buckets, mean), _spread_over_time(asker, by_edge, buckets)] if len(buckets) > 1 else []),
        _mean_over_time(asker),
        *_outliers(asker, found),
        *_throughput(asker),
    ]


def _buckets(counts: dict[str, float]) -> list[_Bucket]:
    """Those with steps in them and between them, from cumulative counts by upper edge."""
    edges = [(0.0, 0.0), *sorted((float(edge), number) for edge, number in counts.items())]
    every = [_Bucket(low[0], high[0], max(0.0, high[1] - low[1])) for low, high in pairwise(edges)]
    filled = [place for place, bucket in enumerate(every) if bucket.number >= 0.5]
    return every[filled[0] : filled[-1] + 1] if filled else []


def _of_first(asker: Asker, found: Ranks) -> str:
    """Matchers of what the first rank tells."""
    return f"{asker.subject.told_by_ranks}, rank={quoted(found.first or '')}"


def _mean(asker: Asker, found: Ranks) -> float | None:
    """Of the first rank, exact; ranks that train together take equally long."""
    total, number = (
        f"sum(increase(stallscope_training_step_seconds_{part}{{{_of_first(asker, found)}}}[{asker.window}]))"
        for part in ("sum", "count")
    )
    return asker.figure(f"{total} / ({number} > 0)")


def _facts(asker: Asker, found: Ranks, mean: float | None) -> Facts:
    which, window = asker.subject.told_by_run, asker.window
    count = f"stallscope_training_step_seconds_count{{{_of_first(asker, found)}}}"
    reached = asker.figure(f"max(last_over_time(run:step:max{{{which}}}[{window}]))")
    planned = asker.figure(f"max(last_over_time(run:steps_planned:max{{{which}}}[{window}]))")
    return Facts(
        (
            Fact(
                "Steps made",
                asker.figure(f"sum(increase({count}[{window}]))"),
                "count",
                "by the first rank in this time; steps made twice count twice",
            ),
            Fact("Step reached", reached, "count", f"of {plain(planned)} planned" if planned else ""),
            Fact("Mean length", mean, "seconds", "from one step's boundary to the next"),
        ),
    )


def _percentiles(buckets: list[_Bucket]) -> Table:
    """Between which edges each percentile lies: nothing is interpolated, for in a bucket steps may lie anywhere."""
    total = sum(bucket.number for bucket in buckets)
    rows: list[tuple[Value, ...]] = []
    for share in _SHARES:
        below = 0.0
        for bucket in buckets:
            below += bucket.number
            if below >= share * total:
                longest = bucket.at_most if bucket.at_most < inf else None
                rows.append(("Median" if share == 0.5 else f"{100 * share:.0f} %", bucket.over, longest))
                break
    return Table(
        (Column("Percentile"), Column("Over", "seconds"), Column("At most", "seconds")),
        tuple(rows),
        title="Percentiles of the length of steps, of all ranks",
        note="A percentile lies between two edges of the histogram, which has three a decade.",
    )


def _histogram(buckets: list[_Bucket], mean: float | None) -> Figure:
    """How steps are spread. An end that has no edge is drawn where the next edge would be."""
    edges = [buckets[0].over, *(bucket.at_most for bucket in buckets)]
    if edges[0] <= 0:
        edges[0] = edges[1] / 2
    if edges[-1] == inf:
        edges[-1] = 2 * edges[-2]
    total = sum(bucket.number for bucket in buckets)
    said = "; ".join(f"{bucket.name}: {percent(bucket.number / total)}" for bucket in buckets if bucket.number >= 0.5)
    marks = (Mark(mean, "mean"),) if mean is not None else ()
    counts = tuple(bucket.number for bucket in buckets)
    return Figure(
        "How the lengths of steps are spread",
        Histogram(tuple(edges), counts, "seconds", marks, logarithmic=True),
        f"{said}.",
    )


def _spread_over_time(asker: Asker, by_edge: str, buckets: list[_Bucket]) -> Figure:
    """The share of time that steps of each length take, step by step of the curve.

    Of time, not of steps: the few that save would not be seen. A step counts as long as the middle of its bucket.
    """
    step = asker.step_of(_HEAT_COLUMNS)
    curves = asker.curves(asker.integral(by_edge, step), step)
    by_upper = {float(curve.labels.get("le") or "nan"): curve.values for curve in curves.curves}
    untold: Numbers = (None,) * len(curves.times)
    none: Numbers = (0.0,) * len(curves.times)
    times = [
        [
            None if upper is None else max(0.0, upper - (lower or 0.0)) * bucket.middle
            for lower, upper in zip(by_upper.get(bucket.over, none), by_upper.get(bucket.at_most, untold), strict=True)
        ]
        for bucket in reversed(buckets)
    ]
    totals = [sum(seconds or 0.0 for seconds in column) for column in zip(*times, strict=True)]
    rows = tuple(
        tuple(
            seconds / total if seconds is not None and total else None
            for seconds, total in zip(row, totals, strict=True)
        )
        for row in times
    )
    return Figure(
        "Share of time by the length of steps, about",
        HeatMap(
            tuple(bucket.name for bucket in reversed(buckets)),
            tuple(moment - curves.step for moment in curves.times),
            rows,
        ),
        "One band is a steady run; a second one above it is a kind of step that takes longer, as those that save.",
    )


def _mean_over_time(asker: Asker) -> Figure:
    record = f"avg(run:step:seconds5m{{{asker.subject.told_by_run}}})"
    curves = asker.curves(asker.over_time("avg_over_time", record, asker.step))
    values = _only(curves)
    told = [value for value in values if value is not None]
    said = f"Between {duration(min(told))} and {duration(max(told))}." if told else "Nothing is told."
    return Figure(
        "Mean length of steps over time", Lines(curves.times, (Series("mean", values),), "seconds", least=0.0), said
    )


def _outliers(asker: Asker, found: Ranks) -> list[Block]:
    """Steps far over the usual ones, as the shim counts them: how many, what they cost, and when."""

    def grown(name: str, window: str, which: str = "") -> str:
        """What each rank counted in a window."""
        series = f"stallscope_training_slow_step{name}{{{asker.subject.told_by_ranks}{which}}}"
        return f"sum by (rank) (increase({series}[{window}]))"

    most = asker.ask(f"topk(1, {grown('_excess_seconds_total', asker.window)})")
    if not most:
        return [Notice("info", "Slow steps are not told by this run's shim.")]
    rank = most[0].labels.get("rank", "")
    alone = f", rank={quoted(rank)}"
    total, lost = asker.figure(grown("s_total", asker.window, alone)) or 0.0, most[0].value
    if total < 0.5:
        return [
            Paragraph("No step was an outlier: over the median by three times its usual deviation, and by a tenth.")
        ]
    step = asker.step_of_counters()
    curves = asker.curves(grown("_excess_seconds_total", f"{step:.0f}s", alone), step)
    numbers = _only(asker.curves(grown("s_total", f"{step:.0f}s", alone), step))
    every = [
        (moment, number, seconds)
        for moment, number, seconds in zip(curves.times, numbers, _only(curves), strict=True)
        if seconds
    ]
    worst = sorted(sorted(every, key=lambda each: -(each[2] or 0.0))[:_MOST_OUTLIERS])
    return [
        Paragraph(
            f"{total:,.0f} steps were outliers on {found.name(rank)}, which lost most by them, and took "
            f"{duration(lost)} longer together than usual ones: over the median of those before them by three times "
            "their usual deviation, and by a tenth. Steps in which a phase such as a save says why do not count."
        ),
        Table(
            (
                Column("Until", "time", f"end of {duration(step)}"),
                Column("Slow steps", "count"),
                Column("Lost", "seconds", "that they took longer than usual ones"),
            ),
            tuple(worst),
            title="When slow steps cost most",
            note=f"The {len(worst)} worst of {len(every)} times with slow steps, on that rank.",
        ),
    ]


def _throughput(asker: Asker) -> list[Block]:
    blocks: list[Block] = []
    for unit in ("samples", "tokens"):
        rate = settled(f"run:{unit}:rate5m{{{asker.subject.told_by_run}}}")
        curves = asker.curves(f"max({asker.over_time('avg_over_time', rate, asker.step)})")
        values = _only(curves)
        told = [value for value in values if value is not None]
        if told and max(told) > 0:
            blocks.append(
                Figure(
                    f"{unit.capitalize()} a second",
                    Lines(curves.times, (Series(unit, values, "all ranks"),), "per_second", least=0.0),
                    f"Between {plain(min(told))} and {plain(max(told))} a second, over five minutes.",
                )
            )
    return blocks


def _only(curves: Curves) -> Numbers:
    """The one curve; gaps where there is none."""
    return curves.curves[0].values if curves.curves else (None,) * len(curves.times)
