"""Checks that Prometheus has loaded this version's rules and thresholds, evaluates them, and records their results."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from stallscope.common.bundle import bundle_folder
from stallscope.common.thresholds import changed, default_thresholds
from stallscope.tools.doctor.checkup import Finding, failed, ok, skipped, warning
from stallscope.tools.doctor.server import Server, has_rules, listed, optional
from stallscope.tools.doctor.yaml_text import mapping_of

LOAD = (
    "load prometheus/rules/*.yml and alerts/*.yml of this version (rule_files in prometheus.yml; Prometheus 2.42 or "
    "newer), and reload it"
)
"""Remedy for missing rules."""
_OPTIONAL = ("stallscope-alerts-", "stallscope-canonical")
"""Beginnings of the names of groups that the Helm chart can leave out."""
_OF_OPERATOR = "-rulefiles-"
"""Part of the path of rule files that the Prometheus Operator writes."""
_REMEDIES = {
    "native_histograms": "set convert_classic_histograms_to_nhcb to false in the job, or "
    "always_scrape_classic_histograms to true",
    "type_labels": "remove type-and-unit-labels from Prometheus' --enable-feature",
    "labels_overridden": "set honor_labels: true in the job (honorLabels in a PodMonitor)",
    "scraped_twice": "remove one of the scrape jobs",
}
_BUSY = 0.5
"""Share of its interval above which a group's evaluation time is reported."""
_OLD_EVALUATIONS = 3
"""Number of intervals without an evaluation after which a group counts as stopped."""
_OLD_RECORD = 120.0
"""Seconds after which recorded series count as old: the slowest group is evaluated every minute."""


def _rules(server: Server) -> Iterator[Finding]:
    response = optional(server, "rules?exclude_alerts=true")
    if response is None:
        yield skipped("this server does not report its rules; check that vmalert or a ruler evaluates them")
        return
    expected = bundled_groups()
    groups = [each for each in response["groups"] or [] if each["name"] in expected]
    # Several rules may record one name, so each rule counts; of a group that is loaded twice, one copy.
    loaded = {group["name"]: Counter[str](rule["name"] for rule in group["rules"]) for group in groups}
    absent_groups = left_out(response)
    yield from _left_out(absent_groups)
    if missing := sorted(expected.keys() - loaded.keys() - absent_groups):
        yield failed(f"{len(missing)} of {len(expected)} rule groups are not loaded: {listed(missing)}", LOAD)
    for name, rules in sorted(loaded.items()):
        if absent := sorted(expected[name] - rules):
            yield warning(f"group {name} of another version is loaded: missing rules: {listed(absent)}", LOAD)
    twice = [name for name, number in Counter(group["name"] for group in groups).items() if number > 1]
    if twice:
        yield failed(
            f"loaded twice, from two files: {listed(sorted(twice))}", "remove one of the files from rule_files"
        )
    yield from _evaluations(server, groups)
    if loaded:
        number = sum(rules.total() for rules in loaded.values())
        yield ok(f"{len(loaded)} rule groups with {number} rules are loaded")


def left_out(response: Mapping[str, Any]) -> set[str]:
    """Return the groups that an installation by the Prometheus Operator leaves out.

    The operator loads every PrometheusRule that it selects, so an optional group that is missing was not installed.

    Args:
        response: Prometheus' response with its rules.
    """
    files = {group["name"]: group.get("file", "") for group in response["groups"] or []}
    expected = bundled_groups()
    if not any(name in expected and _OF_OPERATOR in file for name, file in files.items()):
        return set()
    return {name for name in expected.keys() - files.keys() if name.startswith(_OPTIONAL)}


def _left_out(groups: Collection[str]) -> Iterator[Finding]:
    alerts = sorted(name for name in groups if name.startswith(_OPTIONAL[0]))
    adapters = sorted(set(groups).difference(alerts))
    remedy = "nothing, if intended; else check prometheusOperator.rules of the Helm chart, and the PrometheusRules"
    if alerts:
        silent = sorted(rule for name in alerts for rule in bundled_groups()[name])
        yield skipped(f"not installed: {listed(alerts)}: these alerts do not fire: {listed(silent)}", remedy)
    if adapters:
        yield skipped(
            f"not installed: {listed(adapters)}: there are no verdicts from the metrics of these exporters", remedy
        )


