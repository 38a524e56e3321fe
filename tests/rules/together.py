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

Document = Mapping[str, Any]
"""What promtool reads of a story: its rule files, steps and one test."""
_COMPANY = 20
_GUARDED = ("up",)
"""What alerts ask absent() for: a story without one of them would find it in another's cluster."""

_EXPECTATIONS_FAILED = re.compile(r"\A(?!.*^ +rule: ).*FAILED:\n +expr: ", re.DOTALL | re.MULTILINE)
"""What promtool says where rules and file are sound, and some expectations are not met."""


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
        """Whether the story is known to pass; runs it with those that come next where it isn't known yet."""
        key = _key(story)
        if key in self._coming:
            keys = list(self._coming)
            place = keys.index(key)
            self._try({each: self._coming.pop(each) for each in keys[place : place + _COMPANY]})
        return key in self._passed

    def _try(self, stories: Mapping[str, Document]) -> None:
        if len(stories) < 2:
            return
        clusters = {f"story-{number}-": key for number, key in enumerate(stories)}
        first = next(iter(stories.values()))
        tests = [_in_cluster(stories[key]["tests"][0], cluster) for cluster, key in clusters.items()]
        everything = {
            **tests[0],
            "input_series": [series for test in tests for series in test["input_series"]],
            "promql_expr_test": [asked for test in tests for asked in test["promql_expr_test"]],
        }
        said = self._run({**first, "tests": [everything]})
        if "SUCCESS" in said:
            self._passed |= set(clusters.values())
        elif _EXPECTATIONS_FAILED.search(said):
            self._passed |= {key for cluster, key in clusters.items() if cluster not in said}


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


def _shareable(story: Document) -> bool:
    test = story["tests"][0]
    names = [series["series"] for series in test["input_series"]]
    selectors = [names_in(asked["expr"]).selectors for asked in test.get("promql_expr_test", ())]
    return (
        set(test) == {"interval", "input_series", "promql_expr_test"}
        and not any("cluster=" in name for name in names)
        and all(
            each and all(selector.metric and not selector.metric.startswith("stallscope:") for selector in each)
            for each in selectors
        )
        and (
            not any(selector.metric == "ALERTS" for each in selectors for selector in each)
            or all(any(name.startswith(f"{guarded}{{") for name in names) for guarded in _GUARDED)
        )
    )


def _in_cluster(test: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    return {
        **test,
        "input_series": [
            {**series, "series": series["series"].replace("{", f'{{cluster="{cluster}",', 1)}
            for series in test["input_series"]
        ],
        # Samples as they would be without a cluster.
        "promql_expr_test": [
            {**asked, "expr": f'label_replace({_selecting(asked["expr"], cluster)}, "cluster", "", "", "")'}
            for asked in test["promql_expr_test"]
        ],
    }


def _selecting(expression: str, cluster: str) -> str:
    """The same of one cluster."""
    names = "|".join(sorted(map(re.escape, names_in(expression).metrics), key=len, reverse=True))

    def narrow(match: re.Match[str]) -> str:
        return f'{match["name"]}{{cluster="{cluster}"{"," if match["more"] else "}"}'

    return re.sub(rf'(?<![\w:"])(?P<name>{names})(?![\w:"])(?P<more>\s*\{{)?', narrow, expression)
