"""Recommended changes by gain, with the calculation of the gain.

Nothing is judged here: a cause is recommended against if it was a verdict of the rules or its alert fired.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from stallscope.common.formatting import capitalised, duration
from stallscope.model.catalogue.causes import CAUSES, EVERYTHING, REMAINDERS
from stallscope.model.catalogue.conditions import GENERAL
from stallscope.model.catalogue.general_causes import cause_of_phase
from stallscope.model.view.verdict_words import line_sentence, odd_sentence
from stallscope.model.view.verdicts import CodeLine, OddRank
from stallscope.tools.report.affected import listed
from stallscope.tools.report.alerts import Alerts
from stallscope.tools.report.culprits import Blamed
from stallscope.tools.report.document import Block, Fact, Notice, Paragraph, Recommendation
from stallscope.tools.report.lost_time import Loss, LostTime
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.words import money, percent, plain, title_of

KEY = "recommendations"
TITLE = "What to change"
_MOST = 10
_SMALL = "The remaining loss led to no verdict: the rules consider it small."
_LEAST = 0.01
"""Smallest share of time that the remainder names."""
_NAMED = 3
"""Maximum number of causes that the remainder names."""
_TIMES = "\N{MULTIPLICATION SIGN}"


class Evidence(NamedTuple):
    """The results that recommendations are based on."""

    lost: LostTime
    alerts: Alerts
    where: Mapping[str, str]
    """Description of the affected ranks or GPUs, by cause."""
    verdicts: Collection[str]
    """Causes that were the verdict of a rank or GPU."""
    number: int
    """Number of ranks, or of GPUs if the subject is not a run; if it is one, its place is not mentioned."""
    blamed: Mapping[str, Blamed]
    """The culprit of a run by verdict."""
    lines: Mapping[str, CodeLine]
    """The line of code of a run by verdict."""
    odd: Mapping[str, tuple[OddRank, ...]] = {}
    """By verdict, the ranks whose place in the code differed from most ranks'."""
    largest: str = ""
    """Phase with the largest share apart from the work, by the run's own counters; empty if there are few steps."""


def recommendations(queries: Queries, found: Evidence) -> tuple[Recommendation, ...]:
    """Return the recommendations in order."""
    judged = {cause for cause, seconds in found.lost.under_verdict.items() if seconds > 0} | set(found.verdicts)
    judged |= found.alerts.causes("critical", "warning", "info")
    losses = [loss for loss in found.lost.losses if loss.cause in judged and loss.cause in CAUSES]
    grave = found.alerts.causes("critical", "warning") - {loss.cause for loss in losses}
    advised = [_of_loss(queries, found, loss) for loss in losses]
    advised += [
        _of_alert(queries, found, cause) for cause in sorted(grave) if cause in CAUSES and not found.alerts.muted(cause)
    ]
    advised = [each for each in advised if not any(_is_redundant(found, loss, each) for loss in losses)]
    critical, broken = found.alerts.causes("critical"), _broken(found)

    def order(each: _Advice) -> tuple[bool, float, bool]:
        """Order by broken hardware, since other losses may follow from it, then by gain, then by severity."""
        return each.cause not in broken, -each.gpu_seconds, each.cause not in critical

    return tuple(
        Recommendation(number, each.cause, each.gain, each.arithmetic, each.advice, each.evidence)
        for number, each in enumerate(sorted(advised, key=order), 1)
    )


def _is_redundant(found: Evidence, loss: Loss, advice: _Advice) -> bool:
    """Return True if a greater loss makes the advice redundant.

    It is redundant for a general cause whose reason became known, and for the fault of a straggler's GPU.
    """
    if loss.gpu_seconds <= advice.gpu_seconds:
        return False
    if advice.cause in GENERAL and advice.cause in CAUSES[loss.cause].mutes:
        return True
    blamed = found.blamed.get(loss.cause)
    if blamed is None or blamed.culprit.cause != advice.cause:
        return False
    losses = [alert.gpu_loss for alert in found.alerts.fired if alert.cause == advice.cause]
    place = blamed.culprit.instance, blamed.culprit.gpu
    return all(each is not None and (each.instance, each.gpu) == place for each in losses)


