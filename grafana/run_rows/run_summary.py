"""First screen: the verdict, its remedy, and the possible gain.

It uses only recorded series, so it loads quickly for runs of any size.
"""

from __future__ import annotations

from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import BLUE, ORANGE, RED, Override, Text, by_name, texts
from grafana.builders.links import runbook
from grafana.builders.panel import Panel, bar_gauge, stat, state_timeline, table, time_series
from grafana.builders.query import Query
from grafana.builders.verdicts import (
    VERDICTS,
    by_code,
    cause_colours,
    coded,
    columns,
    culprit_column,
    in_colour,
    remedy_by_cause,
    runbook_by_cause,
    with_culprit,
    with_remedy,
    with_root_remedy,
    with_runbook,
)
from grafana.run_rows.run_queries import (
    BY_RUN,
    CELL_TO_GPU,
    CELL_TO_HOST,
    CELL_TO_RANK,
    RANK_HERE,
    RUN_HERE,
    SHARE_COLOURS,
    TO_COMPARE,
)

_MISSING = {
    "reports": "no fresh reports: see whether the process lives, and where STALLSCOPE_ADDRESS leads",
    "steps": "too few steps yet: wait",
    "warmup": "the run has just started: wait",
    "data_wait": 'phase data_wait is not reported: wrap the loader, or use phase("data_wait")',
    "gpu_idle": "no data from the rank's GPU: see the exporter's health",
}


def _verdict() -> Panel:
    return stat(
        "Verdict",
        "Costliest cause now; hardware faults and stalls take precedence. Grey: data are missing (see the table of "
        "missing data).",
        [Query(coded(f"run:verdict:ratio5m{{{RUN}}}", "cluster", "namespace", "run"), "{{run}}", instant=True)],
        unit="none",
        mappings=by_code(),
        background=True,
        text_of="auto",
        width=8,
        no_value="no active rank",
        links=[TO_COMPARE],
    )


def _lost() -> Panel:
    return stat(
        "GPU time lost",
        "Share of GPU time lost to all causes, mean over the ranks and five minutes. If it is high, start with the "
        "first cause in the table.",
        [Query(f"run:time_lost:ratio5m{{{RUN}}}", "{{run}}", instant=True)],
        unit="percentunit",
        decimals=0,
        colour=SHARE_COLOURS,
        overrides=[Override(("byRegexp", "/.*/"), {"min": 0, "max": 1})],
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
        colour={"mode": "continuous-RdYlGr"},
        overrides=[Override(("byRegexp", "/.*/"), {"min": 0, "max": 1})],
        text_of="auto",
        no_value="too early",
    )


def _change() -> Panel:
    return table(
        "What to change first",
        "Remedy for the verdict, and the rank, GPU, node and root cause if one rank is the culprit. The runbook "
        "describes how to confirm and fix it.",
        [
            Query(
                with_root_remedy(
                    with_runbook(with_culprit(f"max by ({BY_RUN}, cause) (run:verdict:ratio5m{{{RUN}}})", RUN))
                ),
                table=True,
            ),
        ],
        columns={
            "run": "Run",
            "culprit": "Culprit",
            "remedy": "What to change",
            "Value": "Lost to cause",
            "runbook": "Runbook",
        },
        width=16,
        height=4,
        overrides=[
            by_name(
                "What to change",
                mappings=remedy_by_cause(VERDICTS),
                custom__cellOptions={"type": "auto", "wrapText": True},
                custom__minWidth=260,
            ),
            by_name("Run", custom__width=140),
            culprit_column(),
            by_name("Lost to cause", unit="percentunit", decimals=0, custom__width=90),
            _runbook_column(),
        ],
        no_value="No active rank of this run.",
    )


def _runbook_column() -> Override:
    return by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=210)


def _progress() -> Panel:
    return stat(
        "Progress",
        "Current step, and its share of the planned steps if the code reports them.",
        [
            Query(f"run:step:max{{{RUN}}}", "step", instant=True),
            Query(f"run:step:max{{{RUN}}} / run:steps_planned:max{{{RUN}}}", "of planned", instant=True),
        ],
        unit="locale",
        decimals=0,
        text_of="value_and_name",
        overrides=[Override(("byFrameRefID", "B"), {"unit": "percentunit", "decimals": 1})],
        no_value="no step yet",
    )


def _time_left() -> Panel:
    return stat(
        "Time remaining",
        "Time until the planned steps are done, at the rate of the last 30 minutes including saves and evaluations. "
        "Empty if the code reports no number of steps, or while no step completes.",
        [Query(f"run:time_left:seconds{{{RUN}}}", "{{run}}", instant=True)],
        unit="s",
        decimals=1,
        text_of="auto",
        no_value="unknown",
    )


