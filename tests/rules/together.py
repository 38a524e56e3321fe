"""Run the stories of one test file in shared promtool runs, each story in its own cluster.

Expectations of the same series share a cluster.

promtool needs about 0.10 ms of CPU time per rule and step, and 0.05 ms per input series and step. Most stories need
300 rules, and a rank with its GPU has 40 series. A shared run pays for the rules once, and for the series of each story
up to the end of the longest one. The rules keep clusters apart. A story that does not pass in a shared run runs again
alone; that run decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from stallscope.lab.replay.rule_engine import Alert, in_seconds, parse_alerts
from tests.promql_names import names_in

Document = Mapping[str, Any]
"""A promtool test file of one story: its rule files, interval and one test."""
_MAX_STORIES = 100
_END_TOLERANCE = 0.5
"""Largest difference between the ends of stories in one run, as a share of the first story's end."""
_GUARDED = ("up",)
"""Metrics that alerts pass to absent(): a story without such a metric would see the series of another cluster."""

_EXPECTATIONS_FAILED = re.compile(r"\A(?!.*^ +rule: ).*FAILED:\n +(?:expr|alertname): ", re.DOTALL | re.MULTILINE)
"""Matches promtool's output if rules and file are valid but some expectations are not met."""
_ALERTS_FAILED = re.compile(r"^ +alertname: .*?(?=^ +(?:alertname|expr): |\Z)", re.DOTALL | re.MULTILINE)
_NEVER_FIRES = {"exp_labels": {"unexpected": "yes"}}
"""An expectation that is never met, so that promtool prints the alerts that do fire."""


class Together:
    """The stories that have not run yet, and the stories that have passed.

    Args:
        stories: in the order in which their tests run.
        run: runs promtool on a document and returns its output, whether the test passed or failed.
    """

    def __init__(self, stories: Iterable[Document], run: Callable[[Document], str]) -> None:
        self._pending = {_key(story): story for story in stories if _shareable(story)}
        self._passed: set[str] = set()
        self._run = run

    def passed(self, story: Document) -> bool:
        """Return True if the story passed in a shared run; start that run first if it is pending."""
        key = _key(story)
        if key in self._pending:
            frame, end = _frame(story), _end(story)
            batch = [
                each
                for each, other in self._pending.items()
                # A run lasts as long as its longest story.
                if each != key and _frame(other) == frame and abs(_end(other) - end) < _END_TOLERANCE * end
            ]
            batch = [key, *batch[: _MAX_STORIES - 1]]
            self._try({each: self._pending.pop(each) for each in batch})
        return key in self._passed

    def _try(self, stories: Mapping[str, Document]) -> None:
        if len(stories) < 2:
            return
        first = next(iter(stories.values()))
        tests = {key: story["tests"][0] for key, story in stories.items()}
        inputs = {key: json.dumps(test["input_series"]) for key, test in tests.items()}
        names = {each: f"story-{number}-" for number, each in enumerate(dict.fromkeys(inputs.values()))}
        clusters = {key: names[each] for key, each in inputs.items()}
        of_cluster = {cluster: tests[key] for key, cluster in clusters.items()}
        expected_alerts = {
            (each["alertname"], each["eval_time"]) for test in tests.values() for each in _alert_tests(test)
        }
        everything = {
            "interval": first["tests"][0]["interval"],
            "input_series": [series for cluster, test in of_cluster.items() for series in _series(test, cluster)],
            "promql_expr_test": [query for key, test in tests.items() for query in _queries(test, clusters[key])],
            "alert_rule_test": [
                {"alertname": name, "eval_time": moment, "exp_alerts": [_NEVER_FIRES]}
                for name, moment in sorted(expected_alerts)
            ],
        }
        output = self._run({**first, "tests": [everything]})
        if not expected_alerts and "SUCCESS" in output:
            self._passed |= set(stories)
        elif _EXPECTATIONS_FAILED.search(output):
            unmet = _ALERTS_FAILED.sub("", output)
            fired = {(name, second): alerts for name, second, alerts in parse_alerts(output)}
            self._passed |= {
                key
                for key, cluster in clusters.items()
                if cluster not in unmet and _alerts_match(tests[key], cluster, fired)
            }


