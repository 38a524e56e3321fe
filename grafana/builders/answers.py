"""The sentence at the top of a dashboard: the loss, its place, its cause, and what to change.

Grafana 9.4 wraps text only in its text panel, which runs no query. A hidden variable therefore holds the sentence: its
query returns one series with the label `answer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana.builders import DATASOURCE, Json
from grafana.builders.panel import Panel, text

_ON_TIME_RANGE_CHANGE = 2
NAME = "answer"


def variable(expression: str, otherwise: str) -> Json:
    """Return the hidden variable with the sentence.

    Args:
        expression: PromQL for one series with the label `answer`.
        otherwise: the sentence if the expression returns nothing.
    """
    fallback = f'label_replace(vector(0), "{NAME}", "{otherwise}", "", "")'
    query = f"query_result(max by ({NAME}) ({expression}) or on () {fallback})"
    return {
        "type": "query",
        "name": NAME,
        "label": NAME,
        "description": "Sentence at the top of the dashboard.",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{NAME}"},
        "refresh": _ON_TIME_RANGE_CHANGE,
        "sort": 0,
        "regex": f'/{NAME}="((?:[^"\\\\]|\\\\.)*)"/',
        "hide": 2,
        "multi": False,
        "includeAll": False,
        "options": [],
        # An old sentence in a shared URL would be wrong.
        "skipUrlSync": True,
        "current": {},
    }


def panel(title: str, description: str) -> Panel:
    """Show the sentence, in a panel that is high enough for a phone."""
    return text(title, description, f"### ${{{NAME}}}", width=13, height=6)


def lasting(verdicts: str, by: str) -> str:
    """Return PromQL for the seconds since each subject has its present verdict, at most the time range.

    Args:
        verdicts: a selector of verdicts.
        by: labels that identify a subject.
    """
    other = f"timestamp({verdicts}) unless on ({by}, cause) {verdicts} @ end()"
    return (
        f"time() - (max by ({by}) (max_over_time(({other})[$__range:1m]))"
        f" or min by ({by}) (min_over_time(timestamp({verdicts})[$__range:1m])))"
    )


def _duration(seconds: str, by: str) -> str:
    """Return PromQL that adds the label `duration`: minutes, or hours from two hours on; "over" the time range."""
    units = (("min", f"round(({seconds}) / 60) < 120"), ("h", f"round(({seconds}) / 3600) >= 2"))
    known = " or ".join(
        f'label_replace(count_values by ({by}) ("duration", {value}), "duration", "$1 {unit}", "duration", "(.+)")'
        for unit, value in units
    )
    all_of_it = f"({known}) and on ({by}) ({seconds}) > 0.97 * $__range_s"
    return f'label_replace({all_of_it}, "duration", "over $1", "duration", "(.+)") or on ({by}) ({known})'


PART = "[|]([^|]*)"
"""Regular expression of one part of a sentence. Only the first part may contain a bar."""
_PARTS = ("subject", "total", "lost", "duration", "place", "words", "remedy", "who", "verdict")
_FORMS = (
    (
        "$1: not enough evidence yet; the missing data are listed below.",
        f"(.*){PART}[|]0{5 * PART}[|]insufficient_data",
    ),
    ("$1: $5. $6", f"(.*){PART}[|]0{6 * PART}"),
    ("$1 loses $3 % of its GPU time, for $4 now: $5$6. $7 ($8)", f"(.*)[|](){7 * PART}"),
    ("$1 loses $2 % of its GPU time, $3 % to one cause for $4 now: $5$6. $7 ($8)", f"(.*){8 * PART}"),
)


def worded(found: str, parts: Sequence[str], forms: Sequence[tuple[str, str]], *, with_culprit: bool = False) -> str:
    """Return PromQL that adds the words of a cause, and the sentence.

    Args:
        found: one series with the label `cause`.
        parts: labels of the parts of the sentence, in their order; also `place`, `words`, `remedy`, `who`, `verdict`.
        forms: forms of the sentence, each with the pattern of its parts between bars. The first that matches is used.
        with_culprit: the series has the labels `culprit` and `root` of `verdicts.with_culprit`.
    """
    found = f'label_replace({found}, "verdict", "$1", "cause", "(.+)")'
    if with_culprit:
        found = f'label_replace({found}, "cause", "$1", "root", "(.+)")'
        found = f'label_replace({found}, "place", "$1, ", "culprit", "(.+): .*")'
    found = f"{found} * on (cause) group_left (title, words, remedy, who) stallscope:cause:info"
    if not with_culprit:
        found = f'label_replace({found}, "words", "$1", "title", "(.+)")'
    else:  # Words that follow a rank are wrong without one.
        joined = f'label_join({found}, "joined", "|", "place", "title")'
        found = f'label_replace({joined}, "words", "$1", "joined", "[|](.+)")'
    found = f"""label_join({found}, "{NAME}", "|", {", ".join(f'"{part}"' for part in parts)})"""
    for form, pattern in forms:
        found = f'label_replace({found}, "{NAME}", "{form}", "{NAME}", "{pattern}")'
    return found


def sentence(verdicts: str, selector: str, by: str, *, total: str = "", with_culprit: bool = False) -> str:
    """Return PromQL for the sentence on the subject with the largest loss.

    Args:
        verdicts: verdicts with the label `subject`, its name in words.
        selector: the selector of these verdicts, for the time since when they hold.
        by: labels that identify a subject.
        total: the loss of each subject to all causes, if a verdict is not all of it.
        with_culprit: the verdicts have the labels `culprit` and `root` of `verdicts.with_culprit`.
    """
    kept = f"{by}, subject, cause" + (", culprit, root" if with_culprit else "")
    found = f'count_values by ({kept}) ("lost", round(100 * topk(1, {verdicts})))'
    found = f"{found} * on ({by}) group_left (duration) ({_duration(lasting(selector, by), by)})"
    if total:
        more = f"round(100 * {total}) > on ({by}) round(100 * max by ({by}) ({selector}))"
        found = (
            f'({found}) * on ({by}) group_left (total) count_values by ({by}) ("total", {more}) or on ({by}) ({found})'
        )
    return worded(found, _PARTS, _FORMS, with_culprit=with_culprit)
