"""Missing signals, scrapes and rules, and wrong clocks: what makes the other sections less certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stallscope.common.formatting import duration
from stallscope.model.catalogue.causes import CAUSES, MISSING, Domain
from stallscope.tools.report.alerts import Alerts
from stallscope.tools.report.document import Block, Column, Notice, Paragraph, Table, Value
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.ranks import Ranks

KEY = "missing"
TITLE = "Missing data"
_WITH_FLOORS: tuple[Domain, ...] = ("input", "device", "time", "ranks", "hardware", "use")
"""Domains of the rule files that record a verdict threshold for each cause, whatever is scraped."""
_CLOCK_CHECKS = 48
_MIN_CLOCK_LEAD = 1
"""Reported lead of a clock in seconds; a smaller lead is rounding or the delay between reading a clock and using it."""


class Failure(NamedTuple):
    """A section whose query failed."""

    title: str
    reason: str

    def __str__(self) -> str:
        """Return title and reason."""
        return f"{self.title}: {self.reason}"


def blocks(queries: Queries, found: Ranks | None, fired: Alerts | None, failures: list[Failure]) -> list[Block]:
    """Return the blocks of the section."""
    notices = failure_notices(failures)
    for part in (
        _rules(queries, fired),
        _signals(queries, found),
        _gpu_signals(queries),
        _scrapes(queries),
        _clocks(queries),
    ):
        notices += part
    if not notices:
        notices.append(Paragraph("Nothing that this report uses was missing."))
    return notices


def failure_notices(failures: list[Failure]) -> list[Block]:
    """Return a notice for each failed query."""
    return [Notice("warning", str(each)) for each in failures]


def _rules(queries: Queries, fired: Alerts | None) -> list[Block]:
    """Report recording rules that recorded nothing, or only part of the time."""
    blocks: list[Block] = []
    floors = queries.by("cause", f"max by (cause) (last_over_time(stallscope:verdict_floor:ratio[{queries.window}]))")
    domains = {CAUSES[cause].domain for cause in floors if cause in CAUSES}
    absent = [f"{domain}.yml" for domain in _WITH_FLOORS if domain not in domains]
    for file, record in (
        ("thresholds", "stallscope:threshold"),
        ("subjects", f"{queries.subject.gpus} or count(gpu:up:max)"),
        ("totals", "cluster:gpus_known:count"),
    ):
        if not _is_recorded(queries, record):
            absent.append(f"{file}.yml")
    if absent:
        blocks.append(
            Notice(
                "critical" if "thresholds.yml" in absent else "warning",
                f"Recording rules in {', '.join(absent)} recorded nothing: the results that need them are missing. "
                "Load all files of prometheus/rules.",
            )
        )
    else:
        recorded = queries.value(queries.seconds_present('stallscope:threshold{name="clear_ratio"}')) or 0.0
        gap = queries.subject.seconds - recorded
        if gap > 2 * queries.resolution:
            blocks.append(
                Notice(
                    "warning",
                    f"No rules were evaluated for {duration(gap)} of {duration(queries.subject.seconds)}: the server "
                    "was down, or the rules were not yet loaded. That time has no verdicts.",
                )
            )
        if not _is_recorded(queries, queries.subject.gpus):
            blocks.append(
                Notice(
                    "warning",
                    "Rules were evaluated, but recorded nothing for this report: they were loaded later, or its "
                    "ranks and GPUs never reported enough to count as live.",
                )
            )
    if fired is not None and not fired.rules_loaded:
        blocks.append(Notice("warning", "The alert rules are not loaded: StallscopeWatchdog never fired."))
    return blocks


def _is_recorded(queries: Queries, expression: str) -> bool:
    return (
        queries.value(f"count({queries.over_time('last_over_time', expression, resolution=queries.step)})") is not None
    )


def _signals(queries: Queries, found: Ranks | None) -> list[Block]:
    """Report why ranks have no verdict, and for how long."""
    if queries.subject.run is None or found is None:
        return []
    which = queries.subject.run_matchers
    times = queries.by("missing", queries.integral(f"count by (missing) (rank:missing:info{{{which}}})"))
    live = queries.value(queries.integral(f"sum(run:ranks:count{{{which}}})"))
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
                    Column("Time", "seconds", "sum of all ranks"),
                    Column("Meaning"),
                ),
                tuple(rows),
                title="Reasons for ranks without verdict",
                note="While one of these is missing, a rank has no verdict on its performance.",
            )
        )
    run = queries.subject.run
    if run.world_size is not None and run.world_size > len(found.places):
        blocks.append(
            Notice(
                "warning",
                f"The run has a world size of {run.world_size}, but only {len(found.places)} ranks reported: "
                "the exporters of the others are not scraped, or the ranks do not reach one.",
            )
        )
    return blocks


def _gpu_signals(queries: Queries) -> list[Block]:
    """Report unsupported signals and failing collectors."""
    which = queries.subject.node_matchers
    window = queries.window
    unsupported = queries.by(
        "signal", f"count by (signal) (last_over_time(stallscope_gpu_signal_supported{{{which}}}[10m]) == 0)"
    )
    blocks: list[Block] = []
    if unsupported:
        signals = ", ".join(f"{signal} ({number:.0f})" for signal, number in sorted(unsupported.items()))
        blocks.append(Paragraph(f"Not supported by GPU or driver (number of GPUs): {signals}."))
    down = queries.instant(f"1 - avg_over_time(stallscope_exporter_source_up{{{which}}}[{window}]) > 0")
    if down:
        rows: list[tuple[Value, ...]] = [
            (each.labels.get("source", ""), each.labels.get("instance", ""), each.value)
            for each in sorted(down, key=lambda each: -each.value)
        ]
        blocks.append(
            Table(
                (Column("Collector"), Column("Node"), Column("Failed", "share", "of the time")),
                tuple(rows[: queries.options.rows]),
                title="Failed collectors of exporters",
                note=_omitted(queries, rows, "more are"),
            )
        )
    return blocks


def _scrapes(queries: Queries) -> list[Block]:
    """Report nodes whose exporter did not respond or was not scraped."""
    if not queries.subject.instances:
        return []
    up = f"up{{{queries.subject.node_matchers}}}"
    scraped = queries.by("instance", f"max by (instance) ({queries.seconds_present(up)})")
    up_ratio = queries.by("instance", f"max by (instance) (avg_over_time({up}[{queries.window}]))")
    rows: list[tuple[Value, ...]] = []
    for instance in queries.subject.instances:
        not_scraped = max(0.0, queries.subject.seconds - scraped.get(instance, 0.0))
        down = 1 - up_ratio[instance] if instance in up_ratio else None
        if not_scraped > 2 * queries.resolution or down:
            rows.append((instance, down, not_scraped))
    if not rows:
        return []
    rows.sort(key=lambda row: (-float(row[1] or 0.0), -float(row[2] or 0.0), str(row[0])))
    return [
        Table(
            (
                Column("Node"),
                Column("Failed scrapes", "share", "of the scrapes"),
                Column("Not scraped", "seconds", "no scrape for over five minutes"),
            ),
            tuple(rows[: queries.options.rows]),
            title="Gaps in scrapes",
            note="Events in a gap are unknown. Counters bridge gaps unless the exporter restarts: sums are right, but "
            "their rate over the gap is a mean."
            + (f" {omitted}" if (omitted := _omitted(queries, rows, "more nodes are")) else ""),
        )
    ]


def _omitted(queries: Queries, rows: Sequence[object], words: str) -> str:
    """Return the number of rows that a table has no room for; empty if it shows all."""
    left = len(rows) - queries.options.rows
    return f"{left} {words} omitted." if left > 0 else ""


def _clocks(queries: Queries) -> list[Block]:
    """Report clocks of nodes and ranks that are ahead of the receiver's clock, which no delay can explain."""
    blocks: list[Block] = []
    which = f'{queries.subject.node_matchers}, source=~"cpu|nvidia"'  # the collectors that run most often
    last = f"stallscope_exporter_source_last_success_timestamp_seconds{{{which}}}"
    ahead = f"max by (instance) ({last}) - max by (instance) (timestamp({last}))"
    blocks += _ahead(queries, ahead, "instance", "node", "the server's")
    if queries.subject.run is not None:
        which = queries.subject.rank_matchers
        step, push = (f"stallscope_training_last_{what}_timestamp_seconds{{{which}}}" for what in ("step", "push"))
        blocks += _ahead(queries, f"max by (rank) ({step} - {push})", "rank", "rank", "its exporter's")
    return blocks


def _ahead(queries: Queries, expression: str, label: str, kind: str, whose: str) -> list[Block]:
    resolution = queries.step_for(_CLOCK_CHECKS)
    lead = queries.over_time("max_over_time", expression, resolution=resolution)
    most = queries.instant(f"topk(3, {lead} > {_MIN_CLOCK_LEAD})")
    return [
        Notice(
            "warning",
            f"The clock of {kind} {each.labels.get(label, '')} was up to {duration(each.value)} ahead of {whose}: "
            "its times and ages are wrong by this much. Synchronize the clocks with NTP.",
        )
        for each in most
    ]