def blocks(found: Evidence, advised: tuple[Recommendation, ...]) -> list[Block]:
    """Return the blocks of the section."""
    shown: list[Block] = list(advised[:_MOST])
    left = len(advised) - _MOST
    hardware_first = len(advised) > 1 and advised[0].cause in _broken(found)
    if advised:
        shown.append(
            Paragraph(
                "Each gain is an upper limit for fixing that cause alone. Causes hide one another: fix the first, then "
                "make a new report. Displayed numbers are rounded; calculations are not."
                + (" Broken hardware comes first: other losses may follow from it." if hardware_first else "")
                + (f" The tables below have {left} more." if left > 0 else "")
            )
        )
        if rest := remainder(found.lost, {each.cause for each in advised}):
            shown.append(Paragraph(rest))
    else:
        shown.append(_nothing(found.lost, found.largest))
    return shown


def remainder(lost: LostTime, advised: Collection[str]) -> str:
    """Return a sentence on the lost time that no recommendation is about; empty if it is less than 1 %.

    Args:
        lost: the lost time.
        advised: the causes of the recommendations.
    """
    total = _displayed(lost.share or 0.0)
    covered = _displayed(sum(loss.share for loss in lost.losses if loss.cause in advised))
    rest = round(total - covered, 3)
    if not covered or rest < _LEAST:
        return ""
    others = [loss for loss in lost.losses if loss.cause not in advised and loss.share >= _LEAST]
    named = ", ".join(f"{title_of(loss.cause)} {percent(loss.share)}" for loss in others[:_NAMED])
    said = f"{named}; these led to no verdict or follow from the above" if named else "no cause has 1 % of the time"
    return (
        f"{percent(total)} of the {lost.unit} time was lost, {percent(covered)} to the causes above. "
        f"The other {percent(rest)}: {said}."
    )


def _displayed(share: float) -> float:
    """Round a share to the digits that are displayed, so that displayed shares add up."""
    return float(percent(share).split()[-2]) / 100


def _broken(found: Evidence) -> set[str]:
    """Return the hardware causes with a critical alert."""
    return {cause for cause in found.alerts.causes("critical") if cause in CAUSES and CAUSES[cause].tier == "hardware"}


def _nothing(lost: LostTime, largest: str) -> Block:
    if lost.lost is None:
        advice = f"The largest phase apart from the work is {title_of(largest).lower()}: " if largest else ""
        advice += CAUSES[cause_of_phase(largest)].remedy if largest else "The summary has the reason."
        return Notice("warning", f"There is no verdict. {advice}")
    verdict = lost.most_under_verdict
    if verdict == "insufficient_data":
        return Notice(
            "warning",
            f"No alert fired, but only {percent(lost.judged / lost.gpu_seconds)} of the time has a verdict. "
            "See the last section for missing data.",
        )
    if verdict is not None and verdict not in REMAINDERS:
        return Notice("good", f"{title_of(verdict)}: {CAUSES[verdict].remedy} {_SMALL if lost.losses else ''}".rstrip())
    return Notice("good", f"No alert fired: nothing to change. {_SMALL if lost.losses else ''}".rstrip())


class _Advice(NamedTuple):
    cause: str
    gpu_seconds: float
    """Upper limit of the gain."""
    gain: tuple[Fact, ...]
    arithmetic: str
    advice: str
    evidence: str


