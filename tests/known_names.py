"""Every name that an expression may use: series of the catalogue, of the rules and of Prometheus itself, and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stallscope.model.catalogue.metrics import FAMILIES, Family
from tests.promql_names import Matcher, Selector, names_in
from tests.rules.layers import groups_of
from tests.rules.rulebook import CANONICAL_FILES, RULE_FILES

TARGET_LABELS = {"cluster", "job", "instance", "namespace"}
OWN_LABELS = {"cause", "tier", "domain", "missing", "name", "counter", "job_class", "le", "class", "action"} | {
    "title",
    "words",
    "remedy",
    "who",
}
SERVER_SERIES: Mapping[str, set[str]] = {
    "up": set(),
    "scrape_duration_seconds": set(),
    "scrape_samples_scraped": set(),
    "ALERTS": {"alertname", "alertstate", "severity", "unused", "later_run"},
    "ALERTS_FOR_STATE": {"alertname", "severity"},
    "kube_namespace_labels": {"owner"},
    "user:team:info": {"owner", "user"},
    "serving_gpu:server:info": set(),
    "serving:gpus:count": {"server", "cause"},
    "serving:gpus_lost:sum5m": {"server", "cause"},
    "serving_owner:gpus_lost:sum5m": {"user", "cause"},
    "prometheus_rule_evaluation_failures_total": {"rule_group"},
    "prometheus_rule_group_iterations_missed_total": {"rule_group"},
    "prometheus_rule_group_last_duration_seconds": {"rule_group"},
    "prometheus_rule_group_interval_seconds": {"rule_group"},
    "prometheus_rule_group_last_evaluation_samples": {"rule_group"},
    "prometheus_rule_group_rules": {"rule_group"},
}
BY_SERIES_NAME: dict[str, Family] = {series: family for family in FAMILIES.values() for series in family.series_names}
_OF_RECORDED = (
    OWN_LABELS
    | TARGET_LABELS
    | {"gpu", "uuid", "mig", "run", "rank", "measured_by", "reason", "phase", "location", "function"}
)


def rules(paths: tuple[Path, ...] = RULE_FILES) -> list[dict[str, Any]]:
    """Every rule of the files."""
    return [rule for path in paths for group in groups_of(path) for rule in group["rules"]]


def read_by(paths: tuple[Path, ...]) -> frozenset[str]:
    """Return the metrics that the rules and alerts of the files read."""
    return frozenset(metric for rule in rules(paths) for metric in names_in(rule["expr"]).metrics)


READ = read_by(RULE_FILES)
"""Metrics that rules and alerts read."""
RECORDED = frozenset(rule["record"] for rule in rules() if "record" in rule)
_ADAPTED = frozenset(rule["record"] for rule in rules(CANONICAL_FILES))
"""Metrics that the adapters of other exporters record."""
LABELS = frozenset(
    TARGET_LABELS
    | OWN_LABELS
    | {label for family in FAMILIES.values() for label in family.all_labels}
    | {label for labels in SERVER_SERIES.values() for label in labels}
)
"""Every label that a series may have."""


def is_known(metric: str) -> bool:
    """Return True if there is such a series."""
    return metric in BY_SERIES_NAME or metric in RECORDED or metric in _ADAPTED or metric in SERVER_SERIES


def selects_something(selector: Selector) -> bool:
    """Return True if series can have the labels and values of a selector."""
    family = BY_SERIES_NAME.get(selector.metric)
    if family is None:
        known = _OF_RECORDED | SERVER_SERIES.get(selector.metric, set())
        return all(matcher.label in known for matcher in selector.matchers)
    return all(_can_match(matcher, family, selector.metric) for matcher in selector.matchers)


_CHOSEN = {
    "run": {"cluster", "run"},
    "rank": {"cluster", "instance", "run", "rank"},
    "gpu": {"cluster", "instance", "gpu"},
    "card": {"cluster", "instance", "gpu"},
    "pair": {"cluster", "instance", "gpu", "run", "rank"},
    "host": {"cluster", "instance"},
    "node": {"cluster", "instance"},
    "cluster": {"cluster"},
    "owner": {"cluster"},
}


def chosen_by(metric: str) -> frozenset[str]:
    """Those labels of a series that dashboards let choose by: cluster, instance, gpu, run, rank."""
    if metric in BY_SERIES_NAME:
        return frozenset({"cluster", "instance", *BY_SERIES_NAME[metric].all_labels} & _CHOICES)
    if metric.startswith("prometheus_") or metric in ("ALERTS", "ALERTS_FOR_STATE") or ":" not in metric:
        return frozenset()
    subjects = metric.split(":")[0].split("_")
    found: set[str] = set().union(*(_CHOSEN.get(subject, set()) for subject in subjects))
    # A run's ranks, distinguished only by their numbers.
    return frozenset(found - {"instance"} if metric.startswith("run_rank") else found)


_CHOICES = {"cluster", "instance", "gpu", "run", "rank"}


def _can_match(matcher: Matcher, family: Family, series_name: str) -> bool:
    if matcher.label == "le" and series_name.endswith("_bucket"):
        if matcher.operator == "=~":
            return any(re.fullmatch(matcher.value, f"{bound:g}") for bound in family.buckets)
        return float(matcher.value) in family.buckets
    if matcher.label not in (*family.all_labels, *TARGET_LABELS):
        return False
    values = dict(family.values).get(matcher.label)
    return values is None or "$" in matcher.value or set(matcher.value.split("|")) <= {*values, ""}
