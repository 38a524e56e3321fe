"""Output of `stallscope why`: text in 80 columns, or JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from stallscope.catalogue.causes import MISSING
from stallscope.catalogue.conditions import SIGNALS, Unit
from stallscope.common.formatting import capitalised, duration, percent, readable, several
from stallscope.view.explanation import LOOKBACK, Compared, Considered, Explanation, Measured, Missing, Sharers
from stallscope.view.stack_groups import named
from stallscope.view.verdict_words import words_of

_WIDTH = 79
_HEAD = 17
"""Columns of the heading at the start of a line."""
_SIGNAL = 28
_VALUE = 11
_MOST = 3
"""Groups of ranks and causes of one kind that are shown without `--all`."""
_GPU_SIDE_CAUSE = "GPU-side cause"
"""Words for a cause of the tiers `device` and `harmless`."""


def text(found: Explanation, *, everything: bool = False) -> str:
    """Return the explanation for a terminal.

    Args:
        found: the explanation.
        everything: True to list every cause that was considered.
    """
    lines = [*_verdict(found), *_values(found), *_ranks(found), *_others(found), *_another(found)]
    if everything:
        lines += ["", *_everything(found)]
    return "\n".join(lines) + "\n"


def document(found: Explanation) -> dict[str, Any]:
    """Return the explanation for JSON: seconds, shares from 0 to 1, null for unknown values."""
    verdict = found.verdict
    return {
        "cluster": found.cluster,
        "namespace": found.namespace,
        "run": found.run,
        "timestamp_seconds": found.at,
        "ended": found.ended,
        "verdict": None
        if verdict is None
        else {
            "cause": verdict.cause,
            "time_lost_ratio": verdict.share,
            "all_causes_time_lost_ratio": verdict.lost,
            "since_timestamp_seconds": found.since,
            "held_before_since": found.since_before,
            "before": found.before or None,
            "culprit": None if verdict.culprit is None else verdict.culprit._asdict(),
            "code": None if verdict.line is None else verdict.line._asdict(),
        },
        "following_verdict": found.following or None,
        "clear_ratio": found.clear_ratio,
        "ranks": found.ranks,
        "rank_verdicts": [_sharers(each, "ranks") for each in found.rank_verdicts],
        "gpu_verdicts": [_sharers(each, "gpus") for each in found.gpu_verdicts],
        "missing": [{"reason": each.reason, "ranks": each.ranks} for each in found.missing],
        "gpu_side_not_judged": {
            "conditions": [_condition(each) for each in found.waits],
            "reason": found.gpu_side or None,
        },
        "alerts": [each._asdict() for each in found.firing],
        "not_measured": [{"series": name, "causes": list(causes)} for name, causes in found.unmeasured.items()],
        "causes": [
            {
                "cause": each.cause,
                "tier": each.tier,
                "result": each.result,
                "reason": each.reason or None,
                "time_lost_ratio": each.lost,
                "threshold_ratio": each.floor,
                "alert_threshold_ratio": each.alert,
                "general_cause": each.general,
                "conditions": [_condition(condition) for condition in each.conditions],
            }
            for each in found.considered
        ],
    }


def _sharers(each: Sharers, kind: str) -> dict[str, Any]:
    return {"cause": each.cause, kind: list(each.names), "highest_time_lost_ratio": each.share}


def _condition(each: Compared) -> dict[str, Any]:
    measured = each.measured
    return {
        "series": each.series,
        "lowest": None if measured is None else measured.lowest,
        "highest": None if measured is None else measured.highest,
        "count": 0 if measured is None else measured.number,
        "required": "below" if each.below else "at_least",
        "threshold": each.threshold,
        "threshold_name": each.name or None,
        "holds": each.holds,
    }


def _verdict(found: Explanation) -> Iterator[str]:
    """Yield the verdict, since when it holds, what it costs, the culprit and the remedy."""
    name, verdict = readable(found.run), found.verdict
    if verdict is None:
        yield from _wrapped(
            f"run {name}: no verdict. The rules recorded none in the {duration(LOOKBACK)} until {_moment(found.at)}."
        )
        return
    words = words_of(verdict, with_gpus=bool(found.gpu_verdicts))
    yield from _wrapped(f"run {name}: {readable(verdict.cause)}{_held(found)}")
    if found.ended:
        yield from _wrapped(f"The run has ended: this was its last verdict, at {_moment(found.at)}.", 2)
    said = " ".join(each for each in (f"{words.title}.", words.cost, words.culprit, words.line) if each)
    yield from _wrapped(said, 2)
    if verdict.cause != "insufficient_data":
        yield from _wrapped(words.remedy, 2)
    yield from _listed("missing", [_missing(found, each) for each in found.missing] if _is_open(found) else [])


def _is_open(found: Explanation) -> bool:
    return found.verdict is not None and found.verdict.cause == "insufficient_data"


def _missing(found: Explanation, each: Missing) -> str:
    of = "" if each.ranks == found.ranks else f" ({each.ranks} of {several(found.ranks, 'rank')})"
    return f"{readable(each.reason)}{of}: {MISSING.get(each.reason, '')}".rstrip(": ")


def _held(found: Explanation) -> str:
    if found.since is None:
        return ""
    seconds = found.at - found.since
    if found.since_before:
        return f" for over {duration(seconds)}"
    minutes = duration(60 * round(seconds / 60)) if seconds >= 60 else "under 1 min"
    before = f"; before it {readable(found.before)}" if found.before else ""
    return f" since {_moment(found.since, found.at)} ({minutes}{before})"


def _values(found: Explanation) -> Iterator[str]:
    """Yield the values of the verdict's conditions, and of those of the reasons that were not found."""
    own = found.of_verdict
    if own is None:
        return
    lines: list[str] = []
    if own.lost is not None and (own.lost or own.floor):
        levels = [f"from {_small(own.floor)}"] if own.floor else []
        if own.alert is not None:
            levels.append(f"alert from {_small(own.alert)}")
        lines += _value("time lost to it", percent(own.lost), [", ".join(levels)])
    for series, compared in _by_series(
        [own, *(each for each in found.considered if each.general == own.cause)]
    ).items():
        signal, measured = SIGNALS[series], compared[0][1].measured
        if measured is not None:
            levels = [f"{'' if cause == own.cause else f'{cause} '}{_level(each)}" for cause, each in compared]
            lines += _value(signal.words, _range(measured, signal.unit), levels)
    if lines:
        yield f"{'measured':<{_SIGNAL + 2}}{'value':>{_VALUE}}  {own.cause}"
        yield from lines


