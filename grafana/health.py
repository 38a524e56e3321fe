"""Dashboard for operators of Stallscope: health and cost of exporters, collectors, report intake and rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grafana.builders import choices, variables, verdicts
from grafana.builders.choices import CLUSTER, HOST
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import GREEN, ORANGE, RED, Text, by_name, texts
from grafana.builders.lines import lines
from grafana.builders.links import runbook, to_dashboard
from grafana.builders.panel import Panel, stat, state_timeline, table, time_series
from grafana.builders.query import Query

EXPORTER = f'job=~".*stallscope.*", {HOST}'
"""Matcher of exporters in series that every Prometheus target has."""
OWN_RULES = 'rule_group=~".*;stallscope-.*"'
SHOWN = 16
"""Rows of the timeline."""
OWN_ALERTS = f'alertname=~"Stallscope.+|TrainingTelemetryMissing", cause!="watchdog", {CLUSTER}, instance=~"$instance|"'
"""Alerts on missing exporters have no instance."""
KNOWN = f"0 * count(stallscope_build_info{{{HOST}}})"
"""Zero if an exporter reports; otherwise nothing is known."""
_TO_HOST = to_dashboard("stallscope-host", "Open node", {"instance": "${__field.labels.instance}"})
_NONE_IS_GOOD = texts({"0": Text("0", GREEN)})


def _rate(family: str, *, labels: str = HOST) -> str:
    return f"rate({family}{{{labels}}}[$__rate_interval])"


def _exporters() -> Panel:
    return stat(
        "Exporters",
        "Stallscope exporters among the Prometheus targets, and those that are down. Read the log of an exporter that "
        "is down.",
        [
            Query(f"count(up{{{EXPORTER}}})", "known", instant=True),
            Query(f"count(up{{{EXPORTER}}} == 0) or 0 * count(up{{{EXPORTER}}})", "silent", instant=True),
        ],
        unit="none",
        width=6,
        text_of="value_and_name",
        overrides=[by_name("silent", color={"mode": "fixed", "fixedColor": RED}, mappings=_NONE_IS_GOOD)],
        no_value="No exporter is a target.",
    )


def _sources() -> Panel:
    return stat(
        "Collectors",
        "Collectors, on all nodes, whose last poll failed (listed below), and threads in a call that has not returned, "
        "for example because a driver hangs. Restart the exporter once the driver works again.",
        [
            Query(f"count(stallscope_exporter_source_up{{{HOST}}} == 0) or {KNOWN}", "failing", instant=True),
            Query(f"sum(stallscope_exporter_source_stuck_threads{{{HOST}}}) or {KNOWN}", "stuck threads", instant=True),
        ],
        unit="none",
        width=6,
        text_of="value_and_name",
        colour={"mode": "fixed", "fixedColor": RED},
        mappings=_NONE_IS_GOOD,
    )


def _ranks() -> Panel:
    return stat(
        "Ranks",
        "Ranks of active runs, and those with enough evidence for a performance verdict.",
        [
            Query(f"count(rank:live:info{{{HOST}}}) or {KNOWN}", "live", instant=True),
            Query(f"count(rank:judged:info{{{HOST}}}) or {KNOWN}", "judged", instant=True),
        ],
        unit="none",
        width=6,
        text_of="value_and_name",
        links=[to_dashboard("stallscope-fleet", "Losses of the fleet", {})],
    )


def _dropped() -> Panel:
    return stat(
        "Dropped series",
        "Series that an exporter dropped in the time range because a limit was reached. Raise the limit listed below.",
        [
            Query(
                f"sum(increase(stallscope_exporter_series_dropped_total{{{HOST}}}[$__range])) or {KNOWN}",
                instant=True,
            )
        ],
        unit="short",
        decimals=0,
        width=6,
        colour={"mode": "fixed", "fixedColor": ORANGE},
        mappings=_NONE_IS_GOOD,
    )


def _own_alerts() -> Panel:
    labels = "alertname, severity, cluster, instance, source, name, reason, limit"
    return table(
        "Alerts on Stallscope itself",
        "Firing and pending alerts on exporters, report intake and rules. Click an alert for its runbook.",
        [
            Query(f"topk(100, max by (alertstate, {labels}) (ALERTS{{{OWN_ALERTS}}}))", table=True),
        ],
        columns={
            "alertname": "Alert",
            "alertstate": "State",
            "severity": "Severity",
            "instance": "Node",
            "source": "Source",
        },
        width=12,
        overrides=[
            by_name(
                "Alert",
                links=[runbook()],
                custom__width=220,
            ),
            by_name("Severity", custom__width=80),
            by_name(
                "State",
                mappings=texts({"firing": Text("firing", RED), "pending": Text("pending", ORANGE)}),
                custom__width=90,
                **verdicts.in_colour(),
            ),
            by_name(
                "Node",
                links=[to_dashboard("stallscope-host", "Open node", {"instance": "${__data.fields.Node}"})],
                custom__minWidth=110,
            ),
            by_name("Source", custom__minWidth=70),
        ],
        no_value="No firing alerts.",
    )


def _failing_sources() -> Panel:
    return table(
        "Collectors and receivers that fail now",
        "Failing collectors by node, with the time since their last success, and receivers of training reports that "
        "are not open. The exporter's log has the reason. --no-collector disables a collector.",
        [
            Query(
                f"topk(100, max by (instance, source) (stallscope_exporter_source_up{{{HOST}}} == 0 "
                f'or label_replace(stallscope_exporter_receiver_up{{{HOST}}} == 0, "source", "reports ($1)", '
                '"transport", "(.+)")))',
                table=True,
            ),
            Query(
                "max by (instance, source) "
                f"(time() - stallscope_exporter_source_last_success_timestamp_seconds{{{HOST}}} "
                f"and stallscope_exporter_source_up{{{HOST}}} == 0)",
                table=True,
            ),
        ],
        columns={"instance": "Node", "source": "Source", "Value #B": "Time since last success"},
        width=12,
        sort="Time since last success",
        overrides=[
            by_name(
                "Node", links=[to_dashboard("stallscope-host", "Open node", {"instance": "${__data.fields.Node}"})]
            ),
            by_name("Time since last success", unit="s"),
        ],
        no_value="No collector or receiver fails.",
    )


def _missing_evidence() -> Panel:
    return time_series(
        "Ranks without a verdict, by missing data",
        "Ranks without a performance verdict, by the data that they do not report. Warm-up ends by itself. For "
        "data_wait, wrap the loader in stallscope.track. For gpu_idle, the exporter must know the GPU.",
        [
            Query(f"count by (missing) (rank:missing:info{{{HOST}}})", "{{missing}}", least_step="1m"),
            Query(f"count(rank:judged:info{{{HOST}}})", "judged", least_step="1m"),
        ],
        unit="none",
    )


def _builds() -> Panel:
    return table(
        "Versions",
        "Exporters by version. Upgrade all to the same version.",
        [Query(f"count by (version, python) (stallscope_build_info{{{HOST}}})", table=True)],
        columns={"version": "Stallscope", "python": "Python", "Value": "Exporters"},
        unit="none",
        width=12,
        sort="Exporters",
    )


def _up() -> Panel:
    return state_timeline(
        "Exporters that were down",
        f"Up to {SHOWN} exporters that are down at the end of the time range or were down within it. If one goes down "
        "repeatedly, it restarts: read its log.",
        [
            Query(
                f"up{{{EXPORTER}}} and on (cluster, job, instance) "
                f"topk({SHOWN}, 1 - avg_over_time(up{{{EXPORTER}}}[$__range] @ end()) > 0)",
                "{{instance}}",
            )
        ],
        mappings=texts({"1": Text("answers", GREEN), "0": Text("silent", RED)}),
        height=5,
        links=[_TO_HOST],
    )


def _line(title: str, description: str, values: str | Mapping[str, str], **options: Any) -> Panel:
    """Draw values of nodes; options as for `lines`."""
    named = {"{{instance}}": values} if isinstance(values, str) else values
    return lines(title, description, named, links=[_TO_HOST] if isinstance(values, str) else [], **options)


def _scrapes() -> tuple[Panel, ...]:
    return (
        _line(
            "Scrape duration",
            "Scrape duration of the slowest exporters. A scrape only reads memory: check the node's load and the "
            "network.",
            f"max by (instance) (scrape_duration_seconds{{{EXPORTER}}})",
            unit="s",
        ),
        _line(
            "Rejected requests per minute, by reason",
            "Requests and connections that the exporters' web servers rejected. An exporter's log has the client's "
            "address: correct its user, certificate or scheme, or block the address.",
            {"{{reason}}": f"60 * sum by (reason) ({_rate('stallscope_exporter_requests_refused_total')})"},
            unit="short",
        ),
    )


def _collectors() -> tuple[Panel, ...]:
    return (
        _line(
            "Slowest polls",
            "Duration of the last poll of the slowest collectors and nodes. If one node stands out, check it first.",
            {
                "{{instance}} {{source}}": "max by (instance, source) "
                f"(stallscope_exporter_source_read_seconds{{{HOST}}})"
            },
            unit="s",
        ),
        _line(
            "Failed polls and rejected values per minute",
            "Polls that raised an error, returned invalid data or hung, and implausible values of a driver, which are "
            "not exported. Read the exporter's log on the nodes listed above; update the driver, or reset the GPU.",
            {
                "{{source}} failed": f"60 * sum by (source) ({_rate('stallscope_exporter_source_failures_total')})",
                "{{source}} {{reason}}": "60 * sum by (source, reason) "
                f"({_rate('stallscope_exporter_values_rejected_total')})",
            },
            unit="short",
        ),
    )


def _reports() -> tuple[Panel, ...]:
    return (
        _line(
            "Reports per second, by receiver",
            "Received training reports. If the rate falls while runs continue, reports are lost: check the rejected "
            "reports, and the address to which the runs send.",
            {"{{transport}}": f"sum by (transport) ({_rate('stallscope_exporter_reports_total')})"},
            unit="short",
        ),
        _line(
            "Rejected reports per minute, by reason",
            "Rejected reports. Fix the sender, or raise the limit in the reason.",
            {"{{reason}}": f"60 * sum by (reason) ({_rate('stallscope_exporter_reports_rejected_total')})"},
            unit="short",
        ),
        _line(
            "Reports that shims could not send, per minute",
            "By cause, as the shims count them. Check STALLSCOPE_ADDRESS and that the exporter runs on that node.",
            {"{{cause}}": f"60 * sum by (cause) ({_rate('stallscope_training_shim_dropped_reports_total')})"},
            unit="short",
        ),
        _line(
            "Share of time spent in the shim",
            "The runs with the largest share. It grows with shorter steps and more phases: use fewer phases.",
            {"{{run}}": f"avg by (run) ({_rate('stallscope_training_shim_overhead_seconds_total')})"},
            unit="percentunit",
            soft_maximum=0.01,
            decimals=2,
        ),
    )


def _cost() -> tuple[Panel, ...]:
    own = "max by (rule_group) (prometheus_rule_group_{}_seconds{{{}}})"
    return (
        _line(
            "CPU use of exporters",
            "CPUs used by each exporter, of the nodes with the most. If it is too much, raise --sampling.interval.",
            f"max by (instance) ({_rate('process_cpu_seconds_total', labels=EXPORTER)})",
            unit="percentunit",
            soft_maximum=0.1,
        ),
        _line(
            "Memory of exporters",
            "Resident memory of each exporter, of the nodes with the most. Steady growth is a leak: restart the "
            "exporter and report it.",
            f"max by (instance) (process_resident_memory_bytes{{{EXPORTER}}})",
            unit="bytes",
        ),
        _line(
            "Series per exporter",
            "Exported series, of the nodes with the most. They cost memory in Prometheus. Many runs or owners cause "
            "many series.",
            f"max by (instance) (stallscope_exporter_series{{{HOST}}})",
            unit="short",
        ),
        _line(
            "Evaluation time of rules relative to the interval",
            "Share of its interval that each rule group takes to evaluate. Near 100 %, verdicts are late: raise "
            "evaluation_interval, or split the fleet over several servers. Needs Prometheus to scrape itself.",
            {"{{rule_group}}": f"{own.format('last_duration', OWN_RULES)} / {own.format('interval', OWN_RULES)}"},
            unit="percentunit",
        ),
    )


def dashboard() -> Dashboard:
    """Compose the dashboard."""
    return Dashboard(
        uid="stallscope-health",
        title="Stallscope / Health",
        description="Health and cost of exporters, collectors, report intake and rules.",
        variables=(variables.datasource(), choices.cluster(), choices.instance()),
        rows=(
            Row(
                "",
                (
                    _exporters(),
                    _sources(),
                    _ranks(),
                    _dropped(),
                    _own_alerts(),
                    _failing_sources(),
                    _missing_evidence(),
                    _builds(),
                ),
            ),
            Row("Scrapes", (_up(), *_scrapes())),
            Row("Collectors", _collectors()),
            Row("Training reports", _reports(), collapsed=True),
            Row("Cost of exporters and rules", _cost(), collapsed=True),
        ),
        since="now-3h",
    )
