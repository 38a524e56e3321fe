"""The bundle fits together: tools accept it, names exist, alerts and runbooks belong to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from stallscope.common.thresholds import default_thresholds, former_thresholds
from stallscope.model.catalogue.causes import CAUSES, Cause, Tier
from tests.known_names import LABELS, RECORDED, is_known, rules, selects_something
from tests.promql_names import names_in
from tests.rules.layers import groups_of
from tests.rules.rulebook import GROUPS, ROOT, RULE_FILES, run_tool

RUNBOOKS = ROOT / "alerts" / "runbooks"
SECTIONS = ("What it means", "Confirm", "What to do", "False positives", "Where the thresholds come from")
CORRECTIVE_WORDS = {
    "TrainingTelemetryMissing": ("STALLSCOPE_ADDRESS", "their logs for warnings"),
    "StallscopeSourceStuck": ("restart", "driver"),
    "StallscopeValuesRejected": ("Update", "reset"),
    "StallscopeSeriesDropped": ("Raise the limit",),
    "StallscopeRulesMissing": ("load every file", "reload"),
    "StallscopeVerdictMissing": ("load every file", "reload"),
    "StallscopeRulesFailing": ("log", "evaluation_interval"),
    "StallscopeExporterDown": ("restart", "port"),
    "StallscopeSourceFailing": ("log", "--no-collector"),
    "StallscopeReportsRejected": ("Fix the sender", "limit"),
    "StallscopeRequestsRefused": ("correct that client", "block its address"),
    "StallscopeExporterUnusable": ("version", "keep the label", "remove one", "label cluster"),
    "StallscopeThresholdMissing": ("Restore", "reload"),
    "StallscopeWatchdog": ("check Prometheus", "Alertmanager"),
}
"""Words of the action that the description of an alert without a cause must name."""


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the bundle with where it stands."""
    for rule in rules():
        yield rule.get("record") or rule["alert"], rule["expr"]
    for page in sorted(RUNBOOKS.glob("*.md")):
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL):
            yield page.name, block


def test_promtool_accepts_the_rules() -> None:
    run_tool("promtool", "check", "rules", "--lint-fatal", *map(str, RULE_FILES))


def test_promtool_accepts_the_configuration_and_finds_every_rule_file() -> None:
    said = run_tool("promtool", "check", "config", str(ROOT / "prometheus" / "prometheus.yml"))
    assert all(path.name in said for path in RULE_FILES), said


def test_nothing_needs_more_than_the_oldest_supported_prometheus() -> None:
    """2.42 refuses labels of a group, an offset of its queries and a limit by group name only in part."""
    groups = [group for path in RULE_FILES for group in groups_of(path)]
    assert [group["name"] for group in groups] == list(GROUPS)
    assert all({"name", "rules"} <= group.keys() <= {"name", "rules", "interval"} for group in groups)


def test_every_metric_is_in_the_catalogue_or_recorded() -> None:
    unknown = {
        (where, metric)
        for where, expression in expressions()
        for metric in names_in(expression).metrics
        if not is_known(metric)
    }
    assert not unknown


def test_every_selector_uses_labels_and_values_that_the_metric_has() -> None:
    wrong = [
        (where, selector)
        for where, expression in expressions()
        for selector in names_in(expression).selectors
        if not selects_something(selector)
    ]
    assert not wrong


def test_every_label_grouped_by_exists() -> None:
    unknown = {
        (where, label) for where, expression in expressions() for label in names_in(expression).grouping_labels - LABELS
    }
    assert not unknown


def test_every_recorded_series_is_used_or_promised() -> None:
    used = {metric for _where, expression in expressions() for metric in names_in(expression).metrics}
    promised = {
        *("gpu_cause:time_lost:ratio5m", "rank:verdict:ratio5m", "run:verdict:ratio5m", "gpu:verdict:ratio5m"),
        *("run:time_lost:ratio5m", "gpu_cause:energy_lost:joules5m", "stallscope:cause:code"),
        "stallscope:cause:info",
        *("run:culprit:info", "run:code:ratio2m"),
    }
    shown = {rule["record"] for group in groups_of(ROOT / "prometheus/rules/totals.yml") for rule in group["rules"]}
    assert promised <= RECORDED
    assert used | promised | shown >= RECORDED


