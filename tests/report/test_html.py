"""The report's page shows exactly the document and is self-contained."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from stallscope.tools.report import html
from stallscope.tools.report.document import Document, Facts, Figure, Paragraph, Section, Table
from tests.report import example


class Page(HTMLParser):
    """The tags, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden += tag in ("style", "title")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "title")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(document: Document, refresh_seconds: float | None = None) -> Page:
    return Page(html.write(document, refresh_seconds=refresh_seconds))


@pytest.fixture(scope="module")
def ordinary() -> Page:
    return page(example.ordinary())


@pytest.fixture(scope="module")
def hostile() -> Page:
    return page(example.hostile())


def test_the_page_shows_the_whole_document(ordinary: Page) -> None:
    document = example.ordinary()
    text = " ".join(ordinary.text.split())
    for section in document.sections:
        assert section.title in text
    for block in document.blocks:
        if isinstance(block, Figure):
            assert block.title in text
            assert block.alternative in text
        elif isinstance(block, Table):
            assert all(column.name in text and column.note in text for column in block.columns)
            assert block.note in text
        elif isinstance(block, Facts):
            assert all(fact.name in text and fact.note in text for fact in block.facts)
    for words in ("190 h", "103.20 EUR", "9.1 kWh", "2023-11-15 04:46:40", "times are Europe/Berlin"):
        assert words in text


def test_a_missing_value_is_shown_as_unknown(ordinary: Page) -> None:
    text = ordinary.text
    assert "unknown" in text
    assert "None" not in text
    assert "nan" not in text


def test_the_page_is_self_contained(ordinary: Page) -> None:
    found = ordinary
    assert not {tag for tag, _ in found.tags} & {"script", "img", "iframe", "object", "embed", "video", "audio"}
    assert [each["href"] for each in found.all("link")] == ["data:,"]
    sources = [each.get("href") or "" for each in (*found.all("use"), *found.all("image"))]
    assert sources
    assert all(each.startswith(("#", "data:image/png;base64,")) for each in sources)
    (policy,) = [each for each in found.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_every_section_is_linked_from_the_contents(ordinary: Page) -> None:
    found = ordinary
    anchors = {each["id"] for each in found.all("h2")}
    linked = {each["href"] for each in found.all("a") if (each["href"] or "").startswith("#")}
    assert {f"#{section.key}" for section in example.ordinary().sections} <= linked
    assert linked <= {f"#{anchor}" for anchor in (*anchors, "main")}


def test_the_first_recommendation_is_above_all_sections_and_only_there(ordinary: Page) -> None:
    document = example.ordinary()
    assert "Change this first" not in ordinary.text
    later = replace(document, sections=(Section("summary", "Summary", (Paragraph("A day."),)), *document.sections))
    text = page(later).text
    assert text.count("Read from local NVMe") == 1
    assert "Save asynchronously" in text[text.index("A day.") :]
    assert text.index("Change this first") < text.index("A day.")
    assert "Change this first" not in page(example.nothing()).text


def test_a_recommendation_leads_to_its_runbook(ordinary: Page, hostile: Page) -> None:
    links = [each["href"] or "" for each in ordinary.all("a")]
    assert any(each.endswith("/alerts/runbooks/TrainingInputDiskBound.md") for each in links)
    assert not [each for each in hostile.all("a") if not (each["href"] or "").startswith("#")]


def test_the_page_refreshes_only_on_request(ordinary: Page) -> None:
    def refreshing(found: Page) -> list[str | None]:
        return [each["content"] for each in found.all("meta") if each.get("http-equiv") == "refresh"]

    assert refreshing(ordinary) == []
    assert refreshing(page(example.nothing(), 60.0)) == ["60"]


def test_a_plot_without_values_is_a_sentence() -> None:
    found = page(example.nothing())
    assert found.text.count("There are no values to draw.") == 6
    assert not found.all("svg")
    assert "Causes: none." in " ".join(found.text.split())
    assert "running" in found.text


def test_a_run_at_a_standstill_is_not_shown_as_running() -> None:
    found = page(replace(example.nothing(), standstill_timestamp_seconds=example.START)).text
    assert "at a standstill since 20" in found
    assert "running" not in found


def test_names_from_outside_are_text_only(hostile: Page) -> None:
    found = hostile
    assert {"script", "img", "template"}.isdisjoint(tag for tag, _ in found.tags)
    assert not [attributes for _, attributes in found.tags if attributes.get("id") == "taken"]
    assert not [attributes for _, attributes in found.tags if any(name.startswith("on") for name in attributes)]
    for text in example.HOSTILE[:3]:
        assert text in found.text
    assert "\u202e" not in found.text
    assert "\\u202eright to left" in found.text


def test_a_notebook_shows_the_page_in_a_frame_in_which_nothing_runs() -> None:
    shown = html.Shown(example.nothing())
    (frame,) = Page(shown._repr_html_()).all("iframe")
    assert "sandbox" in frame
    assert (frame["srcdoc"] or "").startswith("<!DOCTYPE html>")
    assert len(repr(html.Shown(example.ordinary()))) < 200
