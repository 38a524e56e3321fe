"""What to change, the greatest gain first, with the arithmetic that leads to it.

Nothing is judged here: a cause is recommended against where the rules made it a verdict, or its alert fired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.analysis.report.alerts import Alerts
from stallscope.analysis.report.asking import Asker
from stallscope.analysis.report.document import Block, Fact, Notice, Paragraph, Recommendation, Section
from stallscope.analysis.report.lost_time import Loss, LostTime
from stallscope.analysis.report.whereabouts import listed
from stallscope.analysis.report.words import plain, title_of
from stallscope.causes import CAUSES, REMAINDERS
from stallscope.readable import duration

KEY = "recommendations"
_MOST = 10
_TIMES = "\N{MULTIPLICATION SIGN}"
_SEVERITIES = ("critical", "warning")
"""For which an alert without lost time is worth a recommendation, the graver first; `info` is context."""


class Found(NamedTuple):
    """What recommendations are made of."""

    lost: LostTime
    alerts: Alerts
    where: Mapping[str, str]
    """By cause, in words; its keys are what was the verdict of some rank or GPU."""
    number: int
    """Of ranks, or of GPUs where the subject is no run; of one alone it goes without saying where."""


def recommendations(asker: Asker, found: Found) -> tuple[Recommendation, ...]:
    """The advice, in order."""
    judged = {cause for cause, seconds in found.lost.under_verdict.items() if seconds > 0} | set(found.where)
    judged |= found.alerts.causes("critical", "warning", "info")
    losses = [loss for loss in found.lost.losses if loss.cause in judged and loss.cause in CAUSES]
    advised = [_of_loss(asker, found, loss) for loss in losses]
    without = [
        _of_alert(found, cause)
        for severity in _SEVERITIES
        for cause in sorted(found.alerts.causes(severity) - {loss.cause for loss in losses})
        if cause in CAUSES
    ]
    every = [*advised, *without][:_MOST]
    return tuple(
        Recommendation(number, each.cause, each.gain, each.arithmetic, each.advice, each.evidence)
        for number, each in enumerate(every, 1)
    )


def section(lost: LostTime, advised: tuple[Recommendation, ...]) -> Section:
    """Tell it."""
    blocks: list[Block] = list(advised)
    if advised:
        blocks.append(
            Paragraph(
                "Each gain is what is won at most if that cause alone goes away. Causes lie behind one another: mend "
                "the first, then look again."
            )
        )
    else:
        blocks.append(_nothing(lost))
    return Section(KEY, "What to change", tuple(blocks))


def _nothing(lost: LostTime) -> Block:
    if lost.lost is None:
        return Notice("warning", "Nothing could be judged, so there is no advice. What was missing stands at the end.")
    verdict = lost.most_under_verdict
    if verdict is not None and verdict not in REMAINDERS:
        return Notice("good", f"{title_of(verdict)}: {CAUSES[verdict].remedy}")
    return Notice("good", "No cause came to a verdict or an alert: nothing to change.")


class _Advice(NamedTuple):
    cause: str
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
    if asker.subject.run is not None and rest > 0.01:
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
    return _Advice(loss.cause, tuple(gain), words + ".", CAUSES[loss.cause].remedy, _evidence(asker, found, loss))


def _price(asker: Asker, hours: float, joules: float | None, money: float) -> str:
    options = asker.options
    parts = []
    if options.gpu_hour_price is not None:
        parts.append(f"{plain(hours)} GPU-hours {_TIMES} {options.gpu_hour_price:g}")
    if options.kilowatt_hour_price is not None and joules is not None:
        parts.append(f"{plain(joules / 3.6e6)} kWh {_TIMES} {options.kilowatt_hour_price:g}")
    return f"{' + '.join(parts)} = {money:,.2f} {options.currency}".rstrip()


def _of_alert(found: Found, cause: str) -> _Advice:
    fired = [alert for alert in found.alerts.fired if alert.cause == cause]
    where = listed(alert.subject for alert in fired)
    seconds = max(alert.seconds for alert in fired)
    evidence = f"{fired[0].name} fired for {duration(seconds)}{f' ({where})' if where else ''}."
    none = Fact("GPU time", None, "share", "none lost as yet, or none that can be told")
    return _Advice(
        cause,
        (none,),
        "No share of time is recorded for this cause: it stands behind those that have one.",
        CAUSES[cause].remedy,
        evidence,
    )


def _evidence(asker: Asker, found: Found, loss: Loss) -> str:
    said = []
    verdict = found.lost.under_verdict.get(loss.cause, 0.0)
    if verdict:
        said.append(f"the verdict for {100 * verdict / found.lost.gpu_seconds:.0f} % of the time")
    if loss.worst_share is not None and loss.worst_at is not None:
        said.append(f"worst at {asker.moment(loss.worst_at)} ({100 * loss.worst_share:.0f} % of GPU time)")
    if loss.cause in found.where and found.number > 1:
        said.append(found.where[loss.cause])
    text = ", ".join(said)
    return text[:1].upper() + text[1:] + "." if text else ""
