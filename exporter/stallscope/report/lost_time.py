"""Where the GPUs' time went, by cause: what every other section of advice builds upon."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stallscope.common.formatting import duration
from stallscope.report.asking import Asker, Curves, highest
from stallscope.report.document import (
    Areas,
    Bars,
    Block,
    Column,
    Figure,
    Kind,
    Notice,
    Paragraph,
    Section,
    Series,
    Table,
    Value,
)
from stallscope.report.words import percent, plain, title_of

KEY = "lost-time"
_NAMED = 6
_JUDGED = ""
"""In place of a cause: the curve that is zero where anything could be judged."""


@dataclass(frozen=True)
class Loss:
    """What one cause cost."""

    cause: str
    gpu_seconds: float
    share: float
    """Of all GPU time."""
    joules: float | None
    """That the GPUs took while they lost it; None where they don't tell."""
    worst_share: float | None
    """Of GPU time, in the worst step of the curve."""
    worst_at: float | None
    """Unix time at which that step ended."""


@dataclass(frozen=True)
class LostTime:
    """What all causes cost."""

    unit: str
    """What the hours are of: `GPU`, or `rank` where a run claims no GPU."""
    seconds: float
    """For which the subject lived."""
    gpu_seconds: float
    """That there were, used or not."""
    judged: float
    """Of these, what could be judged."""
    lost: float | None
    """Of these, what all causes together cost; None where nothing could be judged."""
    losses: tuple[Loss, ...]
    """By cause, the costliest first."""
    under_verdict: dict[str, float]
    """GPU-seconds by primary cause, remainders included."""
    curves: Curves
    """Share of GPU time that each cause costs, by `cause`."""

    @property
    def share(self) -> float | None:
        """Lost share of all GPU time."""
        return None if self.lost is None or not self.gpu_seconds else self.lost / self.gpu_seconds

    @property
    def under_any(self) -> float:
        """GPU-seconds that time under a verdict is a share of: more than there were where MIG instances are judged."""
        return max(self.gpu_seconds, sum(self.under_verdict.values()))

    @property
    def joules(self) -> float | None:
        """Energy of all losses, which overlap as their times do; None where it isn't told."""
        if self.lost == 0:
            return 0.0
        told = [loss for loss in self.losses if loss.joules is not None]
        claimed = sum(loss.gpu_seconds for loss in told)
        if not claimed:
            return None
        return sum(loss.joules or 0.0 for loss in told) * min(1.0, (self.lost or 0.0) / claimed)

    @cached_property
    def by_cause(self) -> dict[str, Loss]:
        """Each loss by its cause."""
        return {loss.cause: loss for loss in self.losses}

    @property
    def most_under_verdict(self) -> str | None:
        """The primary cause that held longest; None where there was no verdict."""
        return max(self.under_verdict, key=lambda cause: self.under_verdict[cause], default=None)


def lost_time(asker: Asker) -> LostTime:
    """Ask what each cause cost the subject."""
    subject = asker.subject
    gpu_seconds = asker.figure(f"sum({asker.integral(subject.gpus)})") or 0.0
    lost = asker.figure(f"sum({asker.integral(subject.gpus_lost)})")
    under_verdict = asker.by("cause", asker.integral(subject.gpus_by_verdict))
    verdicts = sum(under_verdict.values())
    judged = verdicts - under_verdict.get("insufficient_data", 0.0)
    if verdicts > gpu_seconds:  # a card has one for each of its MIG instances as well
        judged *= gpu_seconds / verdicts
    by_cause = asker.by("cause", asker.integral(subject.gpus_lost_by_cause))
    joules = asker.by("cause", asker.integral(subject.watts_lost_by_cause, resolution=asker.coarse))
    # What is not recorded is nothing lost, where it could be judged; else it is not known.
    all_gpus, judged_gpus, lost_gpus = (
        asker.integral(what, asker.step) for what in (subject.gpus, subject.gpus_judged, subject.gpus_lost_by_cause)
    )
    curves = asker.curves(
        f"{lost_gpus} / on () group_left () sum({all_gpus})"
        f' or label_replace(0 * sum({judged_gpus}), "cause", "{_JUDGED}", "", "")'
    )
    worst_of = {curve.labels.get("cause", ""): highest(curve, curves.times) for curve in curves.curves}
    losses = []
    for cause, seconds in sorted(by_cause.items(), key=lambda each: -each[1]):
        if seconds > 0:
            worst, at = worst_of.get(cause, (None, None))
            share = min(1.0, seconds / gpu_seconds) if gpu_seconds else 0.0
            losses.append(Loss(cause, seconds, share, joules.get(cause), worst, at))
    return LostTime(
        unit="rank" if gpu_seconds and subject.run is not None and not _claims_gpus(asker) else "GPU",
        seconds=asker.figure(f"max({asker.seconds_there(subject.gpus)})") or 0.0,
        gpu_seconds=gpu_seconds,
        judged=judged,
        lost=min(lost or 0.0, gpu_seconds) if judged or lost else None,
        losses=tuple(losses),
        under_verdict=under_verdict,
        curves=curves,
    )


