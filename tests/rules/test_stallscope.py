"""Stallscope's own alerts: nothing that it fails at may look like health."""

from __future__ import annotations

from collections.abc import Iterable

from tests.rules.rulebook import (
    LENGTH,
    ROOT,
    RULE_FILES,
    SHARED,
    TARGET,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_until,
    node,
    rank,
    scrapes,
    series,
    steady,
    until,
)

FEW = tuple(path for path in RULE_FILES if path.stem in (*SHARED, "goodput", "hours", "verdicts", "stallscope"))
"""The rules that find and judge subjects, without any cause."""
OWN = ROOT / "alerts" / "stallscope.yml"


def own(name: str, values: str, instance: str, **labels: str) -> tuple[str, str]:
    return series(f"stallscope_exporter_{name}", values, job="stallscope", instance=instance, **labels)


def check_alerts(
    rulebook: Rulebook, story: Story, expected: Iterable[Labels], *, at: str = "50m", by: str = "alertname, instance"
) -> None:
    """Expect exactly these of Stallscope's alerts, except the watchdog and those on rules, which are few here."""
    other = "Stallscope(Watchdog|(Rules|Threshold)Missing)"
    firing = f'ALERTS{{alertstate="firing", alertname=~"Stallscope.+", alertname!~"{other}"}}'
    rulebook.check(story, {f"count by ({by}) ({firing})": [(labels, 1) for labels in expected]}, at=at, rule_files=FEW)


def test_trouble_of_an_exporter_raises_an_alert(rulebook: Rulebook) -> None:
    story = [
        *exporter(),
        own("source_up", until(40), "source", source="disk"),
        own("source_up", "1+0x96 0 1+0x23", "source for a moment", source="disk"),
        own("receiver_up", until(40), "receiver", transport="udp"),
        own("receiver_up", steady(1), "open receiver", transport="unix"),
        own("source_stuck_threads", until(40, 0, 1), "stuck", source="nvidia"),
        own("source_stuck_threads", steady(0), "not stuck", source="nvidia"),
        own("reports_rejected_total", growing(0.02), "reports", reason="too_large"),
        own("requests_refused_total", growing(0.02), "requests", reason="credentials"),
        own("requests_refused_total", growing_until(40), "requests for a while", reason="credentials"),
        own("values_rejected_total", growing(0.02), "values", source="nvidia", reason="backwards"),
        own("values_rejected_total", steady(4), "values long ago", source="nvidia", reason="backwards"),
        own("series_dropped_total", growing(0.2), "series", limit="runs"),
        own("series_dropped_total", steady(7), "series long ago", limit="runs"),
    ]
    check_alerts(
        rulebook,
        story,
        [
            {"alertname": "StallscopeSourceFailing", "instance": "source"},
            {"alertname": "StallscopeSourceFailing", "instance": "receiver"},
            {"alertname": "StallscopeSourceStuck", "instance": "stuck"},
            {"alertname": "StallscopeReportsRejected", "instance": "reports"},
            {"alertname": "StallscopeRequestsRefused", "instance": "requests"},
            {"alertname": "StallscopeValuesRejected", "instance": "values"},
            {"alertname": "StallscopeSeriesDropped", "instance": "series"},
        ],
    )


def test_an_exporter_that_is_down_raises_an_alert_and_so_does_a_missing_one(rulebook: Rulebook) -> None:
    up = {"job": "stallscope", "instance": "b:19400"}
    check_alerts(
        rulebook,
        [*exporter(), series("up", until(40), **up)],
        [{"alertname": "StallscopeExporterDown", "instance": "b:19400"}],
    )
    check_alerts(
        rulebook,
        [*exporter(), series("up", "1+0x96 0+0x2 1+0x20", **up)],
        [],
    )
    check_alerts(
        rulebook, [series("up", steady(1), job="node", instance="c")], [{"alertname": "StallscopeExporterDown"}]
    )


