"""Scaling of the run: by its own measurement on one GPU, and compared with another run."""

from __future__ import annotations

from stallscope.common.formatting import capitalised
from stallscope.model.analysis.comparison import UNEXPLAINED, Against, Comparison, compare
from stallscope.model.analysis.over_time import settled
from stallscope.model.analysis.run_figures import RunFigures, read_figures, with_distinct_names
from stallscope.model.analysis.runs import Run
from stallscope.tools.report.document import Block, Column, Fact, Facts, Notice, Paragraph, Table, Value
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.words import percent, plain, title_of

KEY = "scaling"
TITLE = "Scaling"


def blocks(queries: Queries) -> list[Block]:
    """Return the blocks of the section."""
    found = [_alone(queries)]
    base = queries.options.against
    if base is not None:
        found += _against(queries, base)
    else:
        found.append(Paragraph("To compare this run with another one, add --against RUN."))
    return found


def _alone(queries: Queries) -> Block:
    efficiency = settled(f"run:scaling_efficiency:ratio5m{{{queries.subject.run_matchers}}}")
    mean = queries.value(f"avg({queries.over_time('avg_over_time', efficiency)})")
    if mean is None:
        return Notice(
            "info",
            "The run does not report single_gpu_samples_per_second: its efficiency relative to one GPU is unknown.",
        )
    return Facts(
        (
            Fact("Efficiency", mean, "share", "throughput per GPU, relative to one GPU alone as reported by the run"),
            Fact(
                "Lowest",
                queries.value(f"min({queries.over_time('min_over_time', efficiency)})"),
                "share",
                "over five minutes",
            ),
        ),
        title="Compared with one GPU",
    )


def _against(queries: Queries, base: Run) -> list[Block]:
    ours, theirs = with_distinct_names([queries.figures, read_figures(queries.server, base)])
    found = compare([theirs, ours], base=theirs)
    blocks: list[Block] = [_figures(found, ours, theirs)]
    for against in found.against:
        blocks += _explained(found, against)
    names = (ours.name, theirs.name)  # keep the case of a run's name at the start of a sentence
    said = (note if note.startswith(names) else capitalised(note) for note in found.notes)
    blocks += [Notice("info", f"{note}.") for note in said]
    return blocks


def _figures(found: Comparison, ours: RunFigures, theirs: RunFigures) -> Table:
    scaling = found.against[0].scaling if found.against else None
    rows: list[tuple[Value, ...]] = []
    for figures in (theirs, ours):
        rate = figures.rate(found.work)
        rows.append(
            (
                figures.name,
                figures.units,
                figures.batch,
                rate,
                rate / figures.units if rate is not None and figures.units else None,
                figures.step_seconds,
                figures.time_lost,
            )
        )
    note = "Work and step time are means over the training time of each run, without the first five minutes."
    if scaling is not None:
        note += (
            f" The run does {plain(scaling.speed_up)} times the base's work per second with {_gpus(ours)} instead of "
            f"{_gpus(theirs)}: each GPU does {percent(scaling.efficiency)} of the work of a GPU in the base"
            + (f", which costs the time of {plain(scaling.gpus_lost)} GPUs." if scaling.gpus_lost > 0 else ".")
        )
    else:
        note += " The efficiency is unknown, because one of the two runs reports too little."
    return Table(
        (
            Column("Run"),
            Column("GPUs", "number"),
            Column("Batch", "number", "of all ranks together"),
            Column(f"{found.work.capitalize()} per second", "per_second"),
            Column("Per GPU", "per_second"),
            Column("Step time", "seconds"),
            Column("Lost", "share", "of the GPU time of the whole run"),
        ),
        tuple(rows),
        title=f"Compared with {theirs.name}",
        note=note,
    )


def _gpus(figures: RunFigures) -> str:
    unit = "GPU" if figures.gpus else "rank"
    return f"{plain(figures.units or 0.0)} {unit if figures.units == 1 else f'{unit}s'}"


def _explained(found: Comparison, against: Against) -> list[Block]:
    if not against.parts:
        return []
    rows: list[tuple[Value, ...]] = [
        (
            "Unexplained" if part.cause == UNEXPLAINED else title_of(part.cause),
            part.base,
            part.run,
            part.explains,
        )
        for part in against.parts
        if part.cause == UNEXPLAINED or part.base or part.run
    ]
    return [
        Table(
            (
                Column("Cause"),
                Column("Base", "share", "of its GPU time"),
                Column("This run", "share", "of its GPU time"),
                Column("Adds", "share", f"GPU time per {found.work.removesuffix('s')}, relative to the base"),
            ),
            tuple(rows),
            title="Causes of the difference",
        )
    ]
