"""The page parser and the client library's parser agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stallscope.model.catalogue.metrics import family
from stallscope.model.clients.exposition import Page, labels_of
from stallscope.model.view.observer import WANTED
from tests.captures.golden import captures, golden
from tests.terminal.pages import rendered, sample, text

LOSS = family("stallscope_training_loss")
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def as_the_library_reads(page: str) -> Series:
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for found in text_string_to_metric_families(page)
        for each in found.samples
        if each.name in WANTED
    }


def as_we_read(page: str) -> Series:
    read = Page(page, WANTED)
    return {
        (name, frozenset(labels_of(labels).items())): value
        for name in WANTED
        for labels, value in read._series[name].items()
    }


@pytest.mark.parametrize("path", [golden(each) for each in captures()], ids=lambda path: path.name)
def test_captured_pages_are_parsed_alike(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert as_we_read(page)
    assert as_we_read(page) == as_the_library_reads(page)


def test_a_page_with_every_family_is_parsed_alike() -> None:
    assert as_we_read(text()) == as_the_library_reads(text())


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(-1e99, 1e99))
def test_any_label_value_is_preserved(run: str, value: float) -> None:
    page = Page(rendered([sample(LOSS, (run, "0"), value)]), WANTED)
    assert list(page.samples(LOSS)) == [({"run": run, "rank": "0"}, value)]


@pytest.mark.parametrize(
    "nonsense", ["", "\n", "<html>", "stallscope_training_loss", "stallscope_training_loss{} x", "}"]
)
def test_an_invalid_page_is_empty(nonsense: str) -> None:
    assert not Page(nonsense, WANTED)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e308", "-1e308"])
def test_infinite_values_are_omitted(value: str) -> None:
    assert not Page(f'stallscope_training_loss{{run="a",rank="0"}} {value}\n', WANTED)
