"""GPU time lost by cause, the basis of the other sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stallscope.common.formatting import capitalised, duration
from stallscope.model.catalogue.causes import CAUSES
from stallscope.tools.report.document import (
    Areas,
    Bars,
    Block,
    Column,
    Figure,
    Notice,
    Paragraph,
    Series,
    Table,
    Value,
)
from stallscope.tools.report.queries import Queries, RangeResult, highest
from stallscope.tools.report.words import percent, plain, title_of

KEY = "lost-time"
TITLE = "Where the time went"
_NAMED = 6
_EXACT = 5.0
"""Seconds between two points around the beginning of a standstill."""
_JUDGED_SECONDS = 300.0
"""Length of a run from which on rules that are loaded have recorded it."""
_JOIN_SECONDS = 90.0
"""Time of a run in which few points have its GPUs."""
_JUDGED = ""
"""Pseudo-cause of a series that is zero while there are verdicts."""


@dataclass(frozen=True)
class Loss:
    """The loss due to one cause."""

    cause: str
    gpu_seconds: float
    share: float
    """Share of all GPU time."""
    joules: float | None
    """Energy that the GPUs took during the lost time; None if unknown."""
    worst_share: float | None
    """Share of GPU time in the worst interval."""
    worst_at: float | None
    """Unix time at the end of that interval."""


@dataclass(frozen=True)
class LostTime:
    """The loss due to all causes."""

    unit: str
    """Unit of the hours: `GPU`, or `rank` for a run that claims no GPU."""
    seconds: float
    """Time during which the subject was live."""
    gpu_seconds: float
    """Total GPU time, used or not."""
    judged: float
    """GPU time with a verdict."""
    lost: float | None
    """GPU time lost to all causes together; None if no time has a verdict."""
    losses: tuple[Loss, ...]
    """Losses by cause, the greatest first."""
    under_verdict: dict[str, float]
    """GPU-seconds by primary cause, including remainders."""
    over_time: RangeResult
    """Share of GPU time lost, by the label `cause`."""

    @property
    def hours_key(self) -> str:
        """Name of the hours in JSON."""
        return f"{self.unit.lower()}_hours"

    @property
    def share(self) -> float | None:
        """Lost share of all GPU time."""
        return None if self.lost is None or not self.gpu_seconds else self.lost / self.gpu_seconds

    @property
    def under_any(self) -> float:
        """Denominator of the time under a verdict; exceeds the GPU time where MIG instances have their own verdicts."""
        return max(self.gpu_seconds, sum(self.under_verdict.values()))

    @property
    def joules(self) -> float | None:
        """Energy of all losses, scaled down as far as they overlap in time; None if unknown."""
        if self.lost == 0:
            return 0.0
        known = [loss for loss in self.losses if loss.joules is not None]
        claimed = sum(loss.gpu_seconds for loss in known)
        if not claimed:
            return None
        return sum(loss.joules or 0.0 for loss in known) * min(1.0, (self.lost or 0.0) / claimed)

    @cached_property
    def by_cause(self) -> dict[str, Loss]:
        """The losses by cause."""
        return {loss.cause: loss for loss in self.losses}

    @property
    def most_under_verdict(self) -> str | None:
        """The primary cause that held longest; None without verdicts."""
        return max(self.under_verdict, key=lambda cause: self.under_verdict[cause], default=None)


def lost_time(queries: Queries) -> LostTime:
    """Query the loss of the subject by cause."""
    subject = queries.subject
    edges = _edges(queries)

    def whole(expression: str, label: str = "") -> dict[str, float]:
        """Return the integral of an expression by a label, with the time before the first and after the last point."""
        found = queries.by(label, queries.integral(expression))
        for at, missed in edges:
            for each in queries.server.query(expression, at=at):
                name = each.labels.get(label, "")
                found[name] = max(0.0, found.get(name, 0.0) + each.value * missed)
        return found

    seconds = queries.value(f"max({queries.seconds_present(subject.gpus)})") or 0.0
    seconds = min(subject.seconds, seconds + sum(missed for _, missed in edges)) if subject.run else seconds
    gpu_seconds = whole(f"sum({subject.gpus})").get("", 0.0)
    by_cause = whole(subject.gpus_lost_by_cause, "cause")
    lost = whole(f"sum({subject.gpus_lost})").get("")
    under_verdict = whole(subject.gpus_by_verdict, "cause")
    joules = queries.by("cause", queries.integral(subject.watts_lost_by_cause, resolution=queries.coarse))
    has_gpus = subject.run is None or _claims_gpus(queries)
    is_short = subject.run is not None and subject.seconds < _JUDGED_SECONDS
    if subject.run is not None and is_short and seconds < _JOIN_SECONDS and (subject.run.claims or not gpu_seconds):
        # The rules have not yet joined, or not even recorded, its ranks and GPUs at most points.
        has_gpus, seconds = bool(subject.run.claims), subject.seconds
        gpu_seconds = seconds * (len(subject.run.claims) or len(subject.run.ranks))
    stall = _standstill(queries, gpu_seconds / seconds) if subject.run is not None and seconds else None
    if stall is not None:
        cause, added = stall
        by_cause[cause] = by_cause.get(cause, 0.0) + added
        lost = min(gpu_seconds, (lost or 0.0) + added)
        earlier = max((each for each in under_verdict if each != cause), key=under_verdict.__getitem__, default="")
        under_verdict[cause] = under_verdict.get(cause, 0.0) + added
        if earlier:
            under_verdict[earlier] = max(0.0, under_verdict[earlier] - added)
    verdicts = sum(under_verdict.values())
    judged = verdicts - under_verdict.get("insufficient_data", 0.0)
    if verdicts > gpu_seconds:  # MIG instances have verdicts in addition to their GPU
        judged *= gpu_seconds / verdicts
    # A cause without a series cost nothing while there were verdicts; otherwise its cost is unknown.
    all_gpus, judged_gpus, lost_gpus = (
        queries.integral(what, queries.step) for what in (subject.gpus, subject.gpus_judged, subject.gpus_lost_by_cause)
    )
    result = queries.over_range(
        f"{lost_gpus} / on () group_left () sum({all_gpus})"
        f' or label_replace(0 * sum({judged_gpus}), "cause", "{_JUDGED}", "", "")'
    )
    worst_of = {curve.labels.get("cause", ""): highest(curve, result.times) for curve in result.series}
    losses = []
    for cause, spent in sorted(by_cause.items(), key=lambda each: -each[1]):
        if spent > 0:
            worst, at = worst_of.get(cause, (None, None))
            share = min(1.0, spent / gpu_seconds) if gpu_seconds else 0.0
            losses.append(Loss(cause, spent, share, joules.get(cause), worst, at))
    return LostTime(
        unit="GPU" if has_gpus or not gpu_seconds else "rank",
        seconds=seconds,
        gpu_seconds=gpu_seconds,
        judged=judged,
        lost=min(lost or 0.0, gpu_seconds) if judged or lost else None,
        losses=tuple(losses),
        under_verdict=under_verdict,
        over_time=result,
    )


def _edges(queries: Queries) -> tuple[tuple[float, float], ...]:
    """Return the first and the last point of a sum over a run's time, each with the seconds that the sum misses there.

    A point stands for the time since the previous one, so the time after the last point is missed. The first point may
    stand for time before the run, or come late: then the seconds are negative, or positive.
    """
    if queries.subject.run is None:
        return ()
    moments = f"time() * (max({queries.subject.gpus}) >= bool 0)"
    first, last = (queries.value(queries.over_time(f"{which}_over_time", moments)) for which in ("min", "max"))
    if first is None or last is None:
        return ()
    return (
        (first, first - queries.resolution - queries.subject.start),
        (last, max(0.0, queries.subject.end - last)),
    )


def _standstill(queries: Queries, gpus: float) -> tuple[str, float] | None:
    """Return the cause of the standstill in which a run ended, and the GPU time before its verdict that was lost to it.

    A standstill is certain a minute after the last step at the earliest, and counts from the last step on. The rules
    add that minute once the run goes on, but not where it never does.
    """
    last_step, end = queries.totals.last_step, queries.subject.end
    if last_step is None:
        return None
    points = queries.resolution
    causes = "|".join(cause.name for cause in CAUSES.values() if cause.tier == "progress")
    verdict = f'run:verdict:ratio5m{{cause=~"{causes}", {queries.subject.run_matchers}}}'
    now = queries.instant(f"last_over_time({verdict}[{2 * points:.0f}s])")
    first = queries.value(
        f"min(min_over_time((time() * ({verdict} >= bool 0))[{max(1.0, end - last_step):.0f}s:{points:.0f}s]))"
    )
    missed = 0.0 if first is None else first - points - last_step
    if not now or first is None or missed <= 0:
        return None
    lost = f"sum({queries.subject.gpus_lost})"
    known = queries.value(f"avg_over_time({lost}[{missed:.0f}s:{_EXACT:.0f}s] @ {first - points:.3f})") or 0.0
    return now[0].labels.get("cause", ""), max(0.0, gpus - known) * missed


def blocks(queries: Queries, found: LostTime) -> list[Block]:
    """Return the blocks of the section."""
    if not found.gpu_seconds:
        return [Notice("warning", _no_gpus(queries))]
    if found.lost is None:
        return [
            Notice(
                "warning",
                f"There is no verdict for the {plain(found.gpu_seconds / 3600)} {found.unit}-hours: lost time is "
                "unknown. The summary has the reason.",
            )
        ]
    blocks: list[Block] = []
    if found.unit == "rank":
        blocks.append(Notice("info", "No rank claims a GPU: hours are rank-hours, and energy is unknown."))
    if not found.losses:
        return [*blocks, Paragraph(f"No time was lost to any cause. {_judged(found)}")]
    bars = bars_by_cause(found.unit, [(loss.cause, loss.gpu_seconds) for loss in found.losses])
    return [*blocks, _table(queries, found), bars, _areas(found)]


def _judged(found: LostTime) -> str:
    share = found.judged / found.gpu_seconds
    return f"{percent(share)} of {plain(found.gpu_seconds / 3600)} {found.unit}-hours have a verdict."


def _no_gpus(queries: Queries) -> str:
    if queries.subject.scope == "run":
        return "The recording rules recorded no rank of the run in this time: lost time is unknown."
    return "The recording rules recorded no GPU in this time: lost time is unknown."


def _table(queries: Queries, found: LostTime) -> Table:
    has_cost = queries.options.money(1.0, 1.0) is not None
    columns = [
        Column("Cause", "cause", key="cause"),
        Column("Share", "share", f"of all {found.unit} time", key="lost_ratio"),
        Column("Lost", "gpu_hours", f"{found.unit}-hours", key=f"lost_{found.hours_key}"),
        Column("Energy", "joules", "of the GPUs during the lost time", key="lost_energy_joules"),
        *([Column("Cost", "money", key="lost_cost")] if has_cost else []),
        Column("Worst", "share", f"in the worst {duration(found.over_time.step)}", key="worst_lost_ratio"),
        Column("Worst at", "time", "end of that time", key="worst_timestamp_seconds"),
    ]
    rows: list[tuple[Value, ...]] = []
    for loss in found.losses:
        hours = loss.gpu_seconds / 3600
        cost: list[Value] = [queries.options.money(hours, loss.joules)] if has_cost else []
        rows.append((loss.cause, loss.share, hours, loss.joules, *cost, loss.worst_share, loss.worst_at))
    hours = (found.lost or 0.0) / 3600
    joules = found.joules
    cost = [queries.options.money(hours, joules)] if has_cost else []
    note = _judged(found)
    if sum(loss.gpu_seconds for loss in found.losses) > 1.01 * (found.lost or 0.0):
        note += " Causes overlap, so their sum exceeds the total: fixing one cause may fix part of another."
    return Table(
        tuple(columns),
        tuple(rows),
        title="Time lost by cause",
        note=note,
        total=("Total", found.share, hours, joules, *cost, None, None),
        key="causes",
    )


def bars_by_cause(unit: str, losses: Sequence[tuple[str, float]]) -> Figure:
    """Return bars of the time lost by cause.

    Args:
        unit: unit of the hours.
        losses: each cause with its seconds, in the order of the bars.
    """
    # One part per cause, so that each bar has the colour of its cause.
    parts = tuple(
        Series(cause, tuple(seconds / 3600 if each == cause else None for each, _ in losses))
        for cause, seconds in losses
    )
    said = _listed([f"{title_of(cause)} {plain(seconds / 3600)} h" for cause, seconds in losses])
    rows = tuple(title_of(cause) for cause, _ in losses)
    return Figure(capitalised(f"{unit}-hours lost, by cause"), Bars(rows, parts, "gpu_hours"), said)


def _listed(texts: list[str]) -> str:
    more = f"; and {len(texts) - _NAMED} smaller ones" if len(texts) > _NAMED else ""
    return f"{'; '.join(texts[:_NAMED])}{more}."


def _areas(found: LostTime) -> Figure:
    result = found.over_time
    by_cause = {curve.labels.get("cause"): curve.values for curve in result.series}
    judged = by_cause.get(_JUDGED, (None,) * len(result.times))
    parts = [
        Series(
            loss.cause,
            tuple(zero if share is None else share for share, zero in zip(by_cause[loss.cause], judged, strict=True)),
        )
        for loss in found.losses
        if loss.cause in by_cause
    ]
    said = _listed(
        [
            f"{title_of(loss.cause)} up to {percent(loss.worst_share)}"
            for loss in found.losses
            if loss.worst_share is not None
        ]
    )
    plot = Areas(result.times, tuple(parts), "share", 1.0)
    return Figure(f"Share of {found.unit} time lost over time, by cause", plot, said)


def _claims_gpus(queries: Queries) -> bool:
    return (
        queries.value(queries.over_time("max_over_time", f"run:gpus:count{{{queries.subject.run_matchers}}}"))
        is not None
    )
