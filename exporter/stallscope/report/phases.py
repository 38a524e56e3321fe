"""What the loop's time goes into, phase by phase."""

from __future__ import annotations

from stallscope.clients.expressions import quoted
from stallscope.report.asking import Asker
from stallscope.report.document import (
    Areas,
    Block,
    Column,
    Figure,
    Notice,
    Section,
    Series,
    Table,
    Value,
)
from stallscope.report.ranks import Ranks
from stallscope.report.words import percent, title_of

KEY = "phases"
EVERY_STEP = "data_wait|host_copy|forward|backward|communication|optimizer|other"
"""Phases that every step has."""

_HOW = (
    "Wrap the data loader in `stallscope.track`, or time parts of the step with `run.phase(…)`, to learn what the "
    "loop's time goes into."
)


def section(asker: Asker, found: Ranks) -> Section:
    """Tell it."""
    return Section(KEY, "Phases", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: Ranks) -> list[Block]:
    which = asker.subject.told_by_run
    times = asker.by("phase", asker.integral(f"sum by (phase) (run_phase:time:rate5m{{{which}}})"))
    times = {phase: seconds for phase, seconds in times.items() if seconds > 0}
    if not times:
        return [
            Notice(
                "warning",
                f"No phase was recorded in this time: either none is told, or the rules were not evaluated. {_HOW}",
            )
        ]
    blocks: list[Block] = []
    if set(times) == {"other"}:
        blocks.append(Notice("warning", f"No phase is measured: `other` is all of the step. {_HOW}"))
    elif set(times) <= {"other", "data_wait"}:
        blocks.append(
            Notice(
                "info",
                "The forward and backward pass are not told apart: `other` is all of the step that "
                "is not waiting for data.",
            )
        )
    blocks += [_table(asker, found, times), _areas(asker, times)]
    return blocks


def _table(asker: Asker, found: Ranks, times: dict[str, float]) -> Table:
    which = asker.subject.told_by_run
    on_gpu = asker.by("phase", asker.integral(f"sum by (phase) (run_phase:gpu_time:rate5m{{{which}}})"))
    steps = asker.figure(asker.integral(f'sum(run:step_seconds_bucket:rate5m{{le="+Inf", {which}}})'))
    total = sum(times.values())
    occurrences, longest = _of_first_rank(asker, found)
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
            Column("Phase"),
            Column("Share", "share", "of the loop's time, by the host's clock"),
            Column("Time", "gpu_hours", "hours of a rank, summed over the ranks"),
            Column("Per step", "seconds", "mean over all steps"),
            Column("By the GPU", "share", "of the same time, by the GPU's clock, where it is measured"),
            Column("Occurrences", "count", f"of what not every step has, on {first}"),
            Column("Longest", "seconds", f"occurrence, on {first}"),
        ),
        tuple(rows),
        title="Phases of the loop",
        note="Asynchronous copies and kernels show on the host's clock only where the host waits for them. "
        "Initialization, evaluation and restore lie outside steps.",
    )


def _of_first_rank(asker: Asker, found: Ranks) -> tuple[dict[str, float], dict[str, float]]:
    """How often the phases occurred that not every step has, and how long they were at most."""
    if found.first is None:
        return {}, {}
    which = f'{asker.subject.told_by_ranks}, rank={quoted(found.first)}, phase!~"{EVERY_STEP}"'
    return (
        asker.by(
            "phase",
            f"sum by (phase) (increase(stallscope_training_phase_occurrences_total{{{which}}}[{asker.window}]))",
        ),
        asker.by(
            "phase", f"max by (phase) (max_over_time(stallscope_training_phase_max_seconds{{{which}}}[{asker.window}]))"
        ),
    )


def _areas(asker: Asker, times: dict[str, float]) -> Figure:
    which = asker.subject.told_by_run
    by_phase = asker.integral(f"sum by (phase) (run_phase:time:rate5m{{{which}}})", asker.step)
    together = asker.integral(f"sum(run_phase:time:rate5m{{{which}}})", asker.step)
    curves = asker.curves(f"{by_phase} / on () group_left () ({together} > 0)")
    order = sorted(times, key=lambda phase: -times[phase])
    found = {curve.labels.get("phase", ""): curve.values for curve in curves.curves}
    parts = tuple(Series(phase, found[phase]) for phase in order if phase in found)
    total = sum(times.values())
    said = ", ".join(f"{title_of(phase)} {percent(times[phase] / total)}" for phase in order[:6])
    return Figure("Phases over time", Areas(curves.times, parts, "share", 1.0), f"Share of the loop's time: {said}.")
