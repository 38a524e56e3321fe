"""The time of the training loop by phase."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.model.catalogue.metrics import NOT_OF_THE_LOOP
from stallscope.model.clients.expressions import quoted
from stallscope.tools.report.document import Areas, Block, Column, Figure, Notice, Series, Table, Value
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.ranks import Ranks
from stallscope.tools.report.words import percent, title_of

KEY = "phases"
_NAMED = 6
TITLE = "Phases"
EVERY_STEP = "data_wait|host_copy|forward|backward|communication|optimizer|other"
"""Phases of every step."""

_HOW = (
    "Wrap the data loader in `stallscope.track`, or time parts of the step with `run.phase(…)`, to measure the phases "
    "of the loop."
)


def blocks(queries: Queries, found: Ranks) -> list[Block]:
    """Return the blocks of the section."""
    times = phase_seconds(queries)
    if not times:
        return [
            Notice(
                "warning",
                f"No phases were recorded in this time: none are reported, or the rules were not evaluated. {_HOW}",
            )
        ]
    blocks: list[Block] = []
    if set(times) == {"other"}:
        blocks.append(Notice("warning", f"No phase is measured: `other` is the whole step. {_HOW}"))
    elif set(times) <= {"other", "data_wait"}:
        blocks.append(
            Notice(
                "info",
                "Forward and backward pass are not measured separately: `other` is the whole step except waiting for "
                "data.",
            )
        )
    blocks += [_table(queries, found, times), _areas(queries, times)]
    return blocks


def phase_seconds(queries: Queries) -> dict[str, float]:
    """Return the seconds of the loop by phase: as counted, or, if the counters began again, as the rules recorded."""
    if queries.totals.loop:
        return dict(queries.totals.loop)
    which = queries.subject.run_matchers
    times = queries.by("phase", queries.integral(f"sum by (phase) (run_phase:time:rate5m{{{which}}})"))
    return {phase: spent for phase, spent in times.items() if spent > 0 and phase not in NOT_OF_THE_LOOP}


def _table(queries: Queries, found: Ranks, times: dict[str, float]) -> Table:
    which = queries.subject.run_matchers
    on_gpu, steps = queries.totals.gpu_phases, queries.totals.steps or None
    if not queries.totals.loop:
        on_gpu = queries.by("phase", queries.integral(f"sum by (phase) (run_phase:gpu_time:rate5m{{{which}}})"))
        steps = queries.value(queries.integral(f'sum(run:step_seconds_bucket:rate5m{{le="+Inf", {which}}})'))
    total = sum(times.values())
    occurrences, longest = _of_first_rank(queries, found)
    rows: list[tuple[Value, ...]] = []
    for phase, seconds in sorted(times.items(), key=lambda each: -each[1]):
        gpu = on_gpu.get(phase)
        rows.append(
            (
                title_of(phase),
                seconds / total,
                seconds / 3600,
                seconds / steps if steps else None,
                gpu / total if gpu is not None else None,
                occurrences.get(phase),
                longest.get(phase),
            )
        )
    first = found.name(found.first) if found.first is not None else "the first rank"
    return Table(
        (
            Column("Phase", key="phase"),
            Column("Share", "share", "of the loop's time, by the host's clock", key="ratio"),
            Column("Time", "gpu_hours", "rank-hours", key="rank_hours"),
            Column("Per step", "seconds", "mean over all steps", key="seconds_per_step"),
            Column("GPU share", "share", "of the loop's time, by the GPU's clock if measured", key="gpu_ratio"),
            Column("Occurrences", "count", f"of phases that only some steps have, on {first}", key="occurrences"),
            Column("Longest", "seconds", f"occurrence, on {first}", key="longest_seconds"),
        ),
        tuple(rows),
        title="Phases of the loop",
        note="Asynchronous copies and kernels count on the host's clock only while the host waits for them. "
        "Initialization and pauses are not part of the loop; evaluation and restore are outside steps.",
        key="phases",
    )


def _of_first_rank(queries: Queries, found: Ranks) -> tuple[dict[str, float], dict[str, float]]:
    """Return the number and the longest duration of the phases that not every step has, on the first rank."""
    if found.first is None:
        return {}, {}
    which = f'{queries.subject.rank_matchers}, rank={quoted(found.first)}, phase!~"{EVERY_STEP}"'
    return (
        queries.by(
            "phase",
            f"sum by (phase) (increase(stallscope_training_phase_occurrences_total{{{which}}}[{queries.window}]))",
        ),
        queries.by(
            "phase",
            f"max by (phase) (max_over_time(stallscope_training_phase_max_seconds{{{which}}}[{queries.window}]))",
        ),
    )


def _areas(queries: Queries, times: dict[str, float]) -> Figure:
    which = queries.subject.run_matchers
    by_phase = queries.integral(f"sum by (phase) (run_phase:time:rate5m{{{which}}})", queries.step)
    together = queries.integral(f"sum(run_phase:time:rate5m{{{which}}})", queries.step)
    result = queries.until_last_step(queries.over_range(f"{by_phase} / on () group_left () ({together} > 0)"))
    order = sorted(times, key=lambda phase: -times[phase])
    found = {curve.labels.get("phase", ""): curve.values for curve in result.series}
    parts = tuple(Series(phase, found[phase]) for phase in order if phase in found)
    said = named_shares(times)
    return Figure("Phases over time", Areas(result.times, parts, "share", 1.0), f"Share of the loop's time: {said}.")


def named_shares(times: Mapping[str, float]) -> str:
    """Return the largest phases in words, with their shares of the time of all."""
    total = sum(times.values())
    order = sorted(times, key=lambda phase: -times[phase])
    return ", ".join(f"{title_of(phase)} {percent(times[phase] / total)}" for phase in order[:_NAMED])
