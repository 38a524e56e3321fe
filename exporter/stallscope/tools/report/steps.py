"""Step times, outliers and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from stallscope.common.formatting import capitalised, duration
from stallscope.common.percentiles import Bucket, buckets_of, percentile_limits
from stallscope.model.analysis.over_time import settled
from stallscope.model.clients.expressions import quoted
from stallscope.model.view.phase_shares import step_contents
from stallscope.tools.report.document import (
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
    Series,
    Table,
    Value,
)
from stallscope.tools.report.phases import phase_seconds
from stallscope.tools.report.queries import SCRAPES_SECONDS, TRAINING_TIME, Queries, RangeResult
from stallscope.tools.report.ranks import Ranks
from stallscope.tools.report.words import limits, percent, plain

KEY = "steps"
TITLE = "Steps"
_SHARES = (0.5, 0.95, 0.99)
_HEAT_COLUMNS = 120
_MOST_OUTLIERS = 8


def _middle(bucket: Bucket) -> float:
    """Return the geometric mean of the limits."""
    if bucket.at_most == inf:
        return 2**0.5 * bucket.over
    return (bucket.over * bucket.at_most) ** 0.5 or bucket.at_most / 2


def _name(bucket: Bucket) -> str:
    """Return the limits in words."""
    if bucket.at_most == inf:
        return f"over {duration(bucket.over)}"
    upper = duration(bucket.at_most)
    return f"{duration(bucket.over)} to {upper}" if bucket.over > 0 else f"up to {upper}"


def blocks(queries: Queries, found: Ranks) -> list[Block]:
    """Return the blocks of the section."""
    by_edge = f"sum by (le) (run:step_seconds_bucket:rate5m{{{queries.subject.run_matchers}}})"
    totals = queries.totals
    buckets, mean = totals.buckets, totals.mean_step
    if not buckets:  # the counters began again
        counts = queries.by("le", queries.integral(by_edge))
        buckets = buckets_of({float(edge): number for edge, number in counts.items() if edge})
        mean = queries.figures.step_seconds
    if not buckets:
        return [
            Notice("warning", "No steps were recorded in this time: none were made, or the rules were not evaluated.")
        ]
    return [
        _facts(queries, found),
        _percentiles(buckets, mean),
        # With a single bucket, the figures would show no more than the table.
        *([_histogram(buckets, mean), _spread_over_time(queries, by_edge, buckets)] if len(buckets) > 1 else []),
        _mean_over_time(queries),
        *_outliers(queries, found),
        *_throughput(queries),
    ]


def _of_first(queries: Queries, found: Ranks) -> str:
    """Return the matchers of the first rank."""
    return f"{queries.subject.rank_matchers}, rank={quoted(found.first or '')}"


def _steps_of_first(queries: Queries, found: Ranks) -> tuple[float | None, float | None]:
    """Return the number of steps that the first rank made in this time, and the step that it reached.

    The difference of two samples, without extrapolation, so that both agree for a run that was never restarted.
    """
    which = _of_first(queries, found)

    def first_rank(at: str = "") -> tuple[str, str]:
        """Return PromQL for the step number, and for the number of steps since the start of the process."""
        newest = f"and on (job, instance) topk(1, stallscope_training_last_push_timestamp_seconds{{{which}}}{at})"
        counted = f"stallscope_training_step_seconds_count{{{which}}}{at}"
        step = f"stallscope_training_step{{{which}}}{at}"
        # The first step may have no length. A step number that goes on from a checkpoint is higher by more than one.
        own = f"{step} and {step} - {counted} <= 1 or {counted}"
        return f"max(({step} or {counted}) {newest})", f"max(({own}) {newest})"

    reached, own = first_rank()
    steps = [*_only(queries.over_range(reached, queries.resolution)), queries.value_at_last_scrape(reached)]
    counts = [
        queries.value(first_rank(f" @ {queries.subject.start:.3f}")[1]),
        *_only(queries.over_range(own, queries.resolution)),
        queries.value_at_last_scrape(own),
    ]
    known = [count for count in counts if count is not None]
    if not known:
        return None, None
    start = queries.value(
        f"min(min_over_time(stallscope_training_start_timestamp_seconds{{{which}}}[{queries.window}]))"
    )
    # The first scrape follows the start of a process by seconds, and finds its first steps made.
    began = start is not None and start > queries.subject.start - SCRAPES_SECONDS
    made = known[0] if began else 0.0
    made += sum(later - earlier if later >= earlier else later for earlier, later in pairwise(known))
    return made, next((step for step in reversed(steps) if step is not None), None)


def _facts(queries: Queries, found: Ranks) -> Facts:
    which, window = queries.subject.run_matchers, queries.window
    made, reached = _steps_of_first(queries, found)
    figures = queries.figures
    notes = (step_contents(phase_seconds(queries)), "" if figures.young else TRAINING_TIME)
    planned = queries.value(f"max(last_over_time(run:steps_planned:max{{{which}}}[{window}]))")
    return Facts(
        (
            Fact("Steps", made, "count", "of the first rank in this time, including repeated steps", key="steps"),
            Fact(
                "Step reached", reached, "count", f"of {plain(planned)} planned" if planned else "", key="step_reached"
            ),
            Fact(
                "Mean step time",
                figures.step_seconds,
                "seconds",
                "; ".join(filter(None, notes)),
                key="step_seconds",
            ),
        ),
    )


def _percentiles(buckets: Sequence[Bucket], mean: float | None) -> Table:
    """Return percentiles as far as the buckets and the mean limit them."""
    total = sum(bucket.number for bucket in buckets)
    with_estimate = len(buckets) > 1
    rows: list[tuple[Value, ...]] = []
    for share in _SHARES:
        least, most = percentile_limits(buckets, share, mean)
        estimate = min(most, max(least, _interpolated(buckets, share * total)))
        limits = least, most if most < inf else None
        rows.append((share, estimate if most < inf else None, *limits) if with_estimate else (share, *limits))
    estimates = (Column("Estimate", "seconds", key="seconds"),) if with_estimate else ()
    note = "The limits follow from the histogram, which has three buckets per decade, and from the mean."
    if with_estimate:
        note += " Estimates interpolate within a bucket."
    return Table(
        (
            Column("Percentile", "share", key="percentile_ratio"),
            *estimates,
            Column("At least", "seconds", key="over_seconds"),
            Column("At most", "seconds", key="at_most_seconds"),
        ),
        tuple(rows),
        title="Percentiles of step time, all ranks",
        note=note,
        key="step_percentiles",
    )


def _interpolated(buckets: Sequence[Bucket], number: float) -> float:
    """Return the value that `number` values do not exceed, as `histogram_quantile` and dashboards estimate it."""
    below = 0.0
    for bucket in buckets:
        if below + bucket.number >= number:
            break
        below += bucket.number
    if bucket.at_most == inf or bucket.number <= 0:
        return bucket.over
    return bucket.over + (number - below) / bucket.number * (bucket.at_most - bucket.over)


def _histogram(buckets: Sequence[Bucket], mean: float | None) -> Figure:
    """Draw the distribution; an infinite bucket is drawn as wide as its neighbour."""
    edges = [buckets[0].over, *(bucket.at_most for bucket in buckets)]
    if edges[0] <= 0:
        edges[0] = edges[1] / 2
    if edges[-1] == inf:
        edges[-1] = 2 * edges[-2]
    total = sum(bucket.number for bucket in buckets)
    said = "; ".join(f"{_name(bucket)}: {percent(bucket.number / total)}" for bucket in buckets if bucket.number >= 0.5)
    marks = (Mark(mean, "mean"),) if mean is not None else ()
    counts = tuple(bucket.number for bucket in buckets)
    return Figure(
        "Distribution of step times",
        Histogram(tuple(edges), counts, "seconds", marks, logarithmic=True),
        f"{said}.",
    )


def _spread_over_time(queries: Queries, by_edge: str, buckets: Sequence[Bucket]) -> Figure:
    """Draw the share of time by step time and time.

    Weighted by time: rare long steps, such as those with a checkpoint, would be invisible by count. A step counts with
    the middle of its bucket.
    """
    step = queries.step_for(_HEAT_COLUMNS)
    result = queries.until_last_step(queries.over_range(queries.integral(by_edge, step), step))
    by_upper = {float(curve.labels.get("le") or "nan"): curve.values for curve in result.series}
    missing: Numbers = (None,) * len(result.times)
    none: Numbers = (0.0,) * len(result.times)
    times = [
        [
            None if upper is None else max(0.0, upper - (lower or 0.0)) * _middle(bucket)
            for lower, upper in zip(by_upper.get(bucket.over, none), by_upper.get(bucket.at_most, missing), strict=True)
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
        "Share of time by step time (approximate)",
        HeatMap(
            tuple(_name(bucket) for bucket in reversed(buckets)),
            tuple(moment - result.step for moment in result.times),
            rows,
        ),
        "A single band means steady steps; a second band above it is a kind of longer steps, such as checkpoints.",
    )


def _mean_over_time(queries: Queries) -> Figure:
    record = f"avg(run:step:seconds5m{{{queries.subject.run_matchers}}})"
    result = queries.until_last_step(queries.over_range(queries.over_time("avg_over_time", record, queries.step)))
    values = _only(result)
    known = [value for value in values if value is not None]
    said = f"{capitalised(limits(duration(min(known)), duration(max(known))))}." if known else "No data."
    return Figure(
        "Mean step time over time", Lines(result.times, (Series("mean", values),), "seconds", least=0.0), said
    )


def _outliers(queries: Queries, found: Ranks) -> list[Block]:
    """Report steps far above the usual step time, as counted by the shim: number, cost and times."""

    def increase(name: str, window: str, which: str = "") -> str:
        """Return PromQL for the increase of a counter by rank."""
        series = f"stallscope_training_slow_step{name}{{{queries.subject.rank_matchers}{which}}}"
        return f"sum by (rank) (increase({series}[{window}]))"

    most = queries.instant(f"topk(1, {increase('_excess_seconds_total', queries.window)})")
    if not most:
        return [Notice("info", "Slow steps are unknown: the run's shim does not report them.")]
    rank = most[0].labels.get("rank", "")
    alone = f", rank={quoted(rank)}"
    total, lost = queries.value(increase("s_total", queries.window, alone)) or 0.0, most[0].value
    if total < 0.5:
        return [Paragraph("No step was an outlier. An outlier exceeds the median by three deviations and by 10 %.")]
    step = queries.counter_step()
    result = queries.over_range(increase("_excess_seconds_total", f"{step:.0f}s", alone), step)
    numbers = _only(queries.over_range(increase("s_total", f"{step:.0f}s", alone), step))
    every = [
        (moment, number, seconds)
        for moment, number, seconds in zip(result.times, numbers, _only(result), strict=True)
        if seconds
    ]
    worst = sorted(sorted(every, key=lambda each: -(each[2] or 0.0))[:_MOST_OUTLIERS])
    return [
        Paragraph(
            f"{total:,.0f} steps were outliers on {found.name(rank)}, the rank that lost most time by them. Together "
            f"they took {duration(lost)} longer than usual steps. An outlier exceeds the median of earlier steps "
            "by three deviations and by 10 %. Steps that a phase such as a checkpoint explains do not count."
        ),
        Table(
            (
                Column("Until", "time", f"end of {duration(step)}"),
                Column("Slow steps", "count"),
                Column("Lost", "seconds", "time beyond usual steps"),
            ),
            tuple(worst),
            title="Worst times of slow steps",
            note=f"The worst {len(worst)} of {len(every)} intervals with slow steps, on that rank.",
        ),
    ]


def _throughput(queries: Queries) -> list[Block]:
    blocks: list[Block] = []
    for unit in ("samples", "tokens"):
        rate = settled(f"run:{unit}:rate5m{{{queries.subject.run_matchers}}}")
        result = queries.until_last_step(
            queries.over_range(f"max({queries.over_time('avg_over_time', rate, queries.step)})")
        )
        values = _only(result)
        known = [value for value in values if value is not None]
        if known and max(known) > 0:
            blocks.append(
                Figure(
                    f"{unit.capitalize()} per second",
                    Lines(result.times, (Series(unit, values, "all ranks"),), "per_second", least=0.0),
                    f"{capitalised(limits(plain(min(known)), plain(max(known))))} per second, over five minutes.",
                )
            )
    return blocks


def _only(result: RangeResult) -> Numbers:
    """Return the values of the only series; gaps without one."""
    return result.series[0].values if result.series else (None,) * len(result.times)
