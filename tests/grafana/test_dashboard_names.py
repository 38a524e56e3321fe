"""Dashboards use only series and labels that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.grafana.lint import links
from tests.grafana.pages import PAGES, Json, choices, drawn, label_values, queries_of, strings
from tests.known_names import LABELS, is_known, selects_something
from tests.promql_names import names_in

_MADE = re.compile(r',\s*"(\w+)",\s*"[^"]*",\s*"\w*"|count_values(?: by \([^)]*\) )?\("(\w+)"')
"""Label that `label_replace`, `label_join` or `count_values` creates."""
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_OF_SERIES = re.compile(r"\$\{__field\.labels\.(\w+)(?::\w+)?\}")
_OF_ROW = re.compile(r"\$\{__data\.fields(?:\.(\w+)|\[\"?([^\"\]]+)\"?\])(?::\w+)?\}")


@pytest.mark.parametrize("uid", PAGES)
def test_every_series_is_in_the_catalogue_or_recorded(uid: str) -> None:
    unknown = {
        (where, metric)
        for where, expression in queries_of(PAGES[uid])
        for metric in names_in(expression).metrics
        if not is_known(metric)
    }
    assert unknown == set()


@pytest.mark.parametrize("uid", PAGES)
def test_every_selector_uses_labels_and_values_that_the_series_has(uid: str) -> None:
    wrong = [
        (where, selector)
        for where, expression in queries_of(PAGES[uid])
        for selector in names_in(expression).selectors
        if not selects_something(selector)
    ]
    assert wrong == []


@pytest.mark.parametrize("uid", PAGES)
def test_every_label_that_is_grouped_by_exists(uid: str) -> None:
    unknown = {
        (where, label)
        for where, expression in queries_of(PAGES[uid])
        for label in names_in(expression).grouping_labels - LABELS - made(expression)
    }
    assert unknown == set()


def made(*expressions: str) -> set[str]:
    """Return the labels that expressions create."""
    return {label for expression in expressions for labels in _MADE.findall(expression) for label in labels if label}


@pytest.mark.parametrize("uid", PAGES)
def test_every_label_in_a_legend_exists(uid: str) -> None:
    unknown = {
        (panel["title"], label)
        for panel in drawn(PAGES[uid])
        for target in panel.get("targets", ())
        for label in _LEGEND.findall(target["legendFormat"])
        if label not in LABELS | made(target["expr"])
    }
    assert unknown == set()


@pytest.mark.parametrize("uid", PAGES)
def test_every_label_that_a_variable_offers_exists(uid: str) -> None:
    queried = {label_values(each).label for each in choices(PAGES[uid])}
    assert queried <= LABELS


@pytest.mark.parametrize("uid", PAGES)
def test_every_link_takes_labels_and_columns_that_its_panel_has(uid: str) -> None:
    wrong: set[tuple[str, str]] = set()
    for panel in drawn(PAGES[uid]):
        own = made(*(target["expr"] for target in panel.get("targets", ())))
        for link in links(panel, set(columns(panel))):
            wrong |= {(panel["title"], label) for label in _OF_SERIES.findall(link["url"]) if label not in LABELS | own}
            named = {dotted or quoted for dotted, quoted in _OF_ROW.findall(link["url"])}
            wrong |= {(panel["title"], column) for column in named if column not in {*columns(panel), *LABELS, *own}}
    assert wrong == set()


@pytest.mark.parametrize("uid", PAGES)
def test_names_with_signs_of_addresses_in_them_pass_through_links(uid: str) -> None:
    urls = [text for text in strings(PAGES[uid]) if text.startswith("/d/")]
    assert [url for url in urls if re.search(r"var-\w+=\$\{__[^}:]*\}", url)] == []


@pytest.mark.parametrize("uid", PAGES)
def test_every_override_by_name_finds_a_column(uid: str) -> None:
    tables = [panel for panel in drawn(PAGES[uid]) if panel["type"] == "table"]
    there = {column for panel in tables for column in columns(panel)}
    missing = {
        (panel["title"], override["matcher"]["options"])
        for panel in tables
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["id"] == "byName" and override["matcher"]["options"] not in there
    }
    assert missing == set()


@pytest.mark.parametrize("uid", PAGES)
def test_every_column_of_a_table_is_a_label_or_a_value_of_its_queries(uid: str) -> None:
    wrong: set[tuple[str, str]] = set()
    for panel in drawn(PAGES[uid]):
        if panel["type"] != "table":
            continue
        found = panel["targets"]
        values = {"Value", *(f"Value #{target['refId']}" for target in found)} if len(found) > 1 else {"Value"}
        known = LABELS | made(*(target["expr"] for target in found)) | values
        for step in panel["transformations"]:
            if step["id"] == "filterFieldsByName":
                wrong |= {(panel["title"], name) for name in step["options"]["include"]["names"] if name not in known}
    assert wrong == set()


def columns(panel: Json) -> Iterator[str]:
    """Return the headings of a table."""
    for step in panel.get("transformations", ()):
        if step["id"] == "organize":
            yield from step["options"]["renameByName"].values()


def test_a_series_that_does_not_exist_is_noticed() -> None:
    assert not is_known("stallscope_gpu_utilisation_ratio")
    assert not is_known("run:verdict:ratio6m")


def test_no_text_names_a_series_that_does_not_exist() -> None:
    named = {
        (uid, name)
        for uid, page in PAGES.items()
        for text in strings(page)
        for name in re.findall(r"\bstallscope_(?:gpu|host|training|exporter)_\w+", text)
    }
    assert {each for each in named if not is_known(each[1])} == set()