def _of_loss(queries: Queries, found: Evidence, loss: Loss) -> _Advice:
    unit, total, hours = found.lost.unit, found.lost.gpu_seconds / 3600, loss.gpu_seconds / 3600
    share, remaining = loss.share, 1 - loss.share
    gain = [
        Fact(
            "Time",
            share,
            "share",
            f"of the run's {unit} time" if queries.subject.run else "of all GPU time",
            key="lost_ratio",
        )
    ]
    gain.append(Fact(capitalised(f"{unit}-hours"), hours, "gpu_hours", key=f"lost_{found.lost.hours_key}"))
    lived = found.lost.seconds / 3600
    mean = total / lived
    units = unit if mean == 1 else f"{unit}s"
    words = f"{plain(share)} of {plain(mean)} {units} {_TIMES} {plain(lived)} h = {plain(hours)} {unit}-hours"
    # A run that stands still, or has lost a GPU, does no work: without that it would not be faster, it would go on.
    is_standstill = CAUSES[loss.cause].tier == "progress" or EVERYTHING in CAUSES[loss.cause].mutes
    if (
        queries.subject.run is not None
        and not is_standstill
        and remaining > 0.01
        and plain(1 / remaining) != plain(1.0)
    ):
        gain.insert(1, Fact("Speed-up", 1 / remaining, "times", key="speed_up"))
        words += (
            f"; without it the same work would take 1 - {plain(share)} = {plain(remaining)} of its time, "
            f"1 / {plain(remaining)} = {plain(1 / remaining)} times as fast"
        )
    if loss.joules is not None:
        gain.append(Fact("Energy", loss.joules, "joules", key="lost_energy_joules"))
    cost = queries.options.money(hours, loss.joules)
    if cost is not None:
        gain.append(Fact("Cost", cost, "money", key="lost_cost"))
        words += "; " + _price(queries, hours, loss.joules, cost)
    advice, evidence = _remedy(found, loss.cause), _evidence(queries, found, loss)
    return _Advice(loss.cause, loss.gpu_seconds, tuple(gain), words + ".", advice, evidence)


def _price(queries: Queries, hours: float, joules: float | None, cost: float) -> str:
    options = queries.options
    parts = []
    if options.gpu_hour_price is not None:
        parts.append(f"{plain(hours)} GPU-hours {_TIMES} {options.gpu_hour_price:g}")
    if options.kilowatt_hour_price is not None and joules is not None:
        parts.append(f"{plain(joules / 3.6e6)} kWh {_TIMES} {options.kilowatt_hour_price:g}")
    return f"{' + '.join(parts)} = {money(cost, options.currency)}"


def _of_alert(queries: Queries, found: Evidence, cause: str) -> _Advice:
    """Return advice for an alert whose cause costs the subject no recorded time."""
    fired = [alert for alert in found.alerts.fired if alert.cause == cause]
    where = listed(alert.subject for alert in fired)
    evidence = (
        f"{fired[0].name} fired for {duration(max(alert.seconds for alert in fired))}, first at "
        f"{queries.moment(min(alert.first for alert in fired))}{f': {where}' if where else ''}."
    )
    remedy = _remedy(found, cause)
    seconds = found.alerts.gpu_seconds(cause)
    if not seconds:
        none = Fact("GPU time", None, "share", "no recorded loss so far")
        words = "No lost time is recorded for this cause, so its gain is unknown."
        return _Advice(cause, 0.0, (none,), words, remedy, evidence)
    hours = seconds / 3600
    gain = [Fact("GPU-hours", hours, "gpu_hours", "of the GPUs named by the alert", key="lost_gpu_hours")]
    words = f"The lost shares of these GPUs, summed over time: {plain(hours)} GPU-hours"
    cost = queries.options.money(hours, None)
    if cost is not None:
        gain.append(Fact("Cost", cost, "money", key="lost_cost"))
        words += "; " + _price(queries, hours, None, cost)
    return _Advice(cause, seconds, tuple(gain), words + ".", remedy, evidence)


def _remedy(found: Evidence, cause: str) -> str:
    """Return the first thing to do about a cause, after its culprit and its line of code if they are known."""
    blamed = found.blamed.get(cause)
    remedy = CAUSES[cause].remedy if blamed is None else blamed.sentence
    odd = odd_sentence(found.odd.get(cause, ()))
    line = line_sentence(found.lines[cause]) if cause in found.lines else ""
    return " ".join(part for part in (odd, line, remedy) if part)


def _evidence(queries: Queries, found: Evidence, loss: Loss) -> str:
    said = []
    verdict = found.lost.under_verdict.get(loss.cause, 0.0)
    if verdict:
        said.append(f"the verdict for {percent(verdict / found.lost.under_any)} of the time")
    if loss.worst_share is not None and loss.worst_at is not None:
        said.append(f"worst at {queries.moment(loss.worst_at)} ({percent(loss.worst_share)} of {found.lost.unit} time)")
    if loss.cause in found.where and found.number > 1:
        said.append(found.where[loss.cause])
    text = ", ".join(said)
    return f"{capitalised(text)}." if text else ""
