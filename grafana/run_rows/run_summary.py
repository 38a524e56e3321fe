"""First screen: the verdict, its remedy, and the possible gain.

It uses only recorded series, so it loads quickly for runs of any size.
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

_OF_NODES = f'{HOST}, run=""'
ALERTS = f"({firing(RUN)} or ({firing(_OF_NODES)} and on (cluster, instance) run_node:known:info{{{RUN_HERE}}}))"
_CHECKPOINT, _START = 1011, 1012
_EVENTS = {str(_CHECKPOINT): Text("checkpoint", GREY), str(_START): Text("start", BLUE)}
"""Texts of numbers that no verdict and no severity has."""
_MISSING = {
    "reports": "no fresh reports: see whether the process lives, and where STALLSCOPE_ADDRESS leads",
    "steps": "too few steps yet: wait",
    "warmup": "the run has just started: wait",
    "data_wait": 'phase data_wait is not reported: wrap the loader, or use phase("data_wait")',
    "gpu_idle": "no data from the rank's GPU: see the exporter's health",
}


def _lost() -> Panel:
    return stat(
        "GPU time lost",
        "Share of GPU time lost to all causes, mean over the ranks and five minutes. If it is high, start with the "
        "first cause in the table.",
        [Query(f"run:time_lost:ratio5m{{{RUN}}}", "{{run}}", instant=True)],
        unit="percentunit",
        decimals=0,
        text_of="auto",
    )


def _gain() -> Panel:
    return stat(
        "Possible speedup",
        "Speed of the run without any loss, relative to now: 1 / (1 - share lost). The table shows the speedup by "
        "cause. Empty while the run completes no steps.",
        [Query(f"1 / (1 - (run:time_lost:ratio5m{{{RUN}}} < 1))", "{{run}}", instant=True)],
        unit="suffix: times",
        decimals=2,
        text_of="auto",
        no_value="unknown",
    )


def _hours() -> Panel:
    return stat(
        "GPU-hours lost per day",
        "Loss on all GPUs of the run, and so the possible gain. Compare it with the effort of the change.",
        [
            Query(
                f"24 * run:time_lost:ratio5m{{{RUN}}} * on ({BY_RUN}) group_left () run:gpus:count{{{RUN}}}",
                "{{run}}",
                instant=True,
            )
        ],
        unit="short",
        decimals=1,
        text_of="auto",
        no_value="no GPU",
    )


def _goodput() -> Panel:
    return stat(
        "Goodput",
        "Productive step time relative to wall time in the last hour, without waits, saves, restarts and repeated "
        "steps. If it is low but little GPU time is lost, check saves and restarts.",
        [Query(f"run:goodput:ratio1h{{{RUN}}}", "{{run}}", instant=True)],
        unit="percentunit",
        decimals=0,
        text_of="auto",
        no_value="too early",
    )


def _runbook_column() -> Override:
    return by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=210)


def _progress() -> Panel:
    return stat(
        "Progress",
        "Current step, and the time until the planned steps are done at the rate of the last 30 minutes, if the code "
        "reports their number.",
        [
            Query(f"max(run:step:max{{{RUN}}})", "step", instant=True),
            Query(f"max(run:time_left:seconds{{{RUN}}})", "remaining", instant=True),
        ],
        unit="locale",
        decimals=0,
        width=8,
        text_of="value_and_name",
        overrides=[
            by_name("remaining", unit="s", decimals=1),
        ],
        no_value="no step yet",
    )


def _missing() -> Panel:
    return table(
        "Missing data",
        "Reasons why ranks have no verdict, and the number of ranks. Once the data are there, a verdict follows within "
        "a minute or two.",
        [Query(f"count by (run, missing) (rank:missing:info{{{RANK_HERE}}})", table=True)],
        columns={"missing": "Missing data and action", "Value": "Ranks"},
        width=12,
        sort="Ranks",
        overrides=[
            by_name(
                "Missing data and action",
                mappings=texts({name: Text(text) for name, text in _MISSING.items()}),
                custom__cellOptions={"type": "auto", "wrapText": True},
            ),
            by_name("Ranks", custom__width=65),
        ],
        no_value="No missing data.",
    )


def _causes() -> Panel:
    share = f"max by ({BY_RUN}, cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)"
    return table(
        "All causes, costliest first",
        "Every cause that costs GPU time now, with its remedy. One cause may hide others: fix the first, then look "
        "again.",
        [Query(with_remedy(with_runbook(share)), table=True)],
        columns={
            "run": "Run",
            "cause": "Verdict",
            "Value": "Lost",
            "remedy": "What to change",
            "runbook": "Runbook",
        },
        height=5,
        sort="Lost",
        overrides=[
            *columns(),
            by_name("Run", custom__width=130),
            by_name("Lost", unit="percentunit", decimals=1, custom__width=70),
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
            _lost(),
            _hours(),
            _gain(),
            _goodput(),
            _progress(),
            _causes(),
            _timeline(),
        ),
    )


def evidence() -> Row:
    """Return the loss over time, alerts and missing data."""
    return Row("Loss over time, alerts and missing data", (_lost_over_time(), _missing(), _alerts()))