def _evaluations(server: Server, groups: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    now = time.time() + server.ahead
    for group in groups:
        name, interval = group["name"], float(group["interval"])
        broken = [rule for rule in group["rules"] if rule["health"] == "err"]
        if broken:
            yield failed(
                f"group {name}: {len(broken)} rules fail: {broken[0]['name']}: {broken[0].get('lastError', '')}",
                "many-to-many matching means that two targets export the same series: check honor_labels and jobs; for "
                "other errors, load the rules of this version",
            )
        took = group.get("evaluationTime", 0.0)  # vmalert reports it only per rule
        last = _unix(group.get("lastEvaluation", ""))
        if last > 0 and now - last > _OLD_EVALUATIONS * interval + took:
            yield failed(f"group {name} was last evaluated {now - last:.0f} s ago", "see Prometheus' log and its load")
        if took > _BUSY * interval:
            report = failed if took > interval else warning
            yield report(
                f"group {name} takes {took:.1f} s of its {interval:g} s",
                "give Prometheus more CPUs, or distribute nodes over several servers (prometheus/examples)",
            )


def _thresholds(server: Server) -> Iterator[Finding]:
    there = {labels.get("name", ""): value for labels, value in server.prometheus.query("stallscope:threshold")}
    if missing := sorted(default_thresholds().keys() - there.keys()):
        yield failed(
            f"{len(missing)} thresholds are missing, so rules that use them return nothing: {listed(missing)}",
            "load prometheus/rules/thresholds.yml of this version; your own file needs all its names",
        )
    else:
        yield ok(f"all {len(there)} thresholds are loaded")
    if differing := changed(there):
        yield ok(f"{len(differing)} thresholds differ from this version's defaults: {listed(differing)}")


def _freshness(server: Server) -> Iterator[Finding]:
    newest = server.prometheus.query("max(timestamp(stallscope:threshold))")
    if not newest:
        yield failed("the rules record nothing", LOAD)
        return
    age = time.time() + server.ahead - newest[0].value
    if age > _OLD_RECORD:
        yield failed(
            f"the rules have recorded nothing for {age:.0f} s", "see Prometheus' log, and check that it evaluates rules"
        )
    else:
        yield ok(f"the newest recorded sample is {max(0.0, age):.0f} s old")


def _pages(server: Server) -> Iterator[Finding]:
    found = server.prometheus.query("count by (job, measured_by, reason) (exporter:unusable:info)")
    for labels, number in found:
        reason = labels.get("reason", "")
        remedy = _REMEDIES.get(reason, "see alerts/runbooks/StallscopeExporterUnusable.md")
        yield failed(
            f"{number:.0f} targets of {labels.get('measured_by', 'an exporter')} in job {labels.get('job', '')!r} "
            f"cannot be used: {reason}",
            remedy,
        )
    if not has_rules(server):
        yield skipped("the rules that check the exporters' metrics are not loaded")
    elif not found:
        yield ok("the metrics of all exporters can be used")


@cache
def bundled_groups() -> Mapping[str, Counter[str]]:
    """Return the names of the bundle's rules, by group, and how many rules have each name."""
    found: dict[str, Counter[str]] = {}
    for folder, pattern in (("prometheus", "rules/*.yml"), ("alerts", "*.yml")):
        for file in sorted(bundle_folder(folder).glob(pattern)):
            for group in mapping_of(file.read_text(encoding="utf-8")).get("groups", []):
                found[group["name"]] = Counter(rule.get("record") or rule["alert"] for rule in group["rules"])
    return found


def _unix(moment: str) -> float:
    """Parse Go's RFC 3339 format, with up to nine digits of a second; return Unix time, 0 or less for never."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", moment)
    if found is None:
        return 0.0
    whole, fraction, zone = found.groups("")
    zone = "+00:00" if zone == "Z" else zone
    parsed = dt.datetime.fromisoformat(whole + zone)
    return parsed.timestamp() + float(fraction or 0)


CHECKS = (("rules", _rules), ("thresholds", _thresholds), ("freshness", _freshness), ("pages", _pages))