def two_nodes(stops: float | None, *, step_seconds: float = 1.0) -> Story:
    """A run over two nodes, of which the second dies in minute 40; the first's rank stops then, or goes on."""
    last = growing(1) if stops is None else growing_until(stops)
    story = exporter() + rank(0, last_step=last) + gpu()
    story += [
        series(f"stallscope_training_step_seconds_{suffix}", values, run="train", rank="0", **TARGET)
        for suffix, values in (("sum", growing(1)),)
    ]
    story = [(name, growing(1 / step_seconds) if "step_seconds_count" in name else values) for name, values in story]
    gone = node("b:19400", rank(1) + gpu())
    story += [(name, f"{values.split('x')[0]}x{scrapes(40)} _x{LENGTH - scrapes(40)}") for name, values in gone]
    return [*story, series("up", until(40), job="stallscope", instance="b:19400")]


def test_a_node_that_is_gone_is_critical_for_a_run_that_stands_still_for_it(rulebook: Rulebook) -> None:
    by = "alertname, severity, instance, run"
    warning = {"alertname": "StallscopeExporterDown", "severity": "warning", "instance": "b:19400"}
    critical = warning | {"severity": "critical", "run": "train"}
    check_alerts(rulebook, two_nodes(40), [warning, critical], by=by)
    check_alerts(rulebook, two_nodes(40), [warning, critical], at="57m", by=by)
    check_alerts(rulebook, two_nodes(None), [warning], by=by)
    check_alerts(rulebook, two_nodes(40, step_seconds=300), [warning], at="46m", by=by)


def test_ranks_and_gpus_without_a_verdict_raise_an_alert(rulebook: Rulebook) -> None:
    """The rules that judge are not loaded here, but a healthy exporter would say nothing either."""
    missing = 'count by (instance) (ALERTS{alertname="StallscopeVerdictMissing", alertstate="firing"})'
    story = exporter() + rank(gpus=()) + node("b", gpu()) + node("c", rank(state="finished", run="ended", gpus=()))
    story += node("d", gpu(up=steady(0)))
    rulebook.check(
        story, {missing: [({"instance": "node1:19400"}, 1), ({"instance": "b"}, 1)]}, rule_files=(RULE_FILES[0], OWN)
    )
    rulebook.check(story, {missing: []}, rule_files=FEW)


def test_an_alert_names_a_rule_file_that_is_not_loaded(rulebook: Rulebook) -> None:
    missing = 'count by (name) (ALERTS{alertname="StallscopeRulesMissing", alertstate="firing"})'
    without = tuple(path for path in RULE_FILES if path.stem not in ("xid", "hardware"))
    rulebook.check(
        exporter(), {missing: [({"name": "hardware.yml"}, 1), ({"name": "xid.yml"}, 1)]}, at="10m", rule_files=without
    )
    rulebook.check(exporter(), {missing: []}, at="10m")


def test_failing_rules_alert_where_prometheus_scrapes_itself(rulebook: Rulebook) -> None:
    def group(metric: str, name: str, values: str) -> tuple[str, str]:
        return series(f"prometheus_rule_{metric}", values, rule_group=f"/etc/rules.yml;{name}", job="prometheus")

    rulebook.check(
        [
            *exporter(),
            group("evaluation_failures_total", "stallscope-input", growing(0.01)),
            group("group_iterations_missed_total", "stallscope-alerts-gpu-use", growing(0.01)),
            group("evaluation_failures_total", "stallscope-time", steady(3)),
            group("evaluation_failures_total", "foreign", growing(0.01)),
        ],
        {
            'count by (rule_group) (ALERTS{alertname="StallscopeRulesFailing", alertstate="firing"})': [
                ({"rule_group": "/etc/rules.yml;stallscope-input"}, 1),
                ({"rule_group": "/etc/rules.yml;stallscope-alerts-gpu-use"}, 1),
            ]
        },
        at="50m",
        rule_files=FEW,
    )


def test_the_watchdog_always_fires(rulebook: Rulebook) -> None:
    rulebook.check(exporter(), {'ALERTS{alertname="StallscopeWatchdog"} * 0': _WATCHDOG}, at="10m", rule_files=FEW)


_WATCHDOG: list[tuple[Labels, float]] = [
    ({"alertname": "StallscopeWatchdog", "alertstate": "firing", "cause": "watchdog", "severity": "info"}, 0)
]
