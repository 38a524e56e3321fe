"""First screen: the verdict, its remedy, and the possible gain.

It uses recorded series and two series of rank 0, so it loads quickly for runs of any size.
"""

from __future__ import annotations

from grafana.builders import Json, answers
from grafana.builders.alerts import alert_table, fired, firing, severities
from grafana.builders.bands import bands
from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import BLUE, GREY, Override, Text, by_name, texts
from grafana.builders.links import runbook
from grafana.builders.panel import Panel, stat, state_timeline, table, time_series
from grafana.builders.query import Query
from grafana.builders.verdicts import (
    by_code,
    cause_colours,
    coded,
    columns,
    runbook_by_cause,
    with_culprit,
    with_remedy,
    with_runbook,
)
from grafana.run_rows.run_queries import (
    BY_RUN,
    CELL_TO_GPU,
    CELL_TO_HOST,
    CELL_TO_RANK,
    RANK_HERE,
    RUN_HERE,
    TO_COMPARE,
)
from stallscope.model.catalogue.causes import MISSING

_OF_NODES = f'{HOST}, run=""'
ALERTS = f"({firing(RUN)} or ({firing(_OF_NODES)} and on (cluster, instance) run_node:known:info{{{RUN_HERE}}}))"
_CHECKPOINT, _START = 1011, 1012
_EVENTS = {str(_CHECKPOINT): Text("checkpoint", GREY), str(_START): Text("start", BLUE)}
"""Texts of numbers that no verdict and no severity has."""


def _numbers() -> Panel:
    lost = f"run:time_lost:ratio5m{{{RUN}}}"
    return stat(
        "In numbers",
        "Share of GPU time lost to all causes over five minutes; the same in GPU-hours per day; the speed without any "
        "loss, relative to now; goodput: productive step time relative to wall time in the last hour; the current "
        "step; and the time until the planned steps are done, if the code reports their number. If little is lost but "
        "the goodput is low, check saves and restarts.",
        [
            Query(expression, name, instant=True)
            for name, expression in (
                ("GPU time lost", f"max({lost})"),
                ("GPU-hours lost a day", f"sum(24 * {lost} * on ({BY_RUN}) group_left () run:gpus:count{{{RUN}}})"),
                ("possible speedup", f"max(1 / (1 - ({lost} < 1)))"),
                ("goodput", f"min(run:goodput:ratio1h{{{RUN}}})"),
                ("step", f"max(run:step:max{{{RUN}}})"),
                ("remaining", f"max(run:time_left:seconds{{{RUN}}})"),
            )
        ],
        unit="locale",
        width=11,
        height=6,
        text_of="value_and_name",
        overrides=[
            by_name("GPU time lost", unit="percentunit", decimals=0),
            by_name("GPU-hours lost a day", decimals=1),
            by_name("possible speedup", unit="suffix:x", decimals=2),
            by_name("goodput", unit="percentunit", decimals=0),
            by_name("step", decimals=0),
            by_name("remaining", unit="s", decimals=1),
        ],
    )


def _runbook_column() -> Override:
    return by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=210)


def _missing() -> Panel:
    return table(
        "Missing data",
        "Reasons why ranks have no verdict, and the number of ranks. Once the data are there, a verdict follows within "
        "a minute or two.",
        [Query(f"count by (run, missing) (rank:missing:info{{{RANK_HERE}}})", table=True)],
        columns={"missing": "Missing data and action", "Value": "Ranks"},
        height=5,
        sort="Ranks",
        overrides=[
            by_name(
                "Missing data and action",
                mappings=texts({name: Text(text) for name, text in MISSING.items()}),
            ),
            by_name("Ranks", custom__width=80),
        ],
        no_value="No missing data.",
    )