def floors() -> dict[str, str]:
    """Tier by cause, of every cause that may be a verdict."""
    found = [rule["labels"] for rule in rules() if rule.get("record") == "stallscope:verdict_floor:ratio"]
    assert len(found) == len({labels["cause"] for labels in found})
    return {labels["cause"]: labels["tier"] for labels in found}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_a_cause_is_judged_as_the_table_of_causes_says(cause: Cause) -> None:
    assert floors().get(cause.name) == cause.tier
    if cause.alert is None:
        assert not [rule for rule in ALERTS.values() if rule["labels"]["cause"] == cause.name]
    else:
        assert ALERTS[cause.alert]["labels"]["cause"] == cause.name
        assert cause.severity in ALERTS[cause.alert]["labels"]["severity"]


def test_no_rule_knows_a_cause_that_the_table_lacks() -> None:
    assert floors().keys() <= CAUSES.keys()
    own = {name for name in ALERTS if name.startswith("Stallscope")} | {"TrainingTelemetryMissing"}
    assert set(ALERTS) - own == {cause.alert for cause in CAUSES.values()} - {None}


def test_every_tier_has_a_weight_in_the_order_of_the_table() -> None:
    weights = {
        rule["labels"]["tier"]: float(rule["expr"].removeprefix("vector(").removesuffix(")"))
        for rule in rules()
        if rule.get("record") == "stallscope:verdict_tier:weight"
    }
    assert sorted(weights, key=weights.__getitem__, reverse=True) == list(get_args(Tier))


def thresholds_read(rule_set: list[dict[str, Any]]) -> set[str]:
    return {
        matcher.value
        for rule in rule_set
        for selector in names_in(rule["expr"]).selectors
        if selector.metric == "stallscope:threshold"
        for matcher in selector.matchers
    }


def test_each_threshold_is_defined_once_and_read() -> None:
    defined = [rule["labels"]["name"] for rule in rules(RULE_FILES[:1])]
    assert len(defined) == len(set(defined))
    assert thresholds_read([*rules(RULE_FILES[1:])]) == set(defined)


def test_each_threshold_has_a_comment_with_its_source() -> None:
    lines = RULE_FILES[0].read_text().splitlines()
    for number, line in enumerate(lines):
        if "record: stallscope:threshold" in line:
            comment = ""
            for above in reversed(lines[:number]):
                if not above.strip().startswith("#"):
                    break
                comment = above.strip("# ") + " " + comment
            assert re.search(r"\[P\]|\(.+\)", comment), f"line {number + 1}: no source for {line.strip()}"


def constants() -> dict[str, set[str]]:
    """Return the constants of each recording rule whose comment names them with their source."""
    found: dict[str, set[str]] = {}
    for path in RULE_FILES[1:]:
        for comment, name in re.findall(r"((?:      # .*\n)+)      - record: (\S+)", path.read_text()):
            text = comment.replace("\n      #", "")
            for constant, meaning in re.findall(r"Constant (\S+): (.+?)(?=Constant|$)", text):
                assert re.search(r"\[P\]|\(.+\)", meaning), f"{path.name}: no source for {constant} in {name}"
                found.setdefault(name, set()).add(constant)
    return found


def test_a_value_is_a_threshold_or_a_constant_with_its_source() -> None:
    """Elsewhere only counts, percentiles, levels of the catalogue, the weights of tiers, and what units come to."""
    harmless = {*"012345678", "-1", "0.5", "0.95", "0.7", "0.1", "0.99", "1.0", "60", "1.25"}
    explained = constants()
    for rule in rules(RULE_FILES[1:]):
        if "stallscope:cause:code" in rule.values() or "StallscopeThresholdMissing" in rule.values():
            continue  # codes are names in another shape; the number of thresholds is generated
        name = rule.get("record") or rule["alert"]
        text = re.sub(r"\[[^\]]*\]|offset \w+|\"[^\"]*\"", "", rule["expr"])
        values = set(re.findall(r"(?<![\w:.])-?\d+(?:\.\d+)?(?![\w:.])", text))
        assert values <= harmless | explained.get(name, set()), (name, values)


