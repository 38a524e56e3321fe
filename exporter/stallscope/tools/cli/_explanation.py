"""Output of `stallscope why`: text in 80 columns, or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from stallscope.common.formatting import capitalised, percent, readable
from stallscope.model.catalogue.conditions import SIGNALS
from stallscope.model.view import explanation_words as words
from stallscope.model.view.explanation import Compared, Explanation, OfGpu, Sharers

_WIDTH = 79
_HEAD = 17
"""Columns of the heading at the start of a line."""
_SIGNAL = 28
_VALUE = 11


def text(found: Explanation, *, everything: bool = False, with_place: bool = False) -> str:
    """Return the explanation for a terminal.

    Args:
        found: the explanation.
        everything: True to list every cause that was considered.
        with_place: True to name cluster and namespace of the run.
    """
    lines = _wrapped(f"{_name(found, with_place=with_place)}: {words.heading(found)}")
    lines += [line for sentence in words.sentences(found) for line in _wrapped(sentence, 2)]
    rows = words.measured_rows(found)
    if rows and found.verdict is not None:
        lines.append(f"{'measured':<{_SIGNAL + 2}}{'value':>{_VALUE}}  {found.verdict.cause}")
        lines += [line for row in rows for line in _value(row)]
    for note in words.notes(found):
        for number, entry in enumerate(note.first_entries):
            lines += _row("" if number else note.title, entry)
    if everything:
        lines += ["", *_everything(found)]
    return "\n".join(lines) + "\n"


def _name(found: Explanation, *, with_place: bool) -> str:
    if found.of_gpu is not None:
        cluster = f" in cluster {readable(found.cluster)}" if with_place and found.cluster else ""
        return f"{found.of_gpu.labels.name}{cluster}"
    return "run " + "/".join(map(readable, (found.cluster, found.namespace, found.run) if with_place else (found.run,)))


def document(found: Explanation) -> dict[str, Any]:
    """Return the explanation for JSON: seconds, shares from 0 to 1, null for unknown values."""
    if found.of_gpu is not None:
        return {**_gpu(found.of_gpu), **_document(found)}
    return {
        "cluster": found.cluster,
        "namespace": found.namespace,
        "run": found.run,
        "states": dict(found.states),
        "ranks": found.ranks,
        "rank_verdicts": [_sharers(each, "ranks") for each in found.rank_verdicts],
        "gpu_verdicts": [_sharers(each, "gpus") for each in found.gpu_verdicts],
        **_document(found),
    }


def _gpu(gpu: OfGpu) -> dict[str, Any]:
    return {
        **gpu.labels._asdict(),
        "model": gpu.model or None,
        "lost_reason": gpu.loss or None,
        "free": gpu.is_free,
        "waits_for_lost_gpu": gpu.waits_for_lost,
        "owners": list(gpu.owners),
        "ranks": [
            {
                **{name: value for name, value in each._asdict().items() if name not in ("verdict", "is_gone")},
                "ended": each.is_gone,
                "run_verdict": None
                if each.verdict is None
                else {"cause": each.verdict.cause, "time_lost_ratio": each.verdict.share},
            }
            for each in gpu.ranks
        ],
        "mig_verdicts": [_sharers(each, "instances") for each in gpu.instances],
        "inference_servers": [
            {
                "server": each.server,
                "cause": each.cause,
                "time_lost_ratio": each.share,
                "signals": dict(each.signals),
            }
            for each in gpu.serving
        ],
        "xid": {"code": gpu.xid.get("xid", ""), "action": gpu.xid.get("action", "")} if gpu.xid else None,
        "evidence": None if gpu.use is None else _condition(gpu.use),
    }


def _document(found: Explanation) -> dict[str, Any]:
    verdict = found.verdict
    return {
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
        "applies_to": each.of if each.of and each.threshold is not None else None,
        "holds": each.holds,
    }


def _everything(found: Explanation) -> Iterator[str]:
    """Yield every cause that was considered, with its values."""
    for name in found.unmeasured:
        causes = ", ".join(found.unmeasured[name])
        yield from _row("to measure", f"{SIGNALS[name].words}, for {causes}: needs {SIGNALS[name].source}")
    yield f"{'cause':<24}{'lost':>10}  {'from':>9}  {'alert':>9}  result"
    for each in found.considered:
        floor = words.threshold_percent(each.floor) if each.floor else "any"
        alert = "-" if each.alert is None else words.threshold_percent(each.alert)
        lost = "-" if each.lost is None else percent(each.lost)
        yield f"{each.cause:<24}{lost:>10}  {floor:>9}  {alert:>9}  {each.result.replace('_', ' ')}"
        if each.result not in ("verdict", "below", "not_found"):
            yield from _wrapped(capitalised(each.reason) + ".", 4)
        for condition in each.conditions:
            signal, value = SIGNALS[condition.series].words, words.value_of(condition)
            yield from _value(words.Row(signal, value, (words.level(condition),)), 4)


def _value(row: words.Row, indent: int = 2) -> Iterator[str]:
    """Yield a signal with its value and its thresholds, one in each line."""
    first = f"{' ' * indent}{row.signal:<{_SIGNAL}}{row.value:>{_VALUE}}"
    for number, level in enumerate(row.thresholds):
        lines = wrap(level, _WIDTH - len(first) - 2, subsequent_indent="  ") or [""]
        yield f"{' ' * len(first) if number else first}  {lines[0]}".rstrip()
        yield from (f"{' ' * len(first)}  {line}" for line in lines[1:])


def _row(head: str, said: str) -> list[str]:
    return wrap(said, _WIDTH, initial_indent=f"{head:<{_HEAD}}", subsequent_indent=" " * _HEAD)


def _wrapped(sentence: str, indent: int = 0) -> list[str]:
    return wrap(sentence, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
