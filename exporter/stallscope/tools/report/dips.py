"""How dips of GPU activity relate to steps: their interval in steps, and other events with the same interval."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.clients.expressions import any_of, quoted
from stallscope.tools.report.document import Block, Column, Notice, Paragraph, Table, Value
from stallscope.tools.report.phases import EVERY_STEP
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.ranks import Ranks
from stallscope.tools.report.subject import GPU_LABELS
from stallscope.tools.report.words import plain, title_of

KEY = "dips"
TITLE = "Dips and steps"
_DIP = "Dip of its GPU"


def blocks(queries: Queries, found: Ranks | None) -> list[Block]:
    """Return the blocks of the section."""
    blocks = _regular(queries)
    if found is not None and found.first is not None:
        blocks += _recurring_events(queries, found, found.first)
    return blocks


def _regular(queries: Queries) -> list[Block]:
    """Report the GPUs whose dips the rules found regular, with the interval."""
    which, own = queries.subject.node_matchers, queries.subject.and_own_gpus()

    def mean(record: str) -> dict[tuple[str, str, str], float]:
        expression = f"max by ({GPU_LABELS}) ({record}{{{which}}}){own}"
        means = queries.over_time("avg_over_time", expression, resolution=queries.coarse)
        found = queries.instant(f"avg by (instance, gpu, uuid) ({means})")
        return {
            (each.labels.get("instance", ""), each.labels.get("gpu", ""), each.labels.get("uuid", "")): each.value
            for each in found
        }

    seconds = mean("gpu:dip_period:seconds30m")
    if not seconds:
        judged = f'count(stallscope_gpu_dips_total{{{which}}}) and on () stallscope:threshold{{name="dip_share"}}'
        if queries.value(queries.over_time("max_over_time", judged, resolution=queries.coarse)) is None:
            return [Notice("warning", "Dips are unknown: no GPU reports them, or the rules were missing.")]
        return [Paragraph("No GPU dips at regular intervals.")]
    steps, cost = mean("gpu:dip_period:steps30m"), mean("gpu:regular_dips:ratio5m")
    most = sorted(seconds, key=lambda gpu: (-cost.get(gpu, 0.0), gpu))
    shown = most[: queries.options.rows]
    rows: list[tuple[Value, ...]] = [
        (f"{gpu[0]} GPU {gpu[1]}", steps.get(gpu), seconds[gpu], cost.get(gpu)) for gpu in shown
    ]
    left = len(most) - len(shown)
    table = Table(
        (
            Column("GPU"),
            Column("Interval in steps", "number", "steps of the rank on that GPU"),
            Column("Interval", "seconds"),
            Column("Below 10 %", "share", "time with so low a utilization, while the dips are regular"),
        ),
        tuple(rows),
        title="GPUs that dip at regular intervals",
        note="Means over the time in which the rules found the dips regular."
        + (f" {left} more GPUs are omitted." if left > 0 else ""),
    )
    first = shown[0]
    period = (
        f"every {plain(steps[first])} steps ({seconds[first]:.1f} s)"
        if first in steps
        else f"every {seconds[first]:.1f} s"
    )
    text = f"{first[0]} GPU {first[1]} dips {period}. The cause is work that the training loop does at that interval."
    return [Notice("warning", text), table]


def _recurring_events(queries: Queries, found: Ranks, first: str) -> list[Block]:
    """Report the interval in steps between two dips, slow steps and phases."""
    window = queries.window
    rank = f"{queries.subject.rank_matchers}, rank={quoted(first)}"
    steps = queries.value(f"sum(increase(stallscope_training_step_seconds_count{{{rank}}}[{window}]))")
    if not steps:
        return [Notice("info", "No steps were counted, so intervals in steps are unknown.")]
    slow = queries.value(f"sum(increase(stallscope_training_slow_steps_total{{{rank}}}[{window}]))")
    uuids = any_of(sorted(found.places[first].uuids))
    dips = queries.value(
        f"avg(increase(stallscope_gpu_dips_total{{{queries.subject.node_matchers}, uuid=~{uuids}}}[{window}]))"
    )
    phases = queries.by(
        "phase",
        "sum by (phase) (increase(stallscope_training_phase_occurrences_total"
        f'{{{rank}, phase!~"{EVERY_STEP}|initialization|restore|paused"}}[{window}]))',
    )
    every = {
        _DIP: dips,
        "Slow step": slow,
        **{title_of(phase): number for phase, number in phases.items()},
    }
    known = {name: number for name, number in every.items() if number is not None}
    if not known:
        return [Notice("info", "Dips, slow steps and phases outside the regular step are unknown.")]
    occurred = {name: number for name, number in known.items() if number >= 1}
    if not occurred:
        return [Paragraph(f"In {steps:,.0f} steps of {found.name(first)} there was no {_or(known)}.")]
    between_dips = steps / dips if dips else None
    rows: list[tuple[Value, ...]] = [
        (name, number, steps / number, steps / number / between_dips if between_dips and name != _DIP else None)
        for name, number in sorted(occurred.items(), key=lambda each: -each[1])
    ]
    return [
        Table(
            (
                Column("Event"),
                Column("Count", "count", f"on {found.name(first)}"),
                Column("Interval in steps", "number", f"mean of {steps:,.0f} steps"),
                Column("Relative to dips", "times", "1: as frequent as the dips"),
            ),
            tuple(rows),
            title="Recurring events",
            note="A phase as frequent as the dips is their cause: do it less often, or outside the training loop.",
        )
    ]


def _or(names: Iterable[str]) -> str:
    return " and no ".join(name[:1].lower() + name[1:] for name in names)
