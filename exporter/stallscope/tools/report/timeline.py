"""The verdicts of the run and of its most relevant ranks over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stallscope.common.formatting import duration
from stallscope.model.clients.expressions import any_of
from stallscope.tools.report.document import Block, Column, Figure, Mark, Notice, Span, States, Table, Value
from stallscope.tools.report.lost_time import LostTime
from stallscope.tools.report.queries import Queries, RangeResult
from stallscope.tools.report.ranks import Ranks
from stallscope.tools.report.words import title_of

KEY = "verdicts"
TITLE = "Verdicts over time"


def blocks(queries: Queries, lost: LostTime, found: Ranks | None) -> list[Block]:
    """Return the blocks of the section."""
    if not lost.under_verdict:
        return [
            Notice(
                "warning",
                "No verdict was recorded in this time: the server did not evaluate the recording rules, or nothing "
                "was live that could have a verdict.",
            )
        ]
    rows, spans, step = [], [], queries.step
    for name, result in _rows(queries, found):
        spans.append(tuple(_spans(queries, result)))
        rows.append(name)
    blocks: list[Block] = [_table(lost, spans[0] if queries.subject.run is not None and spans else ())]
    if rows:
        plot = States(
            tuple(rows), tuple(spans), queries.subject.start, queries.subject.end, tuple(_starts(queries, found))
        )
        blocks.append(Figure("Verdicts over time", plot, _in_words(rows[0], spans[0], step)))
    return blocks


def _table(lost: LostTime, run_spans: Sequence[Span]) -> Table:
    total = sum(lost.under_verdict.values())
    instances = " MIG instances have their own verdicts and count like GPUs." if total > lost.gpu_seconds else ""
    rows: list[tuple[Value, ...]] = []
    for cause, seconds in sorted(lost.under_verdict.items(), key=lambda each: -each[1]):
        seen = [span for span in run_spans if span.state == cause]
        rows.append(
            (
                cause,
                seconds / total,
                seconds / 3600,
                min((span.start for span in seen), default=None),
                max((span.end for span in seen), default=None),
            )
        )
    columns = [
        Column("Verdict", "cause", key="cause"),
        Column("Share", "share", f"of the {lost.unit} time", key="judged_ratio"),
        Column("Time", "gpu_hours", f"{lost.unit}-hours, lost or not", key=lost.hours_key),
        Column("First", "time", key="first_timestamp_seconds"),
        Column("Last", "time", key="last_timestamp_seconds"),
    ]
    if not run_spans:  # of several GPUs, each has its own times
        columns, rows = columns[:3], [row[:3] for row in rows]
    return Table(
        tuple(columns),
        tuple(rows),
        title="Duration of each verdict",
        note=f"The verdict is the costliest cause at a time; broken hardware and stalls take precedence.{instances}",
        key="verdicts",
    )


def _rows(queries: Queries, found: Ranks | None) -> Iterable[tuple[str, RangeResult]]:
    subject = queries.subject
    if subject.run is not None:
        which = subject.run_matchers
        yield "run", queries.over_range(f"max by (cause) (run:verdict:ratio5m{{{which}}})")
        if found is not None and len(found.places) > 1:
            among = f"rank:verdict:ratio5m{{{which}, rank=~{any_of(found.worst)}}}"
            yield from _by_subject(
                queries, f"max by (rank, cause) ({among})", ("rank",), [(rank,) for rank in found.worst]
            )
    elif subject.scope == "nodes":
        verdicts = f"gpu:verdict:ratio5m{{{subject.node_matchers}}}"
        labels = ("instance", "gpu")
        worst = queries.instant(
            f"topk({queries.options.rows}, sum by (instance, gpu) (sum_over_time({verdicts}[{queries.window}])))"
        )
        chosen = sorted((each.labels.get("instance", ""), each.labels.get("gpu", "")) for each in worst)
        among = f"{subject.node_matchers}, instance=~{any_of(sorted({instance for instance, _ in chosen}))}"
        expression = f"max by (instance, gpu, cause) (gpu:verdict:ratio5m{{{among}}})"
        yield from _by_subject(queries, expression, labels, chosen)


def _by_subject(
    queries: Queries, expression: str, labels: tuple[str, ...], chosen: Sequence[tuple[str, ...]]
) -> Iterable[tuple[str, RangeResult]]:
    """Split a query's series by subject."""
    every = queries.over_range(expression)
    for names in chosen:
        own = tuple(each for each in every.series if tuple(each.labels.get(label, "") for label in labels) == names)
        name = f"rank {names[0]}" if len(names) == 1 else f"{names[0]} GPU {names[1]}"
        yield name, RangeResult(every.times, every.step, own)


def _spans(queries: Queries, result: RangeResult) -> Iterable[Span]:
    """Join successive times with the same verdict, each of which lasts until the next."""
    start: float | None = None
    state = ""
    for number, moment in enumerate(result.times):
        now = next((each.labels.get("cause", "") for each in result.series if each.values[number] is not None), "")
        if now != state:
            if start is not None:
                yield Span(start, moment, state)
            start, state = (moment, now) if now else (None, "")
    if start is not None:
        yield Span(start, max(start, min(queries.subject.end, result.times[-1] + result.step)), state)


def _starts(queries: Queries, found: Ranks | None) -> Iterable[Mark]:
    """Return marks for the starts of the run's first rank."""
    if found is None or found.first is None:
        return
    which = f"{queries.subject.rank_matchers}, rank=~{any_of([found.first])}"
    result = queries.over_range(f"max(stallscope_training_start_timestamp_seconds{{{which}}})")
    starts = {value for curve in result.series for value in curve.values if value is not None}
    for number, moment in enumerate(sorted(starts)):
        if queries.subject.start <= moment <= queries.subject.end:
            yield Mark(moment, "start" if not number else "restart")


def _in_words(name: str, spans: Sequence[Span], step: float) -> str:
    """Return the text alternative of the first row."""
    every = [f"{title_of(span.state)} for {duration(max(step, span.end - span.start))}" for span in spans]
    if len(every) > 6:
        every = [*every[:5], f"{len(every) - 5} more changes"]
    return f"{name}: {', then '.join(every) or 'no verdict'}."