def rehearse(items: Iterable[pytest.Item], rulebook: object) -> None:
    """Call each test that needs only a rulebook and its parameters with a rulebook that only records stories."""
    for item in items:
        if not isinstance(item, pytest.Function) or _needs_more(item):
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        try:
            item.function(**parameters, rulebook=rulebook)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception):
            continue  # The test itself fails later and reports the error.


def _needs_more(item: pytest.Function) -> bool:
    parametrized = list(item.iter_markers("parametrize"))
    names = set(item.callspec.params) if hasattr(item, "callspec") else set()
    wanted = set(item._fixtureinfo.argnames)
    return (
        "rulebook" not in wanted
        or wanted != names | {"rulebook"}
        or hasattr(item.function, "hypothesis")
        or any(mark.kwargs.get("indirect") for mark in parametrized)
    )


def _key(story: Document) -> str:
    return json.dumps(story, sort_keys=True)


def _frame(story: Document) -> str:
    """Return the settings that stories must have in common to share a run."""
    return json.dumps([{**story, "tests": []}, story["tests"][0]["interval"]], sort_keys=True)


def _end(story: Document) -> int:
    """Return the time of the last expectation in seconds."""
    test = story["tests"][0]
    return max(in_seconds(check["eval_time"]) for check in (*test.get("promql_expr_test", ()), *_alert_tests(test)))


def _alert_tests(test: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the expectations of alerts, with labels and annotations."""
    found: Iterable[Mapping[str, Any]] = test.get("alert_rule_test", ())
    return found


def _shareable(story: Document) -> bool:
    test = story["tests"][0]
    names = [series["series"] for series in test["input_series"]]
    selectors = [names_in(check["expr"]).selectors for check in test.get("promql_expr_test", ())]
    return (
        set(test) <= {"interval", "input_series", "promql_expr_test", "alert_rule_test"}
        and not any("cluster=" in name for name in names)
        and all(check["exp_alerts"] for check in _alert_tests(test))
        and all(
            each and all(selector.metric and not selector.metric.startswith("stallscope:") for selector in each)
            for each in selectors
        )
        and (
            not any(selector.metric == "ALERTS" for each in selectors for selector in each)
            or all(any(name.startswith(f"{guarded}{{") for name in names) for guarded in _GUARDED)
        )
    )


def _series(test: Mapping[str, Any], cluster: str) -> list[dict[str, str]]:
    """Return the input series with a `cluster` label."""
    return [
        {**series, "series": series["series"].replace("{", f'{{cluster="{cluster}",', 1)}
        for series in test["input_series"]
    ]


def _queries(test: Mapping[str, Any], cluster: str) -> list[dict[str, Any]]:
    """Return the queries limited to one cluster; their results carry no `cluster` label."""
    return [
        {**check, "expr": f'label_replace({_selecting(check["expr"], cluster)}, "cluster", "", "", "")'}
        for check in test.get("promql_expr_test", ())
    ]


def _alerts_match(test: Mapping[str, Any], cluster: str, fired: Mapping[tuple[str, int], Iterable[Alert]]) -> bool:
    """Check that the expected alerts fire in the cluster: their number, labels and annotations."""
    for check in _alert_tests(test):
        name = check["alertname"]
        expected = [
            ({"alertname": name, **each["exp_labels"]}, each["exp_annotations"]) for each in check["exp_alerts"]
        ]
        found = [
            (
                {label: value for label, value in alert.labels.items() if label != "cluster"},
                {key: text.replace(f"&var-cluster={cluster}", "") for key, text in alert.annotations.items()},
            )
            for alert in fired.get((name, in_seconds(check["eval_time"])), ())
            if alert.labels.get("cluster") == cluster
        ]
        if len(found) != len(expected) or any(each not in found for each in expected):
            return False
    return True


def _selecting(expression: str, cluster: str) -> str:
    """Return the expression with each selector limited to one cluster."""
    names = "|".join(sorted(map(re.escape, names_in(expression).metrics), key=len, reverse=True))

    def narrow(match: re.Match[str]) -> str:
        return f'{match["name"]}{{cluster="{cluster}"{"," if match["more"] else "}"}'

    return re.sub(rf'(?<![\w:"])(?P<name>{names})(?![\w:"])(?P<more>\s*\{{)?', narrow, expression)
