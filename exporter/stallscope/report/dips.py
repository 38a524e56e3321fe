"""How dips of the GPU relate to steps: every how many steps they come, and what else comes as often."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.clients.expressions import any_of, quoted
from stallscope.report.asking import Asker
from stallscope.report.document import Block, Column, Notice, Paragraph, Section, Table, Value
from stallscope.report.phases import EVERY_STEP
from stallscope.report.ranks import Ranks
from stallscope.report.subject import GPU_LABELS
from stallscope.report.words import plain, title_of

KEY = "dips"
_DIP = "Dip of its GPU"


def section(asker: Asker, found: Ranks | None) -> Section:
    """Tell it."""
    return Section(KEY, "Dips and steps", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: Ranks | None) -> list[Block]:
    blocks = _regular(asker)
    if found is not None and found.first is not None:
        blocks += _comes_back(asker, found, found.first)
    return blocks


def _regular(asker: Asker) -> list[Block]:
    """GPUs whose dips the rules found regular, and the interval."""
    which, own = asker.subject.told_by_nodes, asker.subject.of_its_gpus()

    def mean(record: str) -> dict[tuple[str, str, str], float]:
        expression = f"max by ({GPU_LABELS}) ({record}{{{which}}}){own}"
        found = asker.ask(
            f"avg by (instance, gpu, uuid) ({asker.over_time('avg_over_time', expression, resolution=asker.coarse)})"
        )
        return {
            (each.labels.get("instance", ""), each.labels.get("gpu", ""), each.labels.get("uuid", "")): each.value
            for each in found
        }

    seconds = mean("gpu:dip_period:seconds30m")
    if not seconds:
        judged = f'count(stallscope_gpu_dips_total{{{which}}}) and on () stallscope:threshold{{name="dip_share"}}'
        if asker.figure(asker.over_time("max_over_time", judged, resolution=asker.coarse)) is None:
            return [Notice("warning", "It is not known whether a GPU dipped: none told, or the rules were missing.")]
        return [Paragraph("No GPU dipped at regular intervals.")]
    steps, cost = mean("gpu:dip_period:steps30m"), mean("gpu:regular_dips:ratio5m")
    most = sorted(seconds, key=lambda gpu: (-cost.get(gpu, 0.0), gpu))
    shown = most[: asker.options.rows]
    rows: list[tuple[Value, ...]] = [
        (f"{gpu[0]} GPU {gpu[1]}", steps.get(gpu), seconds[gpu], cost.get(gpu)) for gpu in shown
    ]
    left = len(most) - len(shown)
    table = Table(
        (
            Column("GPU"),
            Column("Every … steps", "number", "of the rank that computes there"),
            Column("Every …", "seconds"),
            Column("Under 10 %", "share", "time with utilisation that low, while the dips are regular"),
        ),
        tuple(rows),
        title="GPUs that dip at regular intervals",
        note="Means over the times at which the rules found the dips regular."
        + (f" {left} more GPUs are left out." if left > 0 else ""),
    )
    first = shown[0]
    period = (
        f"every {plain(steps[first])} steps ({seconds[first]:.1f} s)"
        if first in steps
        else f"every {seconds[first]:.1f} s"
    )
    text = f"{first[0]} GPU {first[1]} dips {period}. What the loop does at that interval is the cause."
    return [Notice("warning", text), table]


def _comes_back(asker: Asker, found: Ranks, first: str) -> list[Block]:
    """Steps from one occurrence to the next, of all that comes back."""
    window = asker.window
    rank = f"{asker.subject.told_by_ranks}, rank={quoted(first)}"
    steps = asker.figure(f"sum(increase(stallscope_training_step_seconds_count{{{rank}}}[{window}]))")
    if not steps:
        return [Notice("info", "No step was counted, so nothing can be set against steps.")]
    slow = asker.figure(f"sum(increase(stallscope_training_slow_steps_total{{{rank}}}[{window}]))")
    uuids = any_of(sorted(found.places[first].uuids))
    dips = asker.figure(
        f"avg(increase(stallscope_gpu_dips_total{{{asker.subject.told_by_nodes}, uuid=~{uuids}}}[{window}]))"
    )
    phases = asker.by(
        "phase",
        "sum by (phase) (increase(stallscope_training_phase_occurrences_total"
        f'{{{rank}, phase!~"{EVERY_STEP}|initialization|restore|paused"}}[{window}]))',
    )
    every = {
        _DIP: dips,
        "Slow step": slow,
        **{title_of(phase): number for phase, number in phases.items()},
    }
    told = {name: number for name, number in every.items() if number is not None}
    if not told:
        return [Notice("info", "Neither dips nor slow steps nor phases of their own are told.")]
    came = {name: number for name, number in told.items() if number >= 1}
    if not came:
        return [Paragraph(f"In {steps:,.0f} steps of {found.name(first)} there was no {_or(told)}.")]
    between_dips = steps / dips if dips else None
    rows: list[tuple[Value, ...]] = [
        (name, number, steps / number, steps / number / between_dips if between_dips and name != _DIP else None)
        for name, number in sorted(came.items(), key=lambda each: -each[1])
    ]
    return [
        Table(
            (
                Column("What"),
                Column("Times", "count", f"on {found.name(first)}"),
                Column("Every … steps", "number", f"mean of {steps:,.0f} steps"),
                Column("Of the dips' interval", "times", "1: it comes as often as the dips"),
            ),
            tuple(rows),
            title="What comes back every so many steps",
            note="A phase that comes as often as the dips is their cause: do it less often, or beside the loop.",
        )
    ]


def _or(names: Iterable[str]) -> str:
    return " and no ".join(name[:1].lower() + name[1:] for name in names)
