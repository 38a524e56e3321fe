"""Lets the stories of a file's tests share runs of promtool, each as a cluster of its own.

A step takes promtool a tenth of a millisecond a rule, however small a story is, so that a dozen stories take hardly
longer than one. The rules keep clusters apart. Where a story does not pass in company it runs alone, and that decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tests.promql_names import names_in
from tests.scenarios.runner import Alert, in_seconds, parse_alerts

Document = Mapping[str, Any]
"""What promtool reads of a story: its rule files, steps and one test."""
_COMPANY = 100
_LIKE = 0.5
"""How far apart the ends of stories in one run may be, as a share of the first one's."""
_GUARDED = ("up",)
"""What alerts ask absent() for: a story without one of them would find it in another's cluster."""

_EXPECTATIONS_FAILED = re.compile(r"\A(?!.*^ +rule: ).*FAILED:\n +(?:expr|alertname): ", re.DOTALL | re.MULTILINE)
"""What promtool says where rules and file are sound, and some expectations are not met."""
_ALERTS_FAILED = re.compile(r"^ +alertname: .*?(?=^ +(?:alertname|expr): |\Z)", re.DOTALL | re.MULTILINE)
_NEVER_FIRES = {"exp_labels": {"unexpected": "yes"}}
"""Expected of an alert, so that promtool tells what fires in its place."""


class Together:
    """The stories that are still to come, and those that have passed.

    Args:
        stories: in the order in which their tests run.
        run: has promtool run a document and returns what it says, passed or not.
    """

    def __init__(self, stories: Iterable[Document], run: Callable[[Document], str]) -> None:
        self._coming = {_key(story): story for story in stories if _shareable(story)}
        self._passed: set[str] = set()
        self._run = run

    def passed(self, story: Document) -> bool:
        """Whether the story is known to pass; runs it with those that are most like it where it isn't known yet."""
        key = _key(story)
        if key in self._coming:
            frame, end = _frame(story), _end(story)
            company = [
                each
                for each, other in self._coming.items()
                # A run lasts as long as its longest story.
                if each != key and _frame(other) == frame and abs(_end(other) - end) < _LIKE * end
            ]
            company = [key, *company[: _COMPANY - 1]]
            self._try({each: self._coming.pop(each) for each in company})
        return key in self._passed

    def _try(self, stories: Mapping[str, Document]) -> None:
        if len(stories) < 2:
            return
        clusters = {f"story-{number}-": key for number, key in enumerate(stories)}
        first = next(iter(stories.values()))
        tests = {cluster: stories[key]["tests"][0] for cluster, key in clusters.items()}
        asked = {(each["alertname"], each["eval_time"]) for test in tests.values() for each in _texts(test)}
        everything = {
            "interval": first["tests"][0]["interval"],
            "input_series": [series for cluster, test in tests.items() for series in _series(test, cluster)],
            "promql_expr_test": [asked for cluster, test in tests.items() for asked in _questions(test, cluster)],
            "alert_rule_test": [
                {"alertname": name, "eval_time": moment, "exp_alerts": [_NEVER_FIRES]} for name, moment in sorted(asked)
            ],
        }
        said = self._run({**first, "tests": [everything]})
        if not asked and "SUCCESS" in said:
            self._passed |= set(clusters.values())
        elif _EXPECTATIONS_FAILED.search(said):
            unmet = _ALERTS_FAILED.sub("", said)
            fired = {(name, second): alerts for name, second, alerts in parse_alerts(said)}
            self._passed |= {
                key
                for cluster, key in clusters.items()
                if cluster not in unmet and _told_as_expected(tests[cluster], cluster, fired)
            }


def rehearse(items: Iterable[pytest.Item], rulebook: object) -> None:
    """Call the tests that need nothing but a rulebook and their parameters, with a rulebook that only takes notes."""
    for item in items:
        if not isinstance(item, pytest.Function) or _needs_more(item):
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        try:
            item.function(**parameters, rulebook=rulebook)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception):
            continue  # the test itself will tell


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
    """What stories must have in common to share a run."""
    return json.dumps([{**story, "tests": []}, story["tests"][0]["interval"]], sort_keys=True)


def _end(story: Document) -> int:
    """The last second at which something is asked."""
    test = story["tests"][0]
    return max(in_seconds(asked["eval_time"]) for asked in (*test.get("promql_expr_test", ()), *_texts(test)))


def _texts(test: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The alerts whose labels and words are asked for."""
    texts: Iterable[Mapping[str, Any]] = test.get("alert_rule_test", ())
    return texts


def _shareable(story: Document) -> bool:
    test = story["tests"][0]
    names = [series["series"] for series in test["input_series"]]
    selectors = [names_in(asked["expr"]).selectors for asked in test.get("promql_expr_test", ())]
    return (
        set(test) <= {"interval", "input_series", "promql_expr_test", "alert_rule_test"}
        and not any("cluster=" in name for name in names)
        and all(asked["exp_alerts"] for asked in _texts(test))
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
    """What is scraped, in a cluster."""
    return [
        {**series, "series": series["series"].replace("{", f'{{cluster="{cluster}",', 1)}
        for series in test["input_series"]
    ]


def _questions(test: Mapping[str, Any], cluster: str) -> list[dict[str, Any]]:
    """The same asked of one cluster; samples as they would be without."""
    return [
        {**asked, "expr": f'label_replace({_selecting(asked["expr"], cluster)}, "cluster", "", "", "")'}
        for asked in test.get("promql_expr_test", ())
    ]


def _told_as_expected(test: Mapping[str, Any], cluster: str, fired: Mapping[tuple[str, int], Iterable[Alert]]) -> bool:
    """Whether each alert that is asked for fires in the cluster as expected: so often, with these labels and words."""
    for asked in _texts(test):
        name = asked["alertname"]
        expected = [
            ({"alertname": name, **each["exp_labels"]}, each["exp_annotations"]) for each in asked["exp_alerts"]
        ]
        found = [
            (
                {label: value for label, value in alert.labels.items() if label != "cluster"},
                {key: text.replace(f"&var-cluster={cluster}", "") for key, text in alert.annotations.items()},
            )
            for alert in fired.get((name, in_seconds(asked["eval_time"])), ())
            if alert.labels.get("cluster") == cluster
        ]
        if len(found) != len(expected) or any(each not in found for each in expected):
            return False
    return True


def _selecting(expression: str, cluster: str) -> str:
    """The same of one cluster."""
    names = "|".join(sorted(map(re.escape, names_in(expression).metrics), key=len, reverse=True))

    def narrow(match: re.Match[str]) -> str:
        return f'{match["name"]}{{cluster="{cluster}"{"," if match["more"] else "}"}'

    return re.sub(rf'(?<![\w:"])(?P<name>{names})(?![\w:"])(?P<more>\s*\{{)?', narrow, expression)