def section(asker: Asker, found: LostTime) -> Section:
    """Tell it."""
    return Section(KEY, "Where GPU time went", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: LostTime) -> list[Block]:
    if not found.gpu_seconds:
        return [Notice("warning", _no_gpus(asker))]
    if found.lost is None:
        return [
            Notice(
                "warning",
                f"None of the {found.gpu_seconds / 3600:.1f} {found.unit}-hours could be judged: nothing is known of "
                "what was lost. What was missing stands at the end.",
            )
        ]
    blocks: list[Block] = []
    if found.unit == "rank":
        blocks.append(Notice("info", "No rank claims a GPU: the hours are hours of ranks, and energy is not known."))
    if not found.losses:
        return [*blocks, Paragraph(f"No cause cost any time. {_judged(found)}")]
    return [*blocks, _table(asker, found), _bars(found), _areas(found)]


def _judged(found: LostTime) -> str:
    share = found.judged / found.gpu_seconds
    return f"Of {plain(found.gpu_seconds / 3600)} {found.unit}-hours {percent(share)} could be judged."


def _no_gpus(asker: Asker) -> str:
    if asker.subject.scope == "run":
        return "No rank of the run was recorded in this time by the recording rules: no loss can be told."
    return "No GPU was recorded in this time by the recording rules: no loss can be told."


def _table(asker: Asker, found: LostTime) -> Table:
    money = asker.options.money(1.0, 1.0) is not None
    columns = [
        Column("Cause", "cause"),
        Column("Share", "share", f"of all {found.unit} time"),
        Column("Lost", "gpu_hours", f"{found.unit}-hours"),
        Column("Energy", "joules", "that the GPUs took while they lost that time"),
        *([Column("Money", "money")] if money else []),
        Column("Worst", "share", f"in the worst {duration(found.curves.step)}"),
        Column("Worst at", "time", "end of that time"),
    ]
    rows: list[tuple[Value, ...]] = []
    for loss in found.losses:
        hours = loss.gpu_seconds / 3600
        cost: list[Value] = [asker.options.money(hours, loss.joules)] if money else []
        rows.append((loss.cause, loss.share, hours, loss.joules, *cost, loss.worst_share, loss.worst_at))
    hours = (found.lost or 0.0) / 3600
    joules = found.joules
    cost = [asker.options.money(hours, joules)] if money else []
    note = _judged(found)
    if sum(loss.gpu_seconds for loss in found.losses) > 1.01 * (found.lost or 0.0):
        note += " Causes overlap, so that they add up to more than all together: mending one may mend part of another."
    return Table(
        tuple(columns),
        tuple(rows),
        title="Time lost by cause",
        note=note,
        total=("All together", found.share, hours, joules, *cost, None, None),
    )


def _bars(found: LostTime) -> Figure:
    rows = tuple(title_of(loss.cause) for loss in found.losses)
    kind: Kind = "gpu_hours"
    # One part a cause, so that each bar has its cause's colour.
    parts = tuple(
        Series(loss.cause, tuple(loss.gpu_seconds / 3600 if each is loss else None for each in found.losses))
        for loss in found.losses
    )
    said = _listed([f"{title_of(loss.cause)} {plain(loss.gpu_seconds / 3600)} h" for loss in found.losses])
    return Figure(f"{found.unit}-hours lost, by cause", Bars(rows, parts, kind), said)


def _listed(texts: list[str]) -> str:
    more = f"; and {len(texts) - _NAMED} that cost less" if len(texts) > _NAMED else ""
    return f"{'; '.join(texts[:_NAMED])}{more}."


def _areas(found: LostTime) -> Figure:
    curves = found.curves
    by_cause = {curve.labels.get("cause"): curve.values for curve in curves.curves}
    judged = by_cause.get(_JUDGED, (None,) * len(curves.times))
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
            f"{title_of(loss.cause)} at most {percent(loss.worst_share)}"
            for loss in found.losses
            if loss.worst_share is not None
        ]
    )
    plot = Areas(curves.times, tuple(parts), "share", 1.0)
    return Figure(f"Share of {found.unit} time lost over time, by cause", plot, said)


def _claims_gpus(asker: Asker) -> bool:
    return asker.figure(asker.over_time("max_over_time", f"run:gpus:count{{{asker.subject.told_by_run}}}")) is not None