def _causes() -> Panel:
    share = f"max by ({BY_RUN}, cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)"
    floor = f"({share} >= bool 0) * on (cause) group_left () max by (cause) (stallscope:verdict_floor:ratio)"
    return table(
        "All causes, costliest first",
        "Every cause that costs GPU time now, the share from which it may be the verdict, and its remedy. One cause "
        "may hide others: fix the first, then look again. The command stallscope why explains the verdict.",
        [Query(with_remedy(with_runbook(expression)), table=True) for expression in (share, floor)],
        columns={
            "run": "Run",
            "cause": "Verdict",
            "Value #A": "Lost",
            "Value #B": "Verdict from",
            "remedy": "What to change",
            "runbook": "Runbook",
        },
        height=5,
        sort="Lost",
        overrides=[
            *columns(),
            by_name("Run", custom__width=100),
            by_name("Lost", unit="percentunit", decimals=1, custom__width=70),
            by_name(
                "Verdict from",
                unit="percentunit",
                decimals=0,
                custom__width=80,
                mappings=texts({"0": Text("any")}),
            ),
            _runbook_column(),
        ],
        no_value="No loss.",
    )


def _timeline() -> Panel:
    """Draw verdict, alerts, checkpoints and restarts of the run on one axis. Rank 0 represents all ranks."""
    saves = f'stallscope_training_phase_occurrences_total{{{RUN_HERE}, rank="0", phase="checkpoint"}}[$__rate_interval]'
    start = f'stallscope_training_start_timestamp_seconds{{{RUN_HERE}, rank="0"}}'
    events = " or ".join(
        f'label_replace({number} * max by (run) ({happens}), "event", "{name}", "", "")'
        for name, number, happens in (
            ("checkpoints", _CHECKPOINT, f"(changes({saves}) - resets({saves}) > 0) ^ 0"),
            ("starts", _START, f"(time() - {start} < $__range_s / 50) ^ 0"),
        )
    )
    return state_timeline(
        "Verdict, alerts, checkpoints and starts",
        "Costliest cause over time, alerts on the run and on its nodes, checkpoints, and starts and restarts. A gap in "
        "the verdict: no rank was alive, or Prometheus did not scrape.",
        [
            Query(coded(f"run:verdict:ratio5m{{{RUN}}}", "cluster", "namespace", "run"), "{{run}}"),
            fired(ALERTS),
            Query(events, "{{event}}"),
        ],
        mappings=[*by_code(), *severities(), *texts(_EVENTS)],
        height=7,
        show_values=True,
        links=[TO_COMPARE],
    )


def _lost_over_time() -> Panel:
    return time_series(
        "GPU time lost, by cause",
        "Share of the run's GPU time that each cause costs; the mean if several runs are selected. If a cause comes "
        "and goes, compare with the checkpoints, starts and alerts above.",
        bands(
            f"sum by (cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)"
            f" / on () group_left () count(run:ranks:count{{{RUN}}})",
            "cause",
        ),
        unit="percentunit",
        width=24,
        stacked=True,
        overrides=cause_colours(),
    )


def _alerts() -> Panel:
    return alert_table(
        "Firing alerts",
        "Alerts on the run and on its nodes and GPUs. Click a name for its runbook.",
        ALERTS,
        {"run": "Run", "rank": "Rank", "instance": "Node", "gpu": "GPU"},
        [
            by_name("Rank", links=[CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[CELL_TO_HOST]),
            by_name("GPU", links=[CELL_TO_GPU], custom__width=55),
        ],
        height=6,
    )


def answer() -> Json:
    """Return the variable with the sentence on the run."""
    verdict = f"run:verdict:ratio5m{{{RUN}}}"
    named = f'label_replace({with_culprit(verdict, RUN)}, "subject", "$1", "run", "(.*)")'
    return answers.variable(
        answers.sentence(named, verdict, BY_RUN, total=f"run:time_lost:ratio5m{{{RUN}}}", with_culprit=True),
        "No rank of this run is active.",
    )


def row() -> Row:
    """Return the first screen, which has no heading."""
    return Row(
        "",
        (
            answers.panel("What this run loses", "The costliest cause, its place, its duration, and what to change."),
            _numbers(),
            _causes(),
            _timeline(),
        ),
    )


def evidence() -> Row:
    """Return the loss over time, alerts and missing data."""
    return Row("Loss over time, alerts and missing data", (_lost_over_time(), _alerts(), _missing()))
