"""How long steps take, which are outliers and when, and what is done in a second."""

from __future__ import annotations

from math import inf

from stallscope.analysis.expressions import quoted
from stallscope.analysis.report.asking import Asker, Curves, multiple_of
from stallscope.analysis.report.document import (
    Block,
    Column,
    Fact,
    Facts,
    Figure,
    Histogram,
    Lines,
    Mark,
    Notice,
    Numbers,
    Paragraph,
    Section,
    Series,
    Table,
)
from stallscope.analysis.report.ranks import Ranks
from stallscope.analysis.report.words import plain
from stallscope.readable import duration

KEY = "steps"
_QUANTILES = ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
_MOST_OUTLIERS = 8
_SCRAPES_SECONDS = 120.0
"""Least time in which there are enough scrapes to tell what a counter grew by."""


def section(asker: Asker, found: Ranks) -> Section:
    """Tell it."""
    return Section(KEY, "Steps", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: Ranks) -> list[Block]:
    buckets = f"sum by (le) (run:step_seconds_bucket:rate5m{{{asker.subject.told_by_run}}})"
    by_edge = asker.by("le", asker.integral(buckets))
    counts = sorted((float(edge), number) for edge, number in by_edge.items() if edge)
    if not counts or counts[-1][1] <= 0:
        return [
            Notice(
                "warning", "No step was recorded in this time: either none was made, or the rules were not evaluated."
            )
        ]
    quantiles = {
        name: asker.figure(f"histogram_quantile({share}, sum by (le) ({asker.integral(buckets)}))")
        for share, name in _QUANTILES
    }
    blocks: list[Block] = [_facts(asker, found, quantiles, [edge for edge, _ in counts])]
    histogram = _histogram(counts, quantiles)
    if histogram is not None:
        blocks.append(histogram)
    blocks += [_over_time(asker, buckets), *_outliers(asker), *_throughput(asker)]
    return blocks


def _facts(asker: Asker, found: Ranks, quantiles: dict[str, float | None], edges: list[float]) -> Facts:
    which, window = asker.subject.told_by_run, asker.window
    made = None
    if found.first is not None:
        rank = f"{asker.subject.told_by_ranks}, rank={quoted(found.first)}"
        made = asker.figure(f"sum(increase(stallscope_training_step_seconds_count{{{rank}}}[{window}]))")
    reached = asker.figure(f"max(last_over_time(run:step:max{{{which}}}[{window}]))")
    planned = asker.figure(f"max(last_over_time(run:steps_planned:max{{{which}}}[{window}]))")
    mean = asker.figure(f"avg(avg_over_time(run:step:seconds5m{{{which}}}[{window}]))")
    facts = [
        Fact("Steps made", made, "count", "by the first rank in this time; steps made twice count twice"),
        Fact("Step reached", reached, "count", f"of {plain(planned)} planned" if planned else ""),
        Fact("Mean", mean, "seconds", "from one step's boundary to the next"),
        *(
            Fact("Median" if name == "median" else f"{name} take at most", value, "seconds", _exactness(value, edges))
            for name, value in quantiles.items()
        ),
    ]
    return Facts(tuple(facts), title="Length of steps")


def _exactness(value: float | None, edges: list[float]) -> str:
    """Between which edges of the histogram a quantile was interpolated."""
    if value is None:
        return ""
    above = next((edge for edge in edges if edge >= value), inf)
    below = max((edge for edge in edges if edge < value), default=0.0)
    return f"about: the histogram tells that it lies between {duration(below)} and " + (
        duration(above) if above < inf else "any length"
    )


def _histogram(counts: list[tuple[float, float]], quantiles: dict[str, float | None]) -> Figure | None:
    """How steps are spread; steps over the last finite edge lie in a bucket twice as long."""
    edges, between, before = [], [], 0.0
    for edge, number in counts:
        edges.append(edge)
        between.append(max(0.0, number - before))
        before = max(before, number)
    if edges[-1] == inf:
        edges[-1] = 2 * edges[-2] if len(edges) > 1 else 1.0
    filled = [place for place, number in enumerate(between) if number >= 0.5]
    if not filled:
        return None
    first, last = max(0, filled[0] - 1), min(len(edges) - 1, filled[-1] + 1)
    lowest = edges[first - 1] if first else edges[0] / 2
    kept = tuple(between[first : last + 1])
    marks = tuple(Mark(value, name) for name, value in quantiles.items() if value)
    said = ", ".join(f"{name} {duration(value)}" for name, value in quantiles.items() if value)
    return Figure(
        "How the lengths of steps are spread",
        Histogram((lowest, *edges[first : last + 1]), kept, "seconds", marks, logarithmic=True),
        f"Steps of all ranks, about: {said}.",
    )


