"""How the run scales: by its own measurement of one GPU, and against another run."""

from __future__ import annotations

from stallscope.analysis.comparison import UNEXPLAINED, Against, Comparison, compare
from stallscope.analysis.run_figures import RunFigures, read_figures, told_apart
from stallscope.analysis.runs import Run
from stallscope.common.formatting import capitalised
from stallscope.report.asking import Asker, settled
from stallscope.report.document import Block, Column, Fact, Facts, Notice, Paragraph, Section, Table, Value
from stallscope.report.words import percent, plain, title_of

KEY = "scaling"


def section(asker: Asker, run: Run) -> Section:
    """Tell it."""
    blocks = [_alone(asker)]
    base = asker.options.against
    if base is not None:
        blocks += _against(asker, run, base)
    else:
        blocks.append(Paragraph("To measure this run by another one, name that with --against RUN."))
    return Section(KEY, "Scaling", tuple(blocks))


def _alone(asker: Asker) -> Block:
    efficiency = settled(f"run:scaling_efficiency:ratio5m{{{asker.subject.told_by_run}}}")
    mean = asker.figure(f"avg({asker.over_time('avg_over_time', efficiency)})")
    if mean is None:
        return Notice(
            "info",
            "The run tells no value single_gpu_samples_per_second: its efficiency against one GPU alone is not known.",
        )
    return Facts(
        (
            Fact("Efficiency", mean, "share", "samples of each GPU, of what one GPU does alone as the run told it"),
            Fact(
                "At least",
                asker.figure(f"min({asker.over_time('min_over_time', efficiency)})"),
                "share",
                "in five minutes",
            ),
        ),
        title="Against one GPU alone",
    )


def _against(asker: Asker, run: Run, base: Run) -> list[Block]:
    ours, theirs = told_apart([read_figures(asker.server, run), read_figures(asker.server, base)])
    found = compare([theirs, ours], base=theirs)
    blocks: list[Block] = [_figures(found, ours, theirs)]
    for against in found.against:
        blocks += _explained(found, against)
    names = (ours.name, theirs.name)  # stay as they are where a sentence begins with one
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
                figures.gpus,
                figures.batch,
                rate,
                rate / figures.gpus if rate is not None and figures.gpus else None,
                figures.step_seconds,
                figures.time_lost,
            )
        )
    note = "Means while each run trained, without the first five minutes."
    if scaling is not None:
        note += (
            f" {plain(scaling.speed_up)} times the base's work a second with {_gpus(ours)} for its "
            f"{_gpus(theirs)}: each GPU does {percent(scaling.efficiency)} of what the base's do"
            + (
                f", so that the time of {plain(scaling.gpus_lost)} GPUs is lost by it."
                if scaling.gpus_lost > 0
                else "."
            )
        )
    else:
        note += " One of the two tells too little for an efficiency."
    return Table(
        (
            Column("Run"),
            Column("GPUs", "number"),
            Column("Batch", "number", "of all ranks together"),
            Column(f"{found.work.capitalize()} a second", "per_second"),
            Column("Per GPU", "per_second"),
            Column("Step", "seconds"),
            Column("Lost", "share", "of GPU time"),
        ),
        tuple(rows),
        title=f"Against {theirs.name}",
        note=note,
    )


def _gpus(figures: RunFigures) -> str:
    return f"{plain(figures.gpus or 0.0)} {'GPU' if figures.gpus == 1 else 'GPUs'}"


def _explained(found: Comparison, against: Against) -> list[Block]:
    if not against.parts:
        return []
    rows: list[tuple[Value, ...]] = [
        (
            "What no cause explains" if part.cause == UNEXPLAINED else title_of(part.cause),
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
                Column("Adds", "share", f"GPU time to each of the {found.work}, of what one takes in the base"),
            ),
            tuple(rows),
            title="What makes the difference",
        )
    ]
