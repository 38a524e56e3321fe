"""The dashboards keep the rules of Grafana's linter and the project's own, on every kind of panel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.grafana import lint
from tests.grafana.pages import PAGES, Json
from tests.known_names import chosen_by

WIDE_ON_PURPOSE = {
    ("stallscope-run", "rank:verdict:ratio5m", "instance"): "ranks are chosen by run and rank, which say their nodes",
}
"""Selectors that need no narrowing, by dashboard, prefix of the series, and label, with the reason."""


@pytest.mark.parametrize("uid", PAGES)
@pytest.mark.parametrize("rule", lint.RULES, ids=lambda rule: rule.__name__)
def test_a_dashboard_keeps_the_rule(rule: Callable[[Json], Iterator[str]], uid: str) -> None:
    assert list(rule(PAGES[uid])) == []


def _wide(uid: str) -> Iterator[tuple[str, str, str, set[tuple[str, str, str]]]]:
    """Return place, series and variable of each selector that is not narrowed, with the exception that allows it."""
    for where, metric, name in lint.narrowing(PAGES[uid], chosen_by):
        allowed = {each for each in WIDE_ON_PURPOSE if (uid, name) == each[::2] and metric.startswith(each[1])}
        yield where, metric, name, allowed


@pytest.mark.parametrize("uid", PAGES)
def test_every_selector_is_narrowed_by_the_choices_that_it_can_be_narrowed_by(uid: str) -> None:
    assert [found[:3] for found in _wide(uid) if not found[3]] == []


def test_every_exception_is_needed() -> None:
    assert WIDE_ON_PURPOSE.keys() == {each for uid in PAGES for found in _wide(uid) for each in found[3]}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's list of units comes with a package for Python 3.11")
@pytest.mark.parametrize("uid", PAGES)
def test_every_unit_is_one_of_grafanas(uid: str) -> None:
    from grafana_foundation_sdk.models import units

    known = frozenset(value for value in vars(units).values() if isinstance(value, str) and value)
    assert {"percentunit", "bytes", "watt"} <= known
    assert list(lint.units(PAGES[uid], known)) == []
