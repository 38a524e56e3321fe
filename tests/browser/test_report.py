"""The report in a real Chromium: at every width, in both colour schemes, on paper, and with hostile names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from stallscope.model.analysis.runs import find_run
from stallscope.model.clients.prometheus import Prometheus
from stallscope.tools.report import html
from stallscope.tools.report.contents import build
from stallscope.tools.report.document import Document, Figure, Plot
from stallscope.tools.report.options import Options
from stallscope.tools.report.subject import of_run
from tests.browser import chromium
from tests.filled_prometheus import FilledPrometheus
from tests.report import example

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")

DOCUMENTS = ("ordinary", "nothing", "hostile")
WIDTHS = (80, 320, 390, 768, 1280, 1600)
PHONE = 390
PAPER = 688
"""Printable width of A4 in CSS pixels."""
TOO_WIDE = """width => [...document.querySelectorAll('body *')]
    .filter(each => !each.closest('.scroll, .skip'))
    .filter(each => each.getBoundingClientRect().right > width + 0.5)
    .map(each => `${each.tagName} ${each.textContent.slice(0, 60)}`)"""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.started() as started:
        yield started


@pytest.fixture(scope="module")
def ordinary(filled: FilledPrometheus) -> Document:
    """Return the report of a run with a straggler, which has every kind of plot."""
    options = Options(gpu_hour_price=2.0, kilowatt_hour_price=0.25, currency="EUR", zone="Europe/Berlin")
    with contextlib.closing(Prometheus(filled.server.address, timeout=60)) as server:
        run = find_run(server, "straggling", filled.start - 60, filled.end)
        document = build(of_run(server, run), server, options)
    assert {type(block.plot) for block in document.blocks if isinstance(block, Figure)} == set(get_args(Plot))
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ordinary: Document) -> Path:
    """Write the reports to files and open them."""
    folder = tmp_path_factory.mktemp("reports")
    for name, document in zip(DOCUMENTS, (ordinary, example.nothing(), example.hostile()), strict=True):
        (folder / f"{name}.html").write_text(html.write(document), encoding="utf-8")
    return folder


@pytest.fixture
def show(browser: Browser, folder: Path) -> Iterator[Open]:
    contexts = []

    def open_page(name: str, width: int = 1280, unfold: bool = True, **settings: Any) -> Page:
        context = chromium.opened(browser, width, 900, **settings)
        contexts.append(context)
        page = context.new_page()
        page.goto(f"file://{folder / name}.html")
        if unfold:
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_is_wider_than_the_window(show: Open, name: str) -> None:
    page = show(name)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not page.evaluate(TOO_WIDE, width)


@pytest.mark.parametrize(("name", "scheme"), [("ordinary", "light"), ("ordinary", "dark"), ("hostile", "light")])
def test_axe_finds_no_barrier(show: Open, name: str, scheme: str) -> None:
    found = Axe().run(show(name, color_scheme=scheme))
    assert not [
        (each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found.response["violations"]
    ]


@pytest.mark.parametrize("name", ["ordinary", "hostile"])
def test_hostile_reports_load_and_run_nothing(show: Open, browser: Browser, name: str) -> None:
    page = show("nothing")
    requested, messages = chromium.overheard(page)
    address = page.url.replace("nothing", name)
    page.goto(address)
    assert [each for each in requested if not each.startswith("data:")] == [address]
    assert not messages
    assert not page.query_selector_all("script, img, template, iframe, #taken, main style, main title")
    assert page.title().endswith(" · Stallscope")


def test_hostile_names_are_shown_literally(show: Open) -> None:
    page = show("hostile")
    assert page.locator("h1").inner_text() == example.HOSTILE[0]
    assert "\\u202eright to left" in page.locator("main").inner_text()
    drawn = page.locator("figure svg text").all_text_contents()
    assert any(text.startswith("<script>") for text in drawn)
    assert any(text.startswith("$\\frac{1}{0}$") for text in drawn)


@pytest.mark.parametrize("name", ["ordinary", "hostile"])
def test_nothing_is_cut_off_on_paper(show: Open, name: str) -> None:
    page = show(name, PAPER)
    page.emulate_media(media="print")
    assert not page.evaluate(TOO_WIDE.replace(".scroll, ", ""), PAPER)
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_folded_sections_are_whole_on_paper_and_folded_on_screen(show: Open) -> None:
    page = show("ordinary", PAPER, unfold=False)
    contents = page.locator("details table")
    assert contents.count() > 1
    assert not any(each.is_visible() for each in contents.all())
    page.emulate_media(media="print")
    assert all(each.is_visible() for each in contents.all())


def test_the_first_recommendation_is_on_the_first_screen(show: Open, ordinary: Document) -> None:
    page = show("ordinary", 1280)
    assert ordinary.first_recommendation is not None
    box = page.get_by_text(ordinary.first_recommendation.advice).bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900


def test_a_phone_shows_tables_and_drawings_whole_and_large_enough_to_read(show: Open) -> None:
    page = show("ordinary", PHONE)
    assert page.locator("table").count() > 1
    assert (
        page.evaluate(
            """[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth).length"""
        )
        == 0
    )
    sizes = page.evaluate(
        """[...document.querySelectorAll('figure svg')].filter(each => each.getBoundingClientRect().width)
            .map(svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width * 11)"""
    )
    assert len(sizes) == page.locator("figure").count()
    assert min(sizes) > 9


@pytest.mark.parametrize("name", ["ordinary", "hostile"])
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_labels_of_a_drawing_do_not_overlap(show: Open, name: str, width: int) -> None:
    over = show(name, width).evaluate(
        """[...document.querySelectorAll('figure svg')].flatMap(svg => {
            const boxes = [...svg.querySelectorAll('text')]
                .map(each => [each.textContent, each.getBoundingClientRect()]);
            return boxes.flatMap(([one, a], place) => boxes.slice(place + 1).filter(([, b]) =>
                a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
                .map(([other]) => `${one} | ${other}`));
        })"""
    )
    assert not over


def test_screen_readers_get_sections_tables_and_text_alternatives(show: Open) -> None:
    snapshot = show("ordinary").locator("body").aria_snapshot()
    for line in (
        "- banner:",
        '- navigation "Contents":',
        '- region "What to change":',
        'heading "1 One rank\'s hardware is slow" [level=3]',
        '- table "Time lost by cause":',
        '- columnheader "Worst at end of that time"',
        'rowheader "One rank\'s hardware is slow"',
        "run: Not enough evidence for 2 min, then GPU-bound, well used for 7 min",
        "- contentinfo:",
    ):
        assert line in snapshot
