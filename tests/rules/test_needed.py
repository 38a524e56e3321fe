"""A story runs with the rules that it needs, and no result depends on the rules that are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stallscope.lab.replay.rule_engine import evaluate
from tests.promql_names import names_in
from tests.rules.layers import groups_of
from tests.rules.needed import fed, rules_of, with_needed_rules
from tests.rules.rulebook import CANONICAL_FILES, GROUPS, INTERVAL, RULE_FILES, tool

RULES = (
    {"record": "bound:ratio", "expr": "vector(0.5)", "labels": {"name": "idle"}},
    {"record": "bound:ratio", "expr": "vector(0.7)", "labels": {"name": "wait"}},
    {"record": "gpu:idle:ratio", "expr": 'gpu_idle > on () group_left () bound:ratio{name="idle"}'},
    {"record": "rank:wait:ratio", "expr": 'rank_wait > on () group_left () bound:ratio{name="wait"}'},
    {"record": "rank:wait_and_idle:ratio", "expr": "rank:wait:ratio + on (gpu) gpu:idle:ratio"},
    {"record": "card:watts:sum", "expr": 'sum({__name__=~"other_power_.+", gpu!=""})'},
    {"alert": "GpuIdle", "expr": "gpu:idle:ratio > 0", "annotations": {"text": '{{ query "rank:wait:ratio" }}'}},
    {"alert": "RankWaits", "expr": 'rank:wait:ratio > 0 unless on () ALERTS{alertname="GpuIdle"}'},
    {"alert": "NoExporter", "expr": "absent(exporter_up)"},
)
CONSTANTS = ["bound:ratio", "bound:ratio"]


def prepared(
    folder: Path,
    series: Sequence[str],
    queries: Sequence[str],
    alerts: Sequence[str],
    rules: Sequence[Mapping[str, Any]] = RULES,
) -> Mapping[str, Any]:
    """Return the test file with the rules and constants that are left."""
    file = folder / f"{len(list(folder.iterdir()))}.yml"  # each file is read once
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    document: dict[str, Any] = {
        "rule_files": [str(file)],
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": each, "values": "1"} for each in series],
                "promql_expr_test": [{"expr": query, "eval_time": "90s"} for query in queries],
                "alert_rule_test": [{"alertname": name, "eval_time": "1m"} for name in alerts],
            }
        ],
    }
    return with_needed_rules(document, folder / "rules")


def needed(folder: Path, series: Sequence[str], *queries: str, alerts: Sequence[str] = ()) -> list[str]:
    """Return the names of the constants and then of the rules that are left."""
    found = prepared(folder, series, queries, alerts)
    inputs = [each["series"] for each in found["tests"][0]["input_series"]]
    return [each.partition("{")[0] for each in inputs if each not in series] + [
        rule.get("record", rule.get("alert"))
        for path in found["rule_files"]
        for group in json.loads(Path(path).read_text())["groups"]
        for rule in group["rules"]
    ]


def left(folder: Path) -> str:
    """Return the text of the rules that are left."""
    (file,) = (folder / "rules").iterdir()
    text = file.read_text()
    file.unlink()
    return text


GPU, RANK = 'gpu_idle{gpu="0"}', 'rank_wait{gpu="0"}'


def test_what_a_query_reads_is_needed_and_what_that_reads_too(tmp_path: Path) -> None:
    assert needed(tmp_path, [GPU, RANK], "sum(rank:wait:ratio)") == ["bound:ratio", "rank:wait:ratio"]


def test_a_matcher_chooses_among_rules_that_record_one_name(tmp_path: Path) -> None:
    assert needed(tmp_path, [], 'bound:ratio{name="wait"}') == CONSTANTS[:1]
    assert needed(tmp_path, [], 'bound:ratio{name=~"wait|idle"}') == CONSTANTS


def test_rules_that_record_numbers_become_series_until_the_last_expectation(tmp_path: Path) -> None:
    found = prepared(tmp_path, [], ["bound:ratio"], [])
    assert found["rule_files"] == []
    assert found["tests"][0]["input_series"] == [
        {"series": 'bound:ratio{name="idle"}', "values": "0.5+0x4"},
        {"series": 'bound:ratio{name="wait"}', "values": "0.7+0x4"},
    ]


def test_a_scalar_of_a_constant_is_its_number_unless_it_may_have_others(tmp_path: Path) -> None:
    reader = {"record": "gpu:idle:ratio", "expr": 'gpu_idle > scalar(bound:ratio{name="idle"})'}
    second = {**RULES[0], "labels": {"name": "idle", "origin": "mine"}}

    def expression(rules: Sequence[Mapping[str, Any]], *series: str) -> str:
        left = prepared(tmp_path, [GPU, *series], ["gpu:idle:ratio"], [], rules)["rule_files"][0]
        return str(json.loads(Path(left).read_text())["groups"][0]["rules"][0]["expr"])

    assert expression([RULES[0], reader]) == "gpu_idle > 0.5"
    unchanged = [
        expression([reader]),
        expression([RULES[1], reader]),
        expression([RULES[0], second, reader]),
        expression([RULES[0], reader], 'bound:ratio{name="idle", cluster="edge"}'),
    ]
    assert unchanged == [reader["expr"]] * 4


def test_constants_are_the_series_that_prometheus_records() -> None:
    """All rules that record numbers, evaluated by promtool."""
    rules = [rule for path in RULE_FILES for rule in rules_of(path)]
    names = {name for rule in rules if rule.constants for name in rule.records}
    names -= {name for rule in rules if not rule.constants for name in rule.records}
    assert names >= {"stallscope:threshold", "stallscope:cause:code", "stallscope:cause:info"}
    queries = {name: [0, INTERVAL] for name in names}
    said = evaluate(
        [],
        queries,
        promtool=tool("promtool"),
        rule_files=RULE_FILES,
        groups=GROUPS,
        scrape_seconds=INTERVAL,
        evaluation_seconds=INTERVAL,
    )
    for moment in (0, INTERVAL):
        recorded = {
            (json.dumps(sample.labels, sort_keys=True), sample.value)
            for name in names
            for sample in said.samples[name][moment]
        }
        constants = [each for rule in rules for each in rule.constants if each.name in names]
        assert recorded == {
            (json.dumps({"__name__": name, **labels}, sort_keys=True), value) for name, labels, value in constants
        }
        assert len(recorded) == len(constants)


def test_a_rule_without_input_is_not_needed(tmp_path: Path) -> None:
    assert needed(tmp_path, [RANK], "gpu:idle:ratio") == []


def test_a_rule_with_some_of_its_input_is_needed_and_none_that_records_nothing(tmp_path: Path) -> None:
    found = needed(tmp_path, [RANK], "rank:wait_and_idle:ratio")
    assert found == ["bound:ratio", "rank:wait:ratio", "rank:wait_and_idle:ratio"]


def test_a_pattern_of_names_reads_the_series_that_it_matches(tmp_path: Path) -> None:
    power = 'other_power_watts{gpu="0"}'
    assert needed(tmp_path, [power], "card:watts:sum") == ["card:watts:sum"]
    assert needed(tmp_path, ["another_power_watts"], "card:watts:sum") == []


def test_all_alerts_are_needed_without_a_name(tmp_path: Path) -> None:
    everything = [rule.get("record", rule.get("alert")) for rule in RULES]
    without = ("rank:wait_and_idle:ratio", "card:watts:sum")
    assert needed(tmp_path, [GPU, RANK], "count(ALERTS)") == [name for name in everything if name not in without]
    assert needed(tmp_path, [], 'ALERTS{alertstate="firing"}') == ["NoExporter"]


def test_an_alert_needs_the_series_that_its_text_queries(tmp_path: Path) -> None:
    assert "rank:wait:ratio" in needed(tmp_path, [GPU, RANK], alerts=["GpuIdle"])


def test_an_alert_needs_the_alerts_that_silence_it(tmp_path: Path) -> None:
    assert "GpuIdle" in needed(tmp_path, [GPU, RANK], alerts=["RankWaits"])


def test_a_text_that_is_not_expected_is_not_written_and_needs_nothing(tmp_path: Path) -> None:
    alert = 'ALERTS{alertname="GpuIdle"}'
    assert needed(tmp_path, [GPU, RANK], alert) == ["bound:ratio", "gpu:idle:ratio", "GpuIdle"]
    assert "annotations" not in left(tmp_path)
    needed(tmp_path, [GPU, RANK], alerts=["GpuIdle"])
    assert "annotations" in left(tmp_path)


def test_a_query_of_a_pattern_of_names_needs_all_that_record_them(tmp_path: Path) -> None:
    power = 'other_power_watts{gpu="0"}'
    assert len(needed(tmp_path, [GPU, RANK, power], '{__name__=~".+"}')) == len(RULES)
    found = needed(tmp_path, [GPU, RANK], '{__name__=~"rank:wait:.+|ALERTS_.*"}')
    assert found == [*CONSTANTS, "gpu:idle:ratio", "rank:wait:ratio", "GpuIdle", "RankWaits", "NoExporter"]


def read(folder: Path, series: Sequence[str], *queries: str, alerts: Sequence[str] = (), text: str = "") -> list[str]:
    """Return the input series that are left; the text is that of the alert GpuIdle."""
    rules = [{**rule, "annotations": {"text": text}} if rule.get("alert") == "GpuIdle" else rule for rule in RULES]
    inputs = prepared(folder, series, queries, alerts, rules)["tests"][0]["input_series"]
    return [each["series"] for each in inputs if each["series"] in series]


def test_series_are_left_that_a_rule_or_a_query_reads(tmp_path: Path) -> None:
    power, other = 'other_power_watts{gpu="0"}', 'unread{gpu="0"}'
    series = [GPU, RANK, power, other]
    assert read(tmp_path, series, "gpu:idle:ratio") == [GPU]
    assert read(tmp_path, series, "rank:wait_and_idle:ratio", "unread") == [GPU, RANK, other]
    assert read(tmp_path, series, "card:watts:sum") == [power]
    assert read(tmp_path, series, '{__name__=~"un.+"}') == [other]
    assert read(tmp_path, series, '{gpu="0"}') == series
    assert read(tmp_path, series, alerts=["GpuIdle"]) == [GPU]
    assert read(tmp_path, series, alerts=["GpuIdle"], text='{{ query "unread" }}') == [GPU, other]


def test_a_matcher_chooses_among_series_of_one_name(tmp_path: Path) -> None:
    gone, there, unlabelled = 'state{state="gone"}', 'state{state="there"}', "state"
    query = 'state{state!~"g.+"}'
    assert read(tmp_path, [gone, there, unlabelled], query) == [there, unlabelled]


def test_groups_and_files_keep_their_order_and_settings(tmp_path: Path) -> None:
    document = {
        "rule_files": list(map(str, RULE_FILES)),
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": 'up{job="stallscope"}'}],
                "promql_expr_test": [{"expr": "ALERTS", "eval_time": "1m"}],
            }
        ],
    }
    groups = [groups_of(Path(path))[0] for path in with_needed_rules(document, tmp_path)["rule_files"]]
    names = [group["name"] for group in groups]
    assert names == [name for name in GROUPS if name in names]
    whole = {group["name"]: group for path in RULE_FILES for group in groups_of(path)}
    assert all({**group, "rules": []} == {**whole[group["name"]], "rules": []} for group in groups)


def test_rules_that_are_left_out_record_nothing() -> None:
    """All rules of the bundle without a series: what records then is never left out."""
    files = (*CANONICAL_FILES, *RULE_FILES)
    recorded = 'count by (__name__, alertname) ({__name__=~".+"})'
    seconds = range(0, 601, INTERVAL)
    said = evaluate(
        [],
        {recorded: seconds},
        promtool=tool("promtool"),
        rule_files=files,
        groups=[groups_of(path)[0]["name"] for path in files],
        scrape_seconds=INTERVAL,
        evaluation_seconds=INTERVAL,
    )
    found = {
        (sample.name, sample.labels.get("alertname"))
        for samples in said.samples[recorded].values()
        for sample in samples
    }
    kept = fed([rule for path in files for rule in rules_of(path)], [])
    expected = {(name, rule.labels.get("alertname")) for rule in kept for name in rule.records}
    assert found <= expected
    assert ("stallscope:threshold", None) in found


def test_every_selector_of_a_rule_has_a_name_or_a_pattern_of_names() -> None:
    for path in (*CANONICAL_FILES, *RULE_FILES):
        for rule in rules_of(path):
            nameless = [each for each in names_in(rule.source["expr"]).selectors if not each.metric]
            assert bool(nameless) == bool(rule.reads_matching), rule.source
