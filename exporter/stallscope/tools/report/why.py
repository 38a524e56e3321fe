"""The verdict of a run at the end, with the values beside their thresholds, as `stallscope why` explains it."""

from __future__ import annotations

from stallscope.common.formatting import capitalised
from stallscope.model.clients.expressions import any_of
from stallscope.model.view import explanation_words as words
from stallscope.model.view.explanation import explain
from stallscope.tools.report.document import Block, Column, Paragraph, Table, Value
from stallscope.tools.report.queries import Queries

KEY = "why"
TITLE = "Why the last verdict"


def blocks(queries: Queries) -> list[Block]:
    """Return the blocks of the section."""
    subject = queries.subject
    run = subject.run
    if run is None:
        return []
    place = run.cluster, run.namespace, run.name
    instances = f"instance=~{any_of(run.instances)}"
    found = explain(queries.server, place, subject.run_matchers, instances, subject.end, run.states)
    heading = Paragraph(f"Verdict at the end: {words.heading(found)}.")
    notes = " ".join(
        f"{capitalised(note.title)}: {'; '.join(note.first_entries).rstrip('.')}." for note in words.notes(found)
    )
    rows: list[tuple[Value, ...]] = [
        (row.signal, row.value, "; ".join(row.thresholds)) for row in words.measured_rows(found)
    ]
    if not rows:
        return [heading, *([Paragraph(notes)] if notes else [])]
    columns = Column("Signal"), Column("Value"), Column("Threshold")
    return [heading, Table(columns, tuple(rows), title="Values beside thresholds", note=notes)]
