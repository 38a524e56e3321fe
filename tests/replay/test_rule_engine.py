"""The input of promtool, and the parsing of its report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from stallscope.lab.replay import rule_engine
from stallscope.lab.replay.rule_engine import EngineError, Sample, notation, parse_alerts, parse_samples
from stallscope.lab.replay.series import Series
from tests.rules.rulebook import tool
from tests.scenarios.runner import evaluate, evaluations


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1.0, 1.0, 1.0, 1.0], "1.0+0.0x3"),
        ([0.0, 30.0, 60.0, 90.0, 5.0], "0.0+30.0x3 5.0"),
        ([90.0, 60.0, 30.0], "90.0-30.0x2"),
        ([0.1, 0.2, 0.3, 0.4], "0.1 0.2 0.3 0.4"),
        ([None, None, 2.0, None, None, 3.0], "_x2 2.0 stale _x1 3.0"),
        ([2.0, math.nan, math.nan, 3.0, None], "2.0 _ _ 3.0 stale"),
        ([5.0], "5.0"),
        ([], ""),
        ([1e-07, 123456789.123], "1e-07 123456789.123"),
    ],
)
def test_values_are_written_shortly_and_exactly(values: list[float | None], written: str) -> None:
    assert notation(values) == written


def test_the_engine_reads_every_value_as_it_was_given() -> None:
    values = [0.1, 0.1, 0.1, 1e9 + 1 / 3, 7.0, 14.0, 21.0, None, 3.0]
    given = [Series("metric_total", {"path": 'a "b" {c}, d\\e', "empty": ""}, list(values))]
    answers = evaluate(given, {"metric_total": evaluations(240)}, rule_files=(), groups=()).samples["metric_total"]
    found = [[sample.value for sample in answers[second]] for second in evaluations(240)]
    assert found == [[] if value is None else [value] for value in values]
    assert answers[0][0] == Sample({"__name__": "metric_total", "path": 'a "b" {c}, d\\e'}, 0.1)


def test_a_scrape_that_was_not_made_leaves_the_last_value() -> None:
    given = [Series("unanswered", {}, [1.0, None, 3.0]), Series("unscraped", {}, [1.0, math.nan, 3.0])]
    found = evaluate(given, {"unanswered": [30], "unscraped": [30]}, rule_files=(), groups=()).samples
    assert [sample.value for sample in found["unscraped"][30]] == [1.0]
    assert found["unanswered"][30] == []


def test_samples_are_assigned_to_their_expression() -> None:
    given = [Series("a", {"x": "1"}, [1.0, 2.0]), Series("a", {"x": "2"}, [3.0, 4.0])]
    answers = evaluate(given, {"sum(a)": [0, 30], "-a": [30], "a > 9": [0]}, rule_files=(), groups=()).samples
    assert answers["sum(a)"] == {0: [Sample({}, 4.0)], 30: [Sample({}, 6.0)]}
    assert sorted(sample.value for sample in answers["-a"][30]) == [-4.0, -2.0]
    assert answers["a > 9"] == {0: []}


def judge(series: Sequence[Series], promtool: str) -> None:
    """Evaluate no rules on the series, whether they are read or not."""
    rule_engine.evaluate(
        series,
        {"vector(1)": [0]},
        promtool=promtool,
        rule_files=(),
        groups=(),
        scrape_seconds=30,
        evaluation_seconds=30,
    )


def test_a_refused_expression_is_an_error() -> None:
    given = [Series("a", {"x": "1"}, [1.0]), Series("a", {"x": "2"}, [3.0])]
    with pytest.raises(EngineError, match="many-to-many"):
        evaluate(given, {"a + on () a": [0]}, rule_files=(), groups=())


def test_a_refused_series_is_an_error() -> None:
    with pytest.raises(EngineError, match="parse error"):
        judge([Series("bad-name", {}, [1.0])], tool("promtool"))


def test_a_promtool_that_was_killed_is_an_error_that_names_the_signal(tmp_path: Path) -> None:
    (promtool := tmp_path / "promtool").write_text("#!/bin/sh\nkill -KILL $$\n")
    promtool.chmod(0o755)
    with pytest.raises(EngineError, match="signal 9"):
        judge([], str(promtool))


def test_an_alert_is_read_with_its_words() -> None:
    words = evaluate([], {}, words={"StallscopeWatchdog": [60]}).words["StallscopeWatchdog"][60]
    assert [alert.labels["alertname"] for alert in words] == ["StallscopeWatchdog"]
    assert "summary" in words[0].annotations


@pytest.mark.parametrize("label", ["path", '"path"'])
@pytest.mark.parametrize("value", ["1.5E+00", "1.5"])
@pytest.mark.parametrize("named", [True, False])
def test_the_reports_of_old_and_new_versions_are_read(label: str, value: str, named: bool) -> None:
    head = f'm{{{label}="/"}}' if named else f'{{__name__="m", {label}="/"}}'
    report = (
        "Unit Testing:  x.yml\n   FAILED:\n"
        '    expr: "m{path=\\"/\\"}", time: 1h1m30s,\n        exp: nil\n'
        f'        got: {head} {value}, {{b="]"}} -Inf, {{}} NaN\n'
    )
    ((expression, second, samples),) = parse_samples(report)
    assert (expression, second) == ('m{path="/"}', 3690)
    assert samples[:2] == [Sample({"__name__": "m", "path": "/"}, 1.5), Sample({"b": "]"}, float("-inf"))]
    assert samples[2].value != samples[2].value


def test_a_report_that_cannot_be_read_is_refused() -> None:
    report = '    expr: "m", time: 30s,\n        exp: nil\n        got: surprise\n'
    with pytest.raises(EngineError, match="surprise"):
        list(parse_samples(report))


def test_alerts_are_grouped_by_name_and_moment() -> None:
    one = (
        '    alertname: {0}, time: {1}, \n        exp:[\n            0:\n              Labels:{{unexpected="yes"}}\n'
        "              Annotations:{{}}\n            ], \n        got:[{2}]\n"
    )
    instance = (
        '\n            {0}:\n              Labels:{{alertname="A", run="{0}"}}\n'
        '              Annotations:{{a="[x], \\"y\\" é"}}\n            '
    )
    report = one.format("A", "30s", instance.format(0) + instance.format(1)) + one.format("B", "1m", "")
    first, second = itertools.islice(parse_alerts(report), 2)
    assert first[:2] == ("A", 30)
    assert [alert.labels["run"] for alert in first[2]] == ["0", "1"]
    assert first[2][0].annotations == {"a": '[x], "y" é'}
    assert second == ("B", 60, [])
