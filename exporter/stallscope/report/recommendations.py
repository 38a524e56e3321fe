"""What to change, the greatest gain first, with the arithmetic that leads to it.

Nothing is judged here: a cause is recommended against where the rules made it a verdict, or its alert fired.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from stallscope.catalogue.causes import CAUSES, REMAINDERS
from stallscope.common.formatting import capitalised, duration
from stallscope.report.alerts import Alerts
from stallscope.report.asking import Asker
from stallscope.report.culprits import Blamed
from stallscope.report.document import Block, Fact, Notice, Paragraph, Recommendation, Section
from stallscope.report.lost_time import Loss, LostTime
from stallscope.report.whereabouts import listed
from stallscope.report.words import percent, plain, title_of

KEY = "recommendations"
_MOST = 10
_SMALL = "What is lost nevertheless came to no verdict: the rules take it as small enough."
_GENERAL = frozenset({"input_bound", "stalled", "straggler_rank"})
"""Causes that are the verdict until the reason is known."""
_TIMES = "\N{MULTIPLICATION SIGN}"


class Found(NamedTuple):
    """What recommendations are made of."""

    lost: LostTime
    alerts: Alerts
    where: Mapping[str, str]
    """By cause, in words."""
    verdicts: Collection[str]
    """Causes that were the verdict of some rank or GPU."""
    number: int
    """Of ranks, or of GPUs where the subject is no run; of one alone it goes without saying where."""
    blamed: Mapping[str, Blamed]
    """The culprit of a run, by the cause that was its verdict."""


def recommendations(asker: Asker, found: Found) -> tuple[Recommendation, ...]:
    """The advice, in order."""
    judged = {cause for cause, seconds in found.lost.under_verdict.items() if seconds > 0} | set(found.verdicts)
    judged |= found.alerts.causes("critical", "warning", "info")
    losses = [loss for loss in found.lost.losses if loss.cause in judged and loss.cause in CAUSES]
    grave = found.alerts.causes("critical", "warning") - {loss.cause for loss in losses}
    advised = [_of_loss(asker, found, loss) for loss in losses]
    advised += [_of_alert(asker, found, cause) for cause in sorted(grave) if cause in CAUSES]
    advised = [each for each in advised if not any(_owns(found, loss, each) for loss in losses)]
    critical, broken = found.alerts.causes("critical"), _broken(found)

    def order(each: _Advice) -> tuple[bool, float, bool]:
        """Broken hardware first, for what else is lost may follow from it; then the greatest gain; then severity."""
        return each.cause not in broken, -each.gpu_seconds, each.cause not in critical

    return tuple(
        Recommendation(number, each.cause, each.gain, each.arithmetic, each.advice, each.evidence)
        for number, each in enumerate(sorted(advised, key=order), 1)
    )


def _owns(found: Found, loss: Loss, advice: _Advice) -> bool:
    """Return True if a greater loss makes the advice redundant.

    The advice is on a general cause whose reason became known, or on the fault of a straggler's GPU.
    """
    if loss.gpu_seconds <= advice.gpu_seconds:
        return False
    if advice.cause in _GENERAL and advice.cause in CAUSES[loss.cause].mutes:
        return True
    blamed = found.blamed.get(loss.cause)
    if blamed is None or blamed.culprit.cause != advice.cause:
        return False
    cards = [alert.card for alert in found.alerts.fired if alert.cause == advice.cause]
    place = blamed.culprit.instance, blamed.culprit.gpu
    return all(card is not None and (card.instance, card.gpu) == place for card in cards)


def section(found: Found, advised: tuple[Recommendation, ...]) -> Section:
    """Tell it."""
    blocks: list[Block] = list(advised[:_MOST])
    left = len(advised) - _MOST
    hardware_first = len(advised) > 1 and advised[0].cause in _broken(found)
    if advised:
        blocks.append(
            Paragraph(
                "Each gain is what is won at most if that cause alone goes away. Causes lie behind one another: mend "
                "the first, then look again. Numbers are rounded as shown, not as reckoned with."
                + (" Broken hardware comes first: other losses may follow from it." if hardware_first else "")
                + (f" {left} more {'stands' if left == 1 else 'stand'} in the tables below." if left > 0 else "")
            )
        )
    else:
        blocks.append(_nothing(found.lost))
    return Section(KEY, "What to change", tuple(blocks))


def _broken(found: Found) -> set[str]:
    """Critical causes of hardware that showed."""
    return {cause for cause in found.alerts.causes("critical") if cause in CAUSES and CAUSES[cause].tier == "hardware"}


def _nothing(lost: LostTime) -> Block:
    if lost.lost is None:
        return Notice("warning", "Nothing could be judged, so there is no advice. What was missing stands at the end.")
    verdict = lost.most_under_verdict
    if verdict == "insufficient_data":
        return Notice(
            "warning",
            f"No cause came to an alert, but only {percent(lost.judged / lost.gpu_seconds)} of the time could be "
            "judged. What was missing stands at the end.",
        )
    if verdict is not None and verdict not in REMAINDERS:
        return Notice("good", f"{title_of(verdict)}: {CAUSES[verdict].remedy} {_SMALL if lost.losses else ''}".rstrip())
    return Notice("good", f"No cause came to an alert: nothing to change. {_SMALL if lost.losses else ''}".rstrip())


class _Advice(NamedTuple):
    cause: str
    gpu_seconds: float
    """That are won at most."""
    gain: tuple[Fact, ...]
    arithmetic: str
    advice: str
    evidence: str


def _of_loss(asker: Asker, found: Found, loss: Loss) -> _Advice:
    unit, total, hours = found.lost.unit, found.lost.gpu_seconds / 3600, loss.gpu_seconds / 3600
    share, rest = loss.share, 1 - loss.share
    gain = [Fact("Time", share, "share", "of the run's GPU time" if asker.subject.run else "of all GPU time")]
    gain.append(Fact(f"{unit}-hours", hours, "gpu_hours"))
    lived = found.lost.seconds / 3600
    mean = total / lived
    units = unit if mean == 1 else f"{unit}s"
    words = f"{plain(share)} of {plain(mean)} {units} {_TIMES} {plain(lived)} h = {plain(hours)} {unit}-hours"
    if asker.subject.run is not None and rest > 0.01 and plain(1 / rest) != plain(1.0):
        gain.insert(1, Fact("Speed-up", 1 / rest, "times"))
        words += (
            f"; without it the same work would take 1 - {plain(share)} = {plain(rest)} of its time, "
            f"1 / {plain(rest)} = {plain(1 / rest)} times as fast"
        )
    if loss.joules is not None:
        gain.append(Fact("Energy", loss.joules, "joules"))
    money = asker.options.money(hours, loss.joules)
    if money is not None:
        gain.append(Fact("Money", money, "money"))
        words += "; " + _price(asker, hours, loss.joules, money)
    blamed = found.blamed.get(loss.cause)
    remedy = CAUSES[loss.cause].remedy if blamed is None else blamed.sentence
    return _Advice(loss.cause, loss.gpu_seconds, tuple(gain), words + ".", remedy, _evidence(asker, found, loss))


def _price(asker: Asker, hours: float, joules: float | None, money: float) -> str:
    options = asker.options
    parts = []
    if options.gpu_hour_price is not None:
        parts.append(f"{plain(hours)} GPU-hours {_TIMES} {options.gpu_hour_price:g}")
    if options.kilowatt_hour_price is not None and joules is not None:
        parts.append(f"{plain(joules / 3.6e6)} kWh {_TIMES} {options.kilowatt_hour_price:g}")
    return f"{' + '.join(parts)} = {money:,.2f} {options.currency}".rstrip()


def _of_alert(asker: Asker, found: Found, cause: str) -> _Advice:
    """Of an alert whose cause costs the subject no time, or none that is recorded as its own."""
    fired = [alert for alert in found.alerts.fired if alert.cause == cause]
    where = listed(alert.subject for alert in fired)
    evidence = (
        f"{fired[0].name} fired for {duration(max(alert.seconds for alert in fired))}, first at "
        f"{asker.moment(min(alert.first for alert in fired))}{f': {where}' if where else ''}."
    )
    seconds = found.alerts.gpu_seconds(cause)
    if not seconds:
        none = Fact("GPU time", None, "share", "none lost as yet, or none that can be told")
        words = "No time is recorded as lost to this cause, so there is nothing to reckon with."
        return _Advice(cause, 0.0, (none,), words, CAUSES[cause].remedy, evidence)
    hours = seconds / 3600
    gain = [Fact("GPU-hours", hours, "gpu_hours", "of the GPUs that the alert names, whoever had them")]
    words = f"The shares of time lost on these GPUs, summed over time: {plain(hours)} GPU-hours"
    money = asker.options.money(hours, None)
    if money is not None:
        gain.append(Fact("Money", money, "money"))
        words += "; " + _price(asker, hours, None, money)
    return _Advice(cause, seconds, tuple(gain), words + ".", CAUSES[cause].remedy, evidence)


def _evidence(asker: Asker, found: Found, loss: Loss) -> str:
    said = []
    verdict = found.lost.under_verdict.get(loss.cause, 0.0)
    if verdict:
        said.append(f"the verdict for {percent(verdict / found.lost.under_any)} of the time")
    if loss.worst_share is not None and loss.worst_at is not None:
        said.append(f"worst at {asker.moment(loss.worst_at)} ({percent(loss.worst_share)} of GPU time)")
    if loss.cause in found.where and found.number > 1:
        said.append(found.where[loss.cause])
    text = ", ".join(said)
    return f"{capitalised(text)}." if text else ""
