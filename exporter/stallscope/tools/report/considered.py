"""Every cause that the rules considered, with its value, its threshold, and how long it was the verdict."""

from __future__ import annotations

from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.conditions import alert_thresholds
from stallscope.tools.report.document import Block, Column, Notice, Paragraph, Table, Value
from stallscope.tools.report.lost_time import LostTime
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.words import percent

KEY = "considered"
TITLE = "Causes considered"
_FOUND, _COVERED, _BELOW, _NOT_FOUND = "found", "another cause came first", "under its threshold", "not found"


def blocks(queries: Queries, lost: LostTime) -> list[Block]:
    """Return the blocks of the section."""
    subject = queries.subject
    if lost.lost is None:
        return [Notice("info", "No cause was considered: there is no verdict. The summary has the reason.")]
    record = f"run_cause:time_lost:ratio5m{{{subject.run_matchers}}}"
    floors = {
        each.labels.get("cause", ""): each.value
        for each in queries.instant("max by (cause) (stallscope:verdict_floor:ratio)")
    }
    if not floors:
        return [
            Notice("warning", "Thresholds are unknown: the server does not record `stallscope:verdict_floor:ratio`.")
        ]
    levels = queries.by("name", "max by (name) (stallscope:threshold)")
    most = queries.by("cause", f"max by (cause) (max_over_time({record}[{queries.window}]))")
    total = sum(lost.under_verdict.values())
    rows: list[tuple[float, tuple[Value, ...]]] = []
    for cause in CAUSES.values():
        if cause.name not in floors:
            continue
        loss, floor, worst = lost.by_cause.get(cause.name), floors[cause.name], most.get(cause.name, 0.0)
        held = lost.under_verdict.get(cause.name, 0.0) / total if total else 0.0
        result = _FOUND if held else _NOT_FOUND if not worst else _COVERED if worst >= floor else _BELOW
        alert = min((levels[name] for name in alert_thresholds(cause.name) if name in levels), default=None)
        share = loss.share if loss is not None else 0.0
        rows.append((held + share, (cause.title, result, share, worst, floor or None, alert, held)))
    rows.sort(key=lambda each: -each[0])
    found = sum(row[1] == _FOUND for _, row in rows)
    return [
        Paragraph(
            f"The rules considered {len(rows)} causes for {percent(lost.judged / lost.gpu_seconds)} of the "
            f"{lost.unit} time: {found} {'was' if found == 1 else 'were'} the verdict. A cause whose signals are "
            "missing is not found either; the last section lists missing data."
        ),
        Table(
            (
                Column("Cause", key="cause"),
                Column("Result", key="result"),
                Column("Lost", "share", f"of all {lost.unit} time", key="lost_ratio"),
                Column("Most", "share", "over five minutes", key="most_lost_ratio"),
                Column("Verdict from", "share", "over five minutes", key="threshold_ratio"),
                Column("Alert from", "share", "over the window of its rule", key="alert_threshold_ratio"),
                Column("Verdict", "share", "of the time with verdicts", key="verdict_ratio"),
            ),
            tuple(row for _, row in rows),
            title="Causes, values and thresholds",
            note="A cause without a threshold is the verdict whenever the rules find it; hardware and standstills take "
            "precedence, then the cause that costs most. An alert without a threshold here does not depend on this "
            "share.",
            key="considered",
        ),
    ]