def test_a_former_threshold_is_a_constant_of_the_rule_that_is_named() -> None:
    explained = constants()
    former = former_thresholds()
    assert former
    assert not former.keys() & default_thresholds().keys()
    for name, place in former.items():
        record, file = re.fullmatch(r"(\S+) \((\S+)\)", place).groups()  # type: ignore[union-attr]
        value = re.search(rf"^# {name}: (\S+) in ", RULE_FILES[0].read_text(), re.MULTILINE)[1]  # type: ignore[index]
        assert value in explained[record], (name, value)
        assert f"- record: {record}\n" in RULE_FILES[0].with_name(file).read_text(), name


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_a_runbook_has_its_five_sections_and_a_query(alert: str) -> None:
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert tuple(re.findall(r"(?m)^## (.+)$", text)) == SECTIONS
    assert "```promql" in text.split("## Confirm")[1].split("## What to do")[0]


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_says_what_is_wrong_how_much_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    annotations = rule["annotations"]
    assert set(annotations) - {"lost", "line"} == {"summary", "description", "runbook_url", "dashboard_url"}
    assert re.fullmatch(r"[A-Z][^{}]*\.", annotations["summary"])
    assert "$value" in annotations["description"] + annotations.get("lost", "")
    cause = next((cause for cause in CAUSES.values() if cause.alert == alert), None)
    described = annotations["description"].lower()
    if cause is None:
        assert all(word.lower() in described for word in CORRECTIVE_WORDS[alert])
    elif "$labels.action" not in described:
        remedy = set(re.findall(r"[a-z]{3,}", cause.remedy.lower())) - {"and", "for", "its", "the"}
        assert sum(word.rstrip("s") in described for word in remedy) >= 2, "the description must name the remedy"
    assert annotations["runbook_url"].endswith(f"/alerts/runbooks/{alert}.md")
    assert annotations["dashboard_url"].startswith("/d/stallscope-")


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_is_named_after_its_cause_and_carries_it(alert: str) -> None:
    labels = ALERTS[alert]["labels"]
    words = "".join(word.capitalize() for word in labels["cause"].split("_"))
    assert alert in {f"{subject}{words}" for subject in ("Training", "Gpu", "Host", "Stallscope", "")}
    assert set(re.sub(r"{{.*?}}", " ", labels["severity"]).split()) <= {"critical", "warning", "info"}
    assert "$value" not in labels["severity"]


@pytest.mark.parametrize("alert", sorted(name for name in ALERTS if name.startswith("Training")))
def test_an_experiments_alert_is_capped_at_info(alert: str) -> None:
    assert '{{ if eq $labels.job_class "experiment" }}info{{ else }}' in ALERTS[alert]["labels"]["severity"]


_OBSERVED = re.compile(r"observed|rank:loop:ratio5m|_count\[|run:clock")
_ONLY_TOO_LOW = frozenset({"rank:waits_for_storage:info"})
"""Compared with a lower bound alone: a window that is partly filled names no reason, and says so in its comment."""


def shares_of_nothing(expression: str) -> list[str]:
    """Return the rates of seconds of a GPU or a host, if the expression does not divide by observed time."""
    rates = re.findall(r"rate\((stallscope_(?:gpu|host)_\w*seconds_total)", expression)
    rates = [name for name in rates if "observed" not in name]
    return [] if _OBSERVED.search(expression) else rates


def test_a_rate_of_seconds_is_divided_by_the_time_that_was_observed() -> None:
    assert shares_of_nothing("rate(stallscope_gpu_busy_seconds_total[5m]) > 0.5")
    assert not shares_of_nothing("rate(stallscope_gpu_busy_seconds_total[5m]) / gpu:observed:ratio5m > 0.5")
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    found = {
        name: shares_of_nothing(expression)
        for name, expression in recorded.items()
        if name not in _ONLY_TOO_LOW and "observed" not in name
    }
    assert {name: rates for name, rates in found.items() if rates} == {}