def _causes() -> Panel:
    share = f"max by ({BY_RUN}, cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)"
    hours = f"24 * {share} * on ({BY_RUN}) group_left () run:gpus:count{{{RUN}}}"
    return table(
        "All causes, costliest first",
        "Every cause that costs GPU time now, with its remedy. One cause may hide others: fix the first, then look "
        "again.",
        [
            Query(with_remedy(with_runbook(share)), table=True),
            Query(with_remedy(with_runbook(f"1 / (1 - ({share} < 1))")), table=True),
            Query(with_remedy(with_runbook(hours)), table=True),
        ],
        columns={
            "run": "Run",
            "cause": "Verdict",
            "Value #A": "Lost",
            "Value #B": "Faster by",
            "Value #C": "GPU-hours per day",
            "remedy": "What to change",
            "runbook": "Runbook",
        },
        width=16,
        height=7,
        sort="Lost",
        overrides=[
            *columns(),
            by_name("Run", custom__width=140),
            by_name("Lost", unit="percentunit", decimals=1, custom__width=70),
            by_name("Faster by", unit="suffix: times", decimals=2, custom__width=85),
            by_name("GPU-hours per day", decimals=1, custom__width=125),
            _runbook_column(),
        ],
        no_value="No loss.",
    )


def _alerts() -> Panel:
    labels = "alertname, severity, run, rank, instance, gpu"
    return table(
        "Firing alerts",
        "Alerts on the run and on its nodes and GPUs. Click a name for its runbook.",
        [
            Query(
                f'max by ({labels}) (ALERTS{{alertstate="firing", cause!="", {RUN}}}'
                f' or (ALERTS{{alertstate="firing", cause!="", {HOST}, run=""}}'
                f" and on (cluster, instance) run_node:known:info{{{RUN_HERE}}}))",
                table=True,
            )
        ],
        columns={
            "alertname": "Alert",
            "severity": "Severity",
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
        },
        unit="none",
        width=8,
        height=7,
        overrides=[
            by_name("Alert", links=[runbook()], custom__minWidth=180),
            by_name(
                "Severity",
                mappings=texts(
                    {
                        "critical": Text("critical", RED),
                        "warning": Text("warning", ORANGE),
                        "info": Text("info", BLUE),
                    }
                ),
                custom__width=80,
                **in_colour(),
            ),
            by_name("Rank", links=[CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[CELL_TO_HOST]),
            by_name("GPU", links=[CELL_TO_GPU], custom__width=55),
        ],
        no_value="No firing alerts.",
    )


def _verdicts() -> Panel:
    return state_timeline(
        "Verdict over time",
        "Costliest cause over time. A gap: no rank was alive, or Prometheus did not scrape.",
        [Query(coded(f"run:verdict:ratio5m{{{RUN}}}", "cluster", "namespace", "run"), "{{run}}")],
        mappings=by_code(),
        height=4,
        show_values=True,
        links=[TO_COMPARE],
    )


def _lost_over_time() -> Panel:
    return time_series(
        "GPU time lost, by cause",
        "Share of the run's GPU time that each cause costs; the mean if several runs are selected. If a cause comes "
        "and goes, compare with the annotations of saves, restarts and alerts.",
        [
            Query(
                f"sum by (cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)"
                f" / on () group_left () count(run:ranks:count{{{RUN}}})",
                "{{cause}}",
            )
        ],
        unit="percentunit",
        stacked=True,
        height=7,
        legend=["mean", "lastNotNull"],
        overrides=cause_colours(),
    )


def _missing() -> Panel:
    return table(
        "Missing data",
        "Reasons why ranks have no verdict, and the number of ranks. Once the data are there, a verdict follows within "
        "a minute or two.",
        [Query(f"count by (run, missing) (rank:missing:info{{{RANK_HERE}}})", table=True)],
        columns={"missing": "Missing data and action", "Value": "Ranks"},
        width=7,
        height=7,
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


def _activities() -> Panel:
    return bar_gauge(
        "Ranks by activity",
        "Ranks by activity. If a few ranks have another activity, the other ranks wait for them. If there are fewer "
        "than expected, some are lost.",
        [
            Query(f"sum by (activity) (run_activity:ranks:count{{{RUN}}})", "{{activity}}", instant=True),
            Query(f"sum(run_world:ranks:count{{{RUN}}})", "all known", instant=True),
        ],
        unit="locale",
        decimals=0,
        width=5,
        height=7,
        colour={"mode": "fixed", "fixedColor": BLUE},
    )


def row() -> Row:
    """Return the first screen, which has no heading."""
    return Row(
        "",
        (
            _verdict(),
            _lost(),
            _gain(),
            _hours(),
            _goodput(),
            _change(),
            _progress(),
            _time_left(),
            _causes(),
            _alerts(),
            _verdicts(),
            _lost_over_time(),
            _missing(),
            _activities(),
        ),
    )
