"""What the verdict was, over time: of the run, and of the ranks that say most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stallscope.clients.expressions import any_of
from stallscope.common.formatting import duration
from stallscope.report.asking import Asker, Curves
from stallscope.report.document import (
    Block,
    Column,
    Figure,
    Mark,
    Notice,
    Section,
    Span,
    States,
    Table,
    Value,
)
from stallscope.report.lost_time import LostTime
from stallscope.report.ranks import Ranks
from stallscope.report.words import title_of

KEY = "verdicts"


def section(asker: Asker, lost: LostTime, found: Ranks | None) -> Section:
    """Tell it."""
    return Section(KEY, "Verdicts over time", tuple(_blocks(asker, lost, found)))


def _blocks(asker: Asker, lost: LostTime, found: Ranks | None) -> list[Block]:
    if not lost.under_verdict:
        return [
            Notice(
                "warning",
                "No verdict was recorded in this time: either the server did not evaluate the recording rules then, or "
                "nothing lived that could be judged.",
            )
        ]
    rows, spans, step = [], [], asker.step
    for name, curves in _curves(asker, found):
        spans.append(tuple(_spans(asker, curves)))
        rows.append(name)
    blocks: list[Block] = [_table(lost, spans[0] if asker.subject.run is not None and spans else ())]
    if rows:
        plot = States(tuple(rows), tuple(spans), asker.subject.start, asker.subject.end, tuple(_starts(asker, found)))
        blocks.append(Figure("Verdicts over time", plot, _said(rows[0], spans[0], step)))
    return blocks


def _table(lost: LostTime, run_spans: Sequence[Span]) -> Table:
    total = sum(lost.under_verdict.values())
    instances = " MIG instances have verdicts of their own, and count like GPUs." if total > lost.gpu_seconds else ""
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
        Column("Verdict", "cause"),
        Column("Share", "share", f"of the {lost.unit} time with a verdict"),
        Column("Under it", "gpu_hours", f"{lost.unit}-hours, lost or not"),
        Column("First", "time"),
        Column("Last", "time"),
    ]
    if not run_spans:  # of many GPUs each has its own times
        columns, rows = columns[:3], [row[:3] for row in rows]
    return Table(
        tuple(columns),
        tuple(rows),
        title="How long each verdict held",
        note=f"A verdict is what cost most at a moment, hardware and standstill before all else.{instances}",
    )


def _curves(asker: Asker, found: Ranks | None) -> Iterable[tuple[str, Curves]]:
    subject = asker.subject
    if subject.run is not None:
        which = subject.told_by_run
        yield "run", asker.curves(f"max by (cause) (run:verdict:ratio5m{{{which}}})")
        if found is not None and len(found.places) > 1:
            among = f"rank:verdict:ratio5m{{{which}, rank=~{any_of(found.worst)}}}"
            yield from _apart(asker, f"max by (rank, cause) ({among})", ("rank",), [(rank,) for rank in found.worst])
    elif subject.scope == "nodes":
        verdicts = f"gpu:verdict:ratio5m{{{subject.told_by_nodes}}}"
        labels = ("instance", "gpu")
        worst = asker.ask(
            f"topk({asker.options.rows}, sum by (instance, gpu) (sum_over_time({verdicts}[{asker.window}])))"
        )
        chosen = sorted((each.labels.get("instance", ""), each.labels.get("gpu", "")) for each in worst)
        among = f"{subject.told_by_nodes}, instance=~{any_of(sorted({instance for instance, _ in chosen}))}"
        expression = f"max by (instance, gpu, cause) (gpu:verdict:ratio5m{{{among}}})"
        yield from _apart(asker, expression, labels, chosen)


def _apart(
    asker: Asker, expression: str, labels: tuple[str, ...], chosen: Sequence[tuple[str, ...]]
) -> Iterable[tuple[str, Curves]]:
    """The curves of each subject by itself."""
    every = asker.curves(expression)
    for names in chosen:
        own = tuple(each for each in every.curves if tuple(each.labels.get(label, "") for label in labels) == names)
        name = f"rank {names[0]}" if len(names) == 1 else f"{names[0]} GPU {names[1]}"
        yield name, Curves(every.times, every.step, own)


def _spans(asker: Asker, curves: Curves) -> Iterable[Span]:
    """Successive moments with one verdict, each taken to hold until the next."""
    start: float | None = None
    state = ""
    for number, moment in enumerate(curves.times):
        now = next((each.labels.get("cause", "") for each in curves.curves if each.values[number] is not None), "")
        if now != state:
            if start is not None:
                yield Span(start, moment, state)
            start, state = (moment, now) if now else (None, "")
    if start is not None:
        yield Span(start, max(start, min(asker.subject.end, curves.times[-1] + curves.step)), state)


def _starts(asker: Asker, found: Ranks | None) -> Iterable[Mark]:
    """When the run's first rank began a session."""
    if found is None or found.first is None:
        return
    which = f"{asker.subject.told_by_ranks}, rank=~{any_of([found.first])}"
    curves = asker.curves(f"max(stallscope_training_start_timestamp_seconds{{{which}}})")
    told = {value for curve in curves.curves for value in curve.values if value is not None}
    for number, moment in enumerate(sorted(told)):
        if asker.subject.start <= moment <= asker.subject.end:
            yield Mark(moment, "start" if not number else "restart")


def _said(name: str, spans: Sequence[Span], step: float) -> str:
    """The first row in words."""
    every = [f"{title_of(span.state)} for {duration(max(step, span.end - span.start))}" for span in spans]
    if len(every) > 6:
        every = [*every[:5], f"{len(every) - 5} more changes"]
    return f"{name}: {', then '.join(every) or 'no verdict'}."