def _by_series(causes: Sequence[Considered]) -> dict[str, list[tuple[str, Compared]]]:
    """Return the conditions of several causes by the series that they read."""
    found: dict[str, list[tuple[str, Compared]]] = {}
    for cause in causes:
        for each in cause.conditions:
            if each.measured is not None:
                found.setdefault(each.series, []).append((cause.cause, each))
    return found


def _ranks(found: Explanation) -> Iterator[str]:
    """Yield the verdicts of ranks and GPUs where they differ, the worst first."""
    cause = found.verdict.cause if found.verdict is not None else ""
    if any(each.cause != cause for each in found.rank_verdicts):
        yield from _row("ranks", _groups(found.rank_verdicts, "ranks"))
    if any(each.cause != cause for each in found.gpu_verdicts):
        yield from _row("GPUs", _groups(found.gpu_verdicts, "GPUs"))


def _groups(groups: Sequence[Sharers], kind: str) -> str:
    said = []
    for each in groups[:_MOST]:
        if kind == "ranks" and all(name.isdecimal() for name in each.names):
            names = named(map(int, each.names))
        else:
            names = (
                ", ".join(map(readable, each.names)) if len(each.names) == 1 else several(len(each.names), kind[:-1])
            )
        said.append(f"{names}: {readable(each.cause)}{f' {percent(each.share)}' if each.share else ''}")
    more = len(groups) - _MOST
    return "; ".join(said) + (f"; {several(more, 'more verdict')}" if more > 0 else "")


def _others(found: Explanation) -> Iterator[str]:
    """Yield alerts, the causes that are hidden, too small or not judged, and the signals that are not measured."""
    firing = [f"{readable(each.name)} ({'muted' if each.muted else readable(each.severity)})" for each in found.firing]
    if firing:
        yield from _row("alerts", ", ".join([*firing[:_MOST], *_more(firing)]))
    hidden = [each for each in found.considered if each.result in ("hidden", "evidence")]
    yield from _listed("hidden by it", [f"{each.cause}{_share_of(each)}: {each.reason}" for each in hidden])
    below = [each for each in found.considered if each.result == "below" and each.lost and each.floor]
    yield from _listed("too small", [f"{each.cause}{_share_of(each)}: from {_small(each.floor)}" for each in below])
    if skipped := [each for each in found.considered if each.result == "not_judged"]:
        why = [f"{SIGNALS[each.series].words} takes {_level(each, value=True)}" for each in found.waits]
        yield from _row("not judged", f"{several(len(skipped), _GPU_SIDE_CAUSE)}: {', '.join(why) or found.gpu_side}")
    if found.missing and not _is_open(found):
        reasons = ", ".join(readable(each.reason) for each in found.missing)
        yield from _row("missing", f"{reasons}: most causes of slow progress are not judged meanwhile")
    if found.unmeasured:
        signals = ", ".join(SIGNALS[name].words for name in found.unmeasured)
        causes = {cause for each in found.unmeasured.values() for cause in each}
        yield from _row("not measured", f"{signals}: read by {several(len(causes), 'cause')} (--all)")