def _over_time(asker: Asker, buckets: str) -> Figure:
    mean = f"avg(run:step:seconds5m{{{asker.subject.told_by_run}}})"
    expressions = {"mean": asker.over_time("avg_over_time", mean, asker.step)}
    for share, name in _QUANTILES:
        expressions[name] = f"histogram_quantile({share}, sum by (le) ({asker.integral(buckets, asker.step)}))"
    series: list[Series] = []
    said = []
    for name, expression in expressions.items():
        curves = asker.curves(expression)
        values = _only(curves)
        series.append(Series(name, values, style="line" if name == "mean" else "dashed"))
        told = [value for value in values if value is not None]
        if told:
            said.append(f"{name} between {duration(min(told))} and {duration(max(told))}")
    return Figure(
        "Length of steps over time",
        Lines(curves.times, tuple(series), "seconds", least=0.0),
        "; ".join(said) + ". Percentiles are as exact as the histogram's edges.",
    )


def _outliers(asker: Asker) -> list[Block]:
    """Steps far over the usual ones, as the shim counts them: how many, what they cost, and when."""
    which = asker.subject.told_by_ranks

    def most(name: str, window: str) -> str:
        """What the rank with most counted in a window."""
        return f"max(sum by (rank) (increase(stallscope_training_slow_step{name}{{{which}}}[{window}])))"

    total = asker.figure(most("s_total", asker.window))
    if total is None:
        return [Notice("info", "Slow steps are not told by this run's shim.")]
    if total < 0.5:
        return [
            Paragraph("No step was an outlier: over the median by three times its usual deviation, and by a tenth.")
        ]
    lost = asker.figure(most("_excess_seconds_total", asker.window)) or 0.0
    step = multiple_of(_SCRAPES_SECONDS, asker.step)
    curves = asker.curves(most("_excess_seconds_total", f"{step:.0f}s"), step)
    times, seconds, numbers = curves.times, _only(curves), _only(asker.curves(most("s_total", f"{step:.0f}s"), step))
    worst = sorted(
        (
            (second, moment, number_then or 0.0)
            for moment, number_then, second in zip(times, numbers, seconds, strict=True)
            if second
        ),
        reverse=True,
    )
    rows = tuple(
        (moment, count, second) for second, moment, count in sorted(worst[:_MOST_OUTLIERS], key=lambda e: e[1])
    )
    return [
        Paragraph(
            f"{total:,.0f} steps were outliers on the rank with most, and took {duration(lost)} longer together than "
            "usual ones: over the median of those before them by three times their usual deviation, and by a tenth. Steps "
            "in which a phase such as a save says why do not count."
        ),
        Table(
            (
                Column("Until", "time", f"end of a time of {duration(step)}"),
                Column("Slow steps", "count"),
                Column("Lost", "seconds", "that they took longer than usual ones"),
            ),
            rows,
            title="When slow steps cost most",
            note=f"The {len(rows)} worst of {len(worst)} such times, in their order; the rank with most at each.",
        ),
    ]


def _throughput(asker: Asker) -> list[Block]:
    blocks: list[Block] = []
    for unit in ("samples", "tokens"):
        record = f"run:{unit}:rate5m{{{asker.subject.told_by_run}}}"
        curves = asker.curves(f"max({asker.over_time('avg_over_time', record, asker.step)})")
        values = _only(curves)
        told = [value for value in values if value is not None]
        if told and max(told) > 0:
            mean = sum(told) / len(told)
            blocks.append(
                Figure(
                    f"{unit.capitalize()} a second",
                    Lines(curves.times, (Series(unit, values, "all ranks"),), "per_second", least=0.0),
                    f"{plain(mean)} {unit} a second in the mean, between {plain(min(told))} and {plain(max(told))}.",
                )
            )
    return blocks


def _only(curves: Curves) -> Numbers:
    """The one curve; gaps where there is none."""
    return curves.curves[0].values if curves.curves else (None,) * len(curves.times)
