"""The status page in a real Chromium: for every width, both colour schemes, keyboards, screen readers, no scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from stallscope.node.web.status.exporter_state import ExporterState
from tests.browser import chromium
from tests.browser.site import Site, busy_node, flood, hostile_node, nothing, site
from tests.waiting import until

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")

Scheme = Literal["light", "dark"]
LOOKS: dict[str, Callable[[], ExporterState]] = {
    "nothing": nothing,
    "busy": busy_node,
    "hostile": hostile_node,
    "flood": flood,
}
PHONE, DESK = 320, 1280
SMALLEST_TEXT = 12.5
TOO_WIDE = """width => [...document.querySelectorAll('body *')]
    .filter(each => !each.closest('.skip, .hidden, svg'))
    .filter(each => each.getBoundingClientRect().right > width + 0.5
        || each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display != 'inline')
    .map(each => `${each.tagName} ${each.textContent.slice(0, 60)}`)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.started() as started:
        yield started


@pytest.fixture(scope="module")
def served() -> Iterator[Site]:
    with site(refresh_seconds=2) as made:
        yield made


@pytest.fixture
def show(browser: Browser, served: Site) -> Iterator[Callable[..., Page]]:
    """Open the page, without refresh by default."""
    contexts = []

    def open_page(
        look: str = "busy", width: int = DESK, scheme: Scheme = "light", *, query: str = "?refresh=off", **settings: Any
    ) -> Page:
        served.look = LOOKS[look]()
        context = chromium.opened(browser, width, 800, color_scheme=scheme, **settings)
        contexts.append(context)
        page = context.new_page()
        page.goto(served.url + query)
        return page

    yield open_page
    for context in contexts:
        context.close()


Show = Callable[..., Page]


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_is_wider_than_the_window(show: Show, look: str) -> None:
    page = show(look)
    for width in (PHONE, 360, 768, DESK, 2560):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not page.evaluate(TOO_WIDE, width)


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_no_text_is_too_small_or_overlaps(show: Show, width: int) -> None:
    page = show("busy", width)
    sizes = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(each => each.innerText)
            .map(each => [parseFloat(getComputedStyle(each).fontSize), each.innerText.slice(0, 60)])"""
    )
    assert sizes
    assert not [each for each in sizes if each[0] < SMALLEST_TEXT]
    assert not page.evaluate(
        """() => {
            const boxes = [...document.querySelectorAll('.card, .tiles > div, tr')]
                .map(each => [each, each.getBoundingClientRect()]);
            return boxes.flatMap(([one, a]) => boxes.filter(([other, b]) => one != other
                && !one.contains(other) && !other.contains(one)
                && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
                .map(([other]) => `${one.textContent.slice(0, 40)} | ${other.textContent.slice(0, 40)}`));
        }"""
    )


@pytest.mark.parametrize("look", ["nothing", "busy", "hostile"])
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (DESK, "dark")])
def test_axe_finds_no_barrier(show: Show, look: str, width: int, scheme: Scheme) -> None:
    found = Axe().run(show(look, width, scheme))
    violations = [
        (each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found.response["violations"]
    ]
    assert not violations


def luminance(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    return float(sum(colour[:3]) / 3)


def test_the_colour_scheme_follows_the_system(show: Show) -> None:
    assert luminance(show(scheme="light")) > 200
    assert luminance(show(scheme="dark")) < 50


def test_every_link_is_reached_by_keyboard_with_visible_focus(show: Show) -> None:
    page = show("busy", DESK)
    reached = []
    for _ in page.query_selector_all("a"):
        page.keyboard.press("Tab")
        text, outline, inside = page.evaluate(
            """() => { const here = document.activeElement, box = here.getBoundingClientRect();
                return [here.textContent, parseFloat(getComputedStyle(here).outlineWidth),
                    box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight]; }"""
        )
        assert outline >= 2
        assert inside
        reached.append(text)
    assert reached == [
        "Skip to the runs and GPUs",
        "Reload automatically",
        "Training runs",
        "GPUs",
        "Collectors",
        "Metrics",
        "Health",
        "Readiness",
        "Runbooks",
    ]


def test_the_skip_link_skips_the_links(show: Show) -> None:
    page = show("busy", DESK)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")


def test_links_are_large_enough_for_a_finger(show: Show) -> None:
    sizes = show("busy", PHONE).evaluate(
        "[...document.querySelectorAll('nav a, .pause')].map(each => each.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 24


def test_screen_readers_get_landmarks_headings_and_values(show: Show) -> None:
    snapshot = show("busy").locator("body").aria_snapshot()
    for line in (
        "- banner:",
        "- main:",
        "- contentinfo:",
        '- navigation "Sections and other pages":',
        '- heading "node1 ready" [level=1]',
        '- region "GPUs":',
        '- heading "GPU 7 down" [level=3]',
        '- region "Training runs":',
        '- table "Ranks":',
        '- rowheader "5 GPU 5 running, silent for 40 s"',
        '- table "Collectors":',
    ):
        assert line in snapshot
    assert "Temperature" in snapshot
    assert "31 %" in snapshot


def test_the_page_is_the_same_without_scripts(show: Show) -> None:
    texts = [show("busy", java_script_enabled=enabled).locator("body").inner_text() for enabled in (True, False)]
    assert texts[0] == texts[1]
    assert "Waiting for data: disk" in texts[0]


@pytest.mark.parametrize("look", ["busy", "hostile"])
def test_the_page_loads_and_runs_nothing(show: Show, served: Site, look: str) -> None:
    page = show("nothing")
    requested, said = chromium.overheard(page)
    served.look = LOOKS[look]()
    page.reload()
    assert requested == [page.url]
    assert not said
    assert not page.query_selector_all("script, img, template, #taken, main style, main title")
    assert "taken" not in page.title()


def test_hostile_names_are_shown_literally(show: Show) -> None:
    text = show("hostile").locator("main").inner_text()
    assert "<script>document.title='taken'</script>" in text
    assert "\\u202eright to left" in text
    assert "k" * 79 + "…" in text
    assert "k" * 301 not in text


def await_requests(served: Site, number: int) -> None:
    """Wait for a number of requests of the page."""
    until(
        lambda: len(served.requests) >= number,
        lambda: f"requested {len(served.requests)} times, expected {number}",
        seconds=chromium.PATIENCE / 1000,
    )


@pytest.mark.parametrize("scripts", [True, False])
def test_the_page_refreshes_until_paused(show: Show, served: Site, scripts: bool) -> None:
    page = show("busy", PHONE, query="", java_script_enabled=scripts)
    served.requests.clear()
    served.look = nothing()
    page.get_by_text("Not read yet.").wait_for()
    await_requests(served, 2)
    assert set(served.requests) == {"reloaded"}
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("link", name="Reload automatically").wait_for()
    served.requests.clear()
    page.wait_for_timeout(4500)
    assert not served.requests


def test_a_refresh_keeps_the_scroll_position(show: Show) -> None:
    page = show("busy", PHONE, query="")
    page.evaluate("scrollTo(0, 700)")
    with page.expect_navigation():
        pass
    page.wait_for_function("scrollY === 700")  # restored after the layout