def _another(found: Explanation) -> Iterator[str]:
    """Yield what would have to change for another verdict."""
    own, clear = found.of_verdict, found.clear_ratio
    if own is None:
        if found.verdict is not None and found.verdict.cause == "healthy":
            yield from _row("another verdict", "from its threshold on: any cause (--all)")
        return
    skipped = any(each.result == "not_judged" for each in found.considered)
    following = f"{found.following}{f' or a {_GPU_SIDE_CAUSE}' if skipped else ''}"
    said = [f"below {_small(clear * own.floor)}: {following}" if own.floor and clear else f"without it: {following}"]
    if own.general is not None:
        said.append(f"without its conditions: {own.general}")
    if clear and own.lost is not None and 0 < own.lost / clear < 1:
        said.append(f"from {percent(own.lost / clear)}: another {own.tier} cause")
    if found.earlier_tiers:
        said.append(f"from its threshold: any {' or '.join(found.earlier_tiers)} cause")
    for number, each in enumerate(said):
        yield from _row("" if number else "another verdict", each)


def _everything(found: Explanation) -> Iterator[str]:
    """Yield every cause that was considered, with its values."""
    for name in found.unmeasured:
        causes = ", ".join(found.unmeasured[name])
        yield from _row("to measure", f"{SIGNALS[name].words}, for {causes}: needs {SIGNALS[name].source}")
    yield f"{'cause':<24}{'lost':>10}  {'from':>9}  {'alert':>9}  result"
    for each in found.considered:
        floor = _small(each.floor) if each.floor else "any"
        alert = "-" if each.alert is None else _small(each.alert)
        lost = "-" if each.lost is None else percent(each.lost)
        yield f"{each.cause:<24}{lost:>10}  {floor:>9}  {alert:>9}  {each.result.replace('_', ' ')}"
        if each.result not in ("verdict", "below", "not_found"):
            yield from _wrapped(capitalised(each.reason) + ".", 4)
        for condition in each.conditions:
            signal = SIGNALS[condition.series]
            value = "-" if condition.measured is None else _range(condition.measured, signal.unit)
            yield f"    {signal.words:<{_SIGNAL}}{value:>{_VALUE}}  {_level(condition)}"


def _share_of(each: Considered) -> str:
    return "" if each.lost is None else f" {percent(each.lost)}"


def _level(each: Compared, *, value: bool = False) -> str:
    """Return a threshold, with whether the value meets it, or with the value."""
    unit = SIGNALS[each.series].unit
    level = f"{'under' if each.below else 'from'} {_number(each.threshold, unit)}"
    if value:
        return f"{_number(each.value, unit)} ({level})"
    return level if each.holds is None else f"{level}: {'yes' if each.holds else 'no'}"


def _range(measured: Measured, unit: Unit) -> str:
    lowest, highest = _number(measured.lowest, unit), _number(measured.highest, unit)
    if lowest == highest:
        return lowest
    return f"{lowest.removesuffix(' %')} to {highest}" if unit == "share" else f"{lowest} to {highest}"


def _small(ratio: float) -> str:
    """Return a threshold in percent; a small one has a second digit."""
    return percent(ratio) if ratio >= 0.0995 else f"{100 * ratio:.2g} %"


def _number(value: float | None, unit: Unit) -> str:
    if value is None:
        return "-"
    return percent(value) if unit == "share" else f"{value:.3g}"


def _value(words: str, value: str, levels: Sequence[str]) -> Iterator[str]:
    """Yield a signal with its value and its thresholds, one in each line."""
    for number, level in enumerate(levels):
        yield f"{'' if number else f'  {words}':<{_SIGNAL + 2}}{'' if number else value:>{_VALUE}}  {level}".rstrip()


def _listed(head: str, said: Sequence[str]) -> Iterator[str]:
    """Yield a heading with a line for each of its entries."""
    for number, each in enumerate([*said[:_MOST], *_more(said)]):
        yield from _row("" if number else head, each)


def _more(said: Sequence[str]) -> list[str]:
    return [f"and {len(said) - _MOST} more"] if len(said) > _MOST else []


def _row(head: str, said: str) -> list[str]:
    return wrap(said, _WIDTH, initial_indent=f"{head:<{_HEAD}}", subsequent_indent=" " * _HEAD)


def _wrapped(sentence: str, indent: int = 0) -> list[str]:
    return wrap(sentence, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


def _moment(seconds: float, at: float | None = None) -> str:
    """Return a time in UTC; without the date if it is that of another time."""
    shown = dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
    today = at is not None and dt.datetime.fromtimestamp(at, dt.timezone.utc).date() == shown.date()
    return shown.strftime("%H:%M UTC" if today else "%Y-%m-%d %H:%M UTC")
