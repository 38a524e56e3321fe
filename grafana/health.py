"""Dashboard for operators of Stallscope: health and cost of exporters, collectors, report intake and rules."""

from __future__ import annotations

from grafana.builders import choices, variables, verdicts
from grafana.builders.annotations import events
from grafana.builders.choices import CLUSTER, HOST
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import GREEN, ORANGE, RED, Text, by_name, limit_line, texts
from grafana.builders.links import runbook, to_dashboard
from grafana.builders.panel import Panel, stat, state_timeline, table, time_series
from grafana.builders.query import Query

EXPORTER = f'job=~".*stallscope.*", {HOST}'
"""Matcher of exporters in series that every Prometheus target has."""
OWN_RULES = 'rule_group=~".*;stallscope-.*"'
SHOWN = 20
"""Lines per panel."""
OWN_ALERTS = f'alertname=~"Stallscope.+|TrainingTelemetryMissing", cause!="watchdog", {CLUSTER}, instance=~"$instance|"'
"""Alerts on missing exporters have no instance."""
KNOWN = f"0 * count(stallscope_build_info{{{HOST}}})"
"""Zero if an exporter reports; otherwise nothing is known."""
_TO_HOST = to_dashboard("stallscope-host", "Open node", {"instance": "${__field.labels.instance}"})
_NONE_IS_GOOD = texts({"0": Text("0", GREEN)})


def _rate(family: str, *, labels: str = HOST, at: str = "") -> str:
    return f"rate({family}{{{labels}}}[$__rate_interval]{at})"


def _worst(by: str, expression: str) -> str:
    """Select the highest series at the end of the time range, and show them over all of it.

    Args:
        by: labels of the series.
        expression: the PromQL, with `{at}` after each selector or its range.
    """
    return f"{expression.replace('{at}', '')} and on ({by}) topk({SHOWN}, {expression.replace('{at}', ' @ end()')})"


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
        text_of="value_and_name",
        overrides=[by_name("silent", color={"mode": "fixed", "fixedColor": RED}, mappings=_NONE_IS_GOOD)],
        no_value="No exporter is a target.",
    )


def _sources() -> Panel:
    return stat(
        "Failing collectors",
        "Collectors, on all nodes, whose last poll failed. They are listed below with the reasons.",
        [Query(f"count(stallscope_exporter_source_up{{{HOST}}} == 0) or {KNOWN}", instant=True)],
        unit="none",
        colour={"mode": "fixed", "fixedColor": RED},
        mappings=_NONE_IS_GOOD,
    )


def _stuck() -> Panel:
    return stat(
        "Stuck threads",
        "Threads in a call that has not returned, for example because a driver hangs. Restart the exporter once the "
        "driver works again.",
        [Query(f"sum(stallscope_exporter_source_stuck_threads{{{HOST}}}) or {KNOWN}", instant=True)],
        unit="none",
        colour={"mode": "fixed", "fixedColor": RED},
        mappings=_NONE_IS_GOOD,
    )


def _thresholds() -> Panel:
    missing = 'ALERTS{alertname="StallscopeThresholdMissing"}'
    return stat(
        "Threshold alerts",
        "Alerts on missing or duplicated thresholds: rules that use them return nothing. Restore them in "
        "prometheus/rules/thresholds.yml.",
        [Query(f"count(count by (name) ({missing})) or 0 * count(stallscope:threshold)", instant=True)],
        unit="none",
        colour={"mode": "fixed", "fixedColor": RED},
        mappings=_NONE_IS_GOOD,
        no_value="No rules.",
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
            "name": "Name",
            "reason": "Reason",
            "limit": "Limit",
        },
        width=12,
        overrides=[
            by_name(
                "Alert",
                links=[runbook()],
            ),
            by_name(
                "State",
                mappings=texts({"firing": Text("firing", RED), "pending": Text("pending", ORANGE)}),
                custom__width=90,
                **verdicts.in_colour(),
            ),
            by_name(
                "Node", links=[to_dashboard("stallscope-host", "Open node", {"instance": "${__data.fields.Node}"})]
            ),
        ],
        no_value="No firing alerts.",
    )


