"""What was missing: signals, scrapes, rules; and clocks that disagree. All that makes the rest less certain."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.catalogue.causes import CAUSES, MISSING, Domain
from stallscope.common.formatting import duration
from stallscope.report.alerts import Alerts
from stallscope.report.asking import Asker
from stallscope.report.document import Block, Column, Notice, Paragraph, Section, Table, Value
from stallscope.report.ranks import Ranks

KEY = "missing"
TITLE = "What was missing"
_WITH_FLOORS: tuple[Domain, ...] = ("input", "device", "time", "ranks", "hardware", "use")
"""Files of rules that record from where on each of their causes is a verdict, whatever is scraped."""
_LOOKS_AT_CLOCKS = 48
_CLOCK_SECONDS = 1
"""Lead of a clock that is told: less is rounding, and the time that passes between reading a clock and using it."""


class Failure(NamedTuple):
    """A section that could not be asked for."""

    title: str
    reason: str

    def __str__(self) -> str:
        """In one line."""
        return f"{self.title}: {self.reason}"


def section(asker: Asker, found: Ranks | None, fired: Alerts | None, failures: list[Failure]) -> Section:
    """Tell it."""
    blocks = list(told(failures))
    for part in (_rules(asker, fired), _signals(asker, found), _gpu_signals(asker), _scrapes(asker), _clocks(asker)):
        blocks += part
    if not blocks:
        blocks.append(Paragraph("Nothing that this report asks for was missing."))
    return Section(KEY, TITLE, tuple(blocks))


def told(failures: list[Failure]) -> tuple[Block, ...]:
    """What could not be asked for."""
    return tuple(Notice("warning", str(each)) for each in failures)


def _rules(asker: Asker, fired: Alerts | None) -> list[Block]:
    """Recording rules that recorded nothing, or not all the time."""
    blocks: list[Block] = []
    floors = asker.by("cause", f"max by (cause) (last_over_time(stallscope:verdict_floor:ratio[{asker.window}]))")
    domains = {CAUSES[cause].domain for cause in floors if cause in CAUSES}
    absent = [f"{domain}.yml" for domain in _WITH_FLOORS if domain not in domains]
    for file, record in (
        ("thresholds", "stallscope:threshold"),
        ("subjects", f"{asker.subject.gpus} or count(gpu:up:max)"),
        ("totals", "cluster:gpus_known:count"),
    ):
        if asker.figure(f"count({asker.over_time('last_over_time', record, resolution=asker.step)})") is None:
            absent.append(f"{file}.yml")
    if absent:
        blocks.append(
            Notice(
                "critical" if "thresholds.yml" in absent else "warning",
                f"Recording rules of {', '.join(absent)} recorded nothing: what is built upon them is missing above. "
                "Load all files of prometheus/rules.",
            )
        )
    else:
        recorded = asker.figure(asker.seconds_there('stallscope:threshold{name="clear_ratio"}')) or 0.0
        gap = asker.subject.seconds - recorded
        if gap > 2 * asker.resolution:
            blocks.append(
                Notice(
                    "warning",
                    f"For {duration(gap)} of {duration(asker.subject.seconds)} no rules were evaluated: the server was "
                    "down, or had none yet. Nothing of that time is judged.",
                )
            )
        if (
            asker.figure(f"count({asker.over_time('last_over_time', asker.subject.gpus, resolution=asker.step)})")
            is None
        ):
            blocks.append(
                Notice(
                    "warning",
                    "Rules were evaluated, but found nothing of what this report is about: they came later, or its "
                    "ranks and GPUs never told enough to be taken as alive.",
                )
            )
    if fired is not None and not fired.rules_loaded:
        blocks.append(Notice("warning", "The alert rules are not loaded: their Watchdog never fired."))
    return blocks


def _signals(asker: Asker, found: Ranks | None) -> list[Block]:
    """Why ranks could not be judged, and for how long."""
    if asker.subject.run is None or found is None:
        return []
    which = asker.subject.told_by_run
    times = asker.by("missing", asker.integral(f"count by (missing) (rank:missing:info{{{which}}})"))
    live = asker.figure(asker.integral(f"sum(run:ranks:count{{{which}}})"))
    rows: list[tuple[Value, ...]] = [
        (reason, seconds / live if live else None, seconds, MISSING.get(reason, ""))
        for reason, seconds in sorted(times.items(), key=lambda each: -each[1])
    ]
    blocks: list[Block] = []
    if rows:
        blocks.append(
            Table(
                (
                    Column("Missing"),
                    Column("Share", "share", "of the ranks' time"),
                    Column("Time", "seconds", "summed over the ranks"),
                    Column("What it means"),
                ),
                tuple(rows),
                title="Why ranks could not be judged",
                note="While one of these is missing, a rank has no verdict on its performance.",
            )
        )
    run = asker.subject.run
    if run.world_size is not None and run.world_size > len(found.places):
        blocks.append(
            Notice(
                "warning",
                f"The run has {run.world_size} ranks by its own account, and {len(found.places)} reported: "
                "the others' exporters are not scraped, or they don't reach one.",
            )
        )
    return blocks


def _gpu_signals(asker: Asker) -> list[Block]:
    """What GPUs, drivers and sources do not tell."""
    which = asker.subject.told_by_nodes
    window = asker.window
    untold = asker.by(
        "signal", f"count by (signal) (last_over_time(stallscope_gpu_signal_supported{{{which}}}[10m]) == 0)"
    )
    blocks: list[Block] = []
    if untold:
        said = ", ".join(f"{signal} ({number:.0f})" for signal, number in sorted(untold.items()))
        blocks.append(Paragraph(f"Not supported by GPU or driver, with the number of GPUs: {said}."))
    down = asker.ask(f"1 - avg_over_time(stallscope_exporter_source_up{{{which}}}[{window}]) > 0")
    if down:
        rows: list[tuple[Value, ...]] = [
            (each.labels.get("source", ""), each.labels.get("instance", ""), each.value)
            for each in sorted(down, key=lambda each: -each.value)
        ]
        blocks.append(
            Table(
                (Column("Source"), Column("Node"), Column("Failed", "share", "of the time")),
                tuple(rows[: asker.options.rows]),
                title="Sources of the exporters that failed",
                note=f"{len(rows) - asker.options.rows} more are left out." if len(rows) > asker.options.rows else "",
            )
        )
    return blocks


def _scrapes(asker: Asker) -> list[Block]:
    """Nodes whose exporter did not answer, or was not asked."""
    if not asker.subject.instances:
        return []
    up = f"up{{{asker.subject.told_by_nodes}}}"
    there = asker.by("instance", f"max by (instance) ({asker.seconds_there(up)})")
    answered = asker.by("instance", f"max by (instance) (avg_over_time({up}[{asker.window}]))")
    rows: list[tuple[Value, ...]] = []
    for instance in asker.subject.instances:
        unasked = max(0.0, asker.subject.seconds - there.get(instance, 0.0))
        down = 1 - answered[instance] if instance in answered else None
        if unasked > 2 * asker.resolution or down:
            rows.append((instance, down, unasked))
    if not rows:
        return []
    rows.sort(key=lambda row: (-float(row[1] or 0.0), -float(row[2] or 0.0), str(row[0])))
    return [
        Table(
            (
                Column("Node"),
                Column("Did not answer", "share", "of the scrapes"),
                Column("Not scraped", "seconds", "no scrape for over five minutes"),
            ),
            tuple(rows[: asker.options.rows]),
            title="Gaps in scrapes",
            note="What happened meanwhile is not known. Counters make up for gaps while an exporter lives: their "
            "sums are right, their curves flat."
            + (f" {len(rows) - asker.options.rows} more nodes are left out." if len(rows) > asker.options.rows else ""),
        )
    ]


def _clocks(asker: Asker) -> list[Block]:
    """Clocks of nodes and ranks that are ahead of whoever heard of them: that can't be delay."""
    blocks: list[Block] = []
    which = f'{asker.subject.told_by_nodes}, source=~"cpu|nvidia"'  # of all sources, those that are read most often
    told = f"stallscope_exporter_source_last_success_timestamp_seconds{{{which}}}"
    ahead = f"max by (instance) ({told}) - max by (instance) (timestamp({told}))"
    blocks += _ahead(asker, ahead, "instance", "node", "the server's")
    if asker.subject.run is not None:
        which = asker.subject.told_by_ranks
        step, push = (f"stallscope_training_last_{what}_timestamp_seconds{{{which}}}" for what in ("step", "push"))
        blocks += _ahead(asker, f"max by (rank) ({step} - {push})", "rank", "rank", "its exporter's")
    return blocks


def _ahead(asker: Asker, expression: str, label: str, kind: str, whose: str) -> list[Block]:
    moments = asker.step_of(_LOOKS_AT_CLOCKS)
    most = asker.ask(f"topk(3, {asker.over_time('max_over_time', expression, resolution=moments)} > {_CLOCK_SECONDS})")
    return [
        Notice(
            "warning",
            f"The clock of {kind} {each.labels.get(label, '')} was up to {duration(each.value)} ahead of {whose}: "
            "times and ages that come from it are off by as much. Set the clocks by NTP.",
        )
        for each in most
    ]