def _failing_sources() -> Panel:
    return table(
        "Collectors that fail now",
        "Failing collectors by node, with the time since their last success. The exporter's log has the reason. "
        "--no-collector disables a collector.",
        [
            Query(
                f"topk(100, max by (instance, source) (stallscope_exporter_source_up{{{HOST}}} == 0))",
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
        no_value="No collector fails.",
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


def _reading_time() -> Panel:
    mean = (
        f"sum by (source) ({_rate('stallscope_exporter_source_reading_seconds_total')}) / "
        f"(sum by (source) ({_rate('stallscope_exporter_source_readings_total')}) > 0)"
    )
    return time_series(
        "Poll duration, mean by collector",
        "Wall time of one poll, over all nodes. A collector that becomes slow waits for a driver or a file system.",
        [Query(mean, "{{source}}")],
        unit="s",
    )


def _slowest() -> Panel:
    return time_series(
        "Slowest polls now",
        "Duration of the last poll of the slowest collectors and nodes. If one node stands out, check it first.",
        [
            Query(
                _worst(
                    "instance, source",
                    f"max by (instance, source) (stallscope_exporter_source_read_seconds{{{HOST}}}{{at}})",
                ),
                "{{instance}} {{source}}",
            )
        ],
        unit="s",
        links=[_TO_HOST],
    )


def _failures() -> Panel:
    return time_series(
        "Failed polls per second, by collector",
        "Polls that raised an error, returned invalid data or hung. Read the exporter's log on the nodes listed above.",
        [Query(f"sum by (source) ({_rate('stallscope_exporter_source_failures_total')})", "{{source}}")],
        unit="short",
    )


def _rejected_values() -> Panel:
    return time_series(
        "Rejected values per second",
        "Implausible values of a driver, by reason. They are not exported. Update the driver, or reset the GPU.",
        [
            Query(
                f"sum by (source, reason) ({_rate('stallscope_exporter_values_rejected_total')})",
                "{{source}} {{reason}}",
            )
        ],
        unit="short",
    )


def _attribution() -> Panel:
    return time_series(
        "Failed attributions per second",
        "Failed attempts to find the holder of a GPU, by reason. Check the exporter's access to processes and to the "
        "orchestrator's socket.",
        [Query(f"sum by (reason) ({_rate('stallscope_exporter_attribution_errors_total')})", "{{reason}}")],
        unit="short",
    )


def _driver_calls() -> Panel:
    return time_series(
        "Driver calls per second",
        "Calls to GPU drivers, mean of the nodes. The rate grows with the number of GPUs and falls with a longer "
        "--sampling.interval.",
        [
            Query(
                f"avg by (source) (sum by (instance, source) ({_rate('stallscope_exporter_driver_calls_total')}))",
                "{{source}}",
            )
        ],
        unit="short",
    )


def _reports() -> Panel:
    return time_series(
        "Reports per second, by receiver",
        "Received training reports. If the rate falls while runs continue, reports are lost: check the rejected "
        "reports, and the address to which the runs send.",
        [Query(f"sum by (transport) ({_rate('stallscope_exporter_reports_total')})", "{{transport}}")],
        unit="short",
    )


def _rejected_reports() -> Panel:
    return time_series(
        "Rejected reports per second, by reason",
        "Rejected reports. Fix the sender, or raise the limit in the reason.",
        [Query(f"sum by (reason) ({_rate('stallscope_exporter_reports_rejected_total')})", "{{reason}}")],
        unit="short",
    )


def _shim_drops() -> Panel:
    return time_series(
        "Reports that shims could not send, per second",
        "By cause, as the shims count them. Check STALLSCOPE_ADDRESS and that the exporter runs on that node.",
        [Query(f"sum by (cause) ({_rate('stallscope_training_shim_dropped_reports_total')})", "{{cause}}")],
        unit="short",
    )


def _shim_overhead() -> Panel:
    overhead = f"sum by (run) ({_rate('stallscope_training_shim_overhead_seconds_total', at='{at}')})"
    loop = f"sum by (run) ({_rate('stallscope_training_phase_seconds_total', at='{at}')})"
    return time_series(
        "Share of the loop's time spent in the shim",
        f"The {SHOWN} runs with the largest share. It grows with shorter steps and more phases: use fewer phases.",
        [Query(_worst("run", f"{overhead} / ({loop} > 0)"), "{{run}}")],
        unit="percentunit",
        decimals=3,
        links=[to_dashboard("stallscope-run", "Open run", {"run": "${__field.labels.run}"})],
    )


def _runs_held() -> Panel:
    return time_series(
        "Stored runs",
        "Runs stored in exporters, including ended runs until they expire; the nodes with the most.",
        [Query(_worst("instance", f"max by (instance) (stallscope_exporter_runs{{{HOST}}}{{at}})"), "{{instance}}")],
        unit="none",
        links=[_TO_HOST],
    )


def _series() -> Panel:
    return time_series(
        "Series per exporter",
        "Exported series, of the nodes with the most. They cost memory in Prometheus. Many runs or owners cause many "
        "series.",
        [Query(_worst("instance", f"max by (instance) (stallscope_exporter_series{{{HOST}}}{{at}})"), "{{instance}}")],
        unit="short",
        links=[_TO_HOST],
    )


def _series_dropped() -> Panel:
    return time_series(
        "Dropped series per second, by limit",
        "Series dropped because of a limit. Raise that limit, or report fewer values and runs.",
        [Query(f"sum by (limit) ({_rate('stallscope_exporter_series_dropped_total')})", "{{limit}}")],
        unit="short",
    )


def _cpu() -> Panel:
    return time_series(
        "CPU use of exporters",
        "CPUs used by each exporter, of the nodes with the most. If it is too much, raise --sampling.interval.",
        [
            Query(
                _worst(
                    "instance",
                    f"max by (instance) ({_rate('process_cpu_seconds_total', labels=EXPORTER, at='{at}')})",
                ),
                "{{instance}}",
            )
        ],
        unit="percentunit",
        links=[_TO_HOST],
    )


def _cpu_by_collector() -> Panel:
    return time_series(
        "CPU use by collector",
        "CPUs used by the polls of each collector, mean of the nodes. You can disable the most expensive ones.",
        [
            Query(
                "avg by (source) (sum by (instance, source) ("
                f"{_rate('stallscope_exporter_source_cpu_seconds_total')}))",
                "{{source}}",
            )
        ],
        unit="percentunit",
        stacked=True,
    )


def _memory() -> Panel:
    return time_series(
        "Memory of exporters",
        "Resident memory of each exporter, of the nodes with the most. Steady growth is a leak: restart the exporter "
        "and report it.",
        [
            Query(
                _worst("instance", f"max by (instance) (process_resident_memory_bytes{{{EXPORTER}}}{{at}})"),
                "{{instance}}",
            )
        ],
        unit="bytes",
        links=[_TO_HOST],
    )


def _scrape_time() -> Panel:
    return time_series(
        "Scrape duration",
        "Scrape duration of the slowest exporters. A scrape only reads memory: check the node's load and the network.",
        [Query(_worst("instance", f"max by (instance) (scrape_duration_seconds{{{EXPORTER}}}{{at}})"), "{{instance}}")],
        unit="s",
        width=8,
        links=[_TO_HOST],
    )


def _missed(window: str, at: str = "") -> str:
    return f"1 - min by (instance) (avg_over_time(up{{{EXPORTER}}}[{window}]{at})) > 0"


def _missed_scrapes() -> Panel:
    return time_series(
        "Failed scrapes",
        "Share of failed scrapes, of exporters with any. The rules tolerate a single one.",
        [
            Query(
                _missed("$__rate_interval") + f" and on (instance) topk({SHOWN}, {_missed('$__range', ' @ end()')})",
                "{{instance}}",
            )
        ],
        unit="percentunit",
        maximum=1,
        width=8,
        links=[_TO_HOST],
    )


def _refused_requests() -> Panel:
    return time_series(
        "Rejected requests per second, by reason",
        "Requests and connections that the exporters' web servers rejected. An exporter's log has the client's "
        "address: correct its user, certificate or scheme, or block the address.",
        [Query(f"sum by (reason) ({_rate('stallscope_exporter_requests_refused_total')})", "{{reason}}")],
        unit="short",
        width=8,
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
        links=[_TO_HOST],
    )


def _rule_time() -> Panel:
    return time_series(
        "Evaluation time of rule groups",
        "Duration of each group's last evaluation; dashed: the shortest interval. Near it, verdicts are late: raise "
        "evaluation_interval, or split the fleet over several servers. Needs Prometheus to scrape itself.",
        [
            Query(
                f"max by (rule_group) (prometheus_rule_group_last_duration_seconds{{{OWN_RULES}}})",
                "{{rule_group}}",
            ),
            Query(f"min(prometheus_rule_group_interval_seconds{{{OWN_RULES}}})", "shortest interval"),
        ],
        unit="s",
        overrides=limit_line("shortest interval"),
    )


def _rule_share() -> Panel:
    return time_series(
        "Evaluation time relative to the interval",
        "Share of its interval that each group takes to evaluate. Needs Prometheus to scrape itself.",
        [
            Query(
                f"max by (rule_group) (prometheus_rule_group_last_duration_seconds{{{OWN_RULES}}}) / "
                f"max by (rule_group) (prometheus_rule_group_interval_seconds{{{OWN_RULES}}})",
                "{{rule_group}}",
            )
        ],
        unit="percentunit",
    )


def _rule_failures() -> Panel:
    return time_series(
        "Failed or missed rule evaluations per second",
        "There should be none: read the Prometheus log. Needs Prometheus to scrape itself.",
        [
            Query(
                "sum by (rule_group) ("
                f"rate(prometheus_rule_evaluation_failures_total{{{OWN_RULES}}}[$__rate_interval]))",
                "{{rule_group}} failed",
            ),
            Query(
                "sum by (rule_group) ("
                f"rate(prometheus_rule_group_iterations_missed_total{{{OWN_RULES}}}[$__rate_interval]))",
                "{{rule_group}} missed",
            ),
        ],
        unit="short",
    )


def _rule_series() -> Panel:
    return time_series(
        "Series recorded by rules",
        "Samples of each group's last evaluation. The number grows with GPUs and with problems. Needs Prometheus to "
        "scrape itself.",
        [
            Query(
                f"max by (rule_group) (prometheus_rule_group_last_evaluation_samples{{{OWN_RULES}}})",
                "{{rule_group}}",
            )
        ],
        unit="short",
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
                    _stuck(),
                    _thresholds(),
                    _ranks(),
                    _dropped(),
                    _own_alerts(),
                    _failing_sources(),
                    _missing_evidence(),
                    _builds(),
                ),
            ),
            Row("Scrapes", (_scrape_time(), _missed_scrapes(), _refused_requests(), _up())),
            Row(
                "Collectors",
                (_reading_time(), _slowest(), _failures(), _rejected_values(), _attribution(), _driver_calls()),
            ),
            Row(
                "Training reports",
                (_reports(), _rejected_reports(), _shim_drops(), _shim_overhead(), _runs_held()),
                collapsed=True,
            ),
            Row(
                "Cost of exporters",
                (_cpu(), _cpu_by_collector(), _memory(), _series(), _series_dropped()),
                collapsed=True,
            ),
            Row(
                "Cost of rules",
                (_rule_time(), _rule_share(), _rule_failures(), _rule_series()),
                collapsed=True,
            ),
        ),
        annotations=(
            events(
                "Alerts on Stallscope",
                f'ALERTS{{alertstate="firing", {OWN_ALERTS}}}',
                title="{{alertname}}",
                text="{{instance}} {{source}} {{name}}",
                colour=RED,
                labels="cause,severity",
            ),
        ),
        since="now-3h",
    )
