"""Open the dashboards in a Grafana and measure what a person sees: `python -m tests.grafana.look URL`.

It needs Chromium, and a Grafana that shows the bundle's dashboards without a login. For each dashboard it prints

- the queries of the first screen at 1,440 x 900, and the seconds from the first query to the last answer,
- labels of charts that overlap, texts of the column `What to change` that are cut, and panels with an error,
- links of tables to a dashboard whose variables have no value,
- columns of tables that lie beyond the edge, and headings that are cut, at 1,280 px.

The exit status is 1 if there is any of the last three lines. With `--out`, it saves a picture of each dashboard with
every row open, for each width and theme.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from playwright.sync_api import Browser, Page, Request

from tests.browser import chromium
from tests.grafana.pages import PAGES

FIRST_SCREEN = (1440, 900)
NARROW = 1280
"""Width in pixels at which no table scrolls sideways."""
WIDTHS = (1600, 1440, 1280, 414)
THEMES = ("dark", "light")
QUIET_SECONDS = 1.0
"""The page is complete once no query has run for this long."""
LONGEST_SECONDS = 60.0
TALLEST = 15_000
"""Pixels of the tallest picture."""
_RECORD_LABELS = """
(() => {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  const clear = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const matrix = this.getTransform();
    if (matrix.b === 0 && String(text).trim()) {
      const size = this.measureText(text);
      const at = matrix.transformPoint({ x, y });
      const place = [
        at.x - size.actualBoundingBoxLeft, at.y - size.actualBoundingBoxAscent,
        at.x + size.actualBoundingBoxRight, at.y + size.actualBoundingBoxDescent,
      ];
      (this.canvas.labels ||= new Map()).set(`${text}@${Math.round(at.x)},${Math.round(at.y)}`, [String(text), place]);
    }
    return draw.call(this, text, x, y, ...rest);
  };
  CanvasRenderingContext2D.prototype.clearRect = function (...place) {
    if (place[2] >= this.canvas.width) this.canvas.labels = new Map();
    return clear.apply(this, place);
  };
})();
"""
"""Charts draw their labels on a canvas, so they are recorded as they are drawn."""
_FIND_LABELS = """
() => [...document.querySelectorAll('canvas')].filter(canvas => canvas.labels?.size).map(canvas => [
  canvas.closest('[class*=panel-container]')?.querySelector('h2, h6, [class*=panel-title]')?.innerText ?? '?',
  [...canvas.labels.values()],
])
"""
_FIND_CELLS = """
() => [...document.querySelectorAll('[role=table]')].flatMap(table => {
  const headings = [...table.querySelectorAll('[role=columnheader]')].map(each => each.innerText.trim());
  return [...table.querySelectorAll('[role=row]')].flatMap(row =>
    [...row.querySelectorAll('[role=cell]')].map((cell, index) => {
      const words = cell.firstElementChild ?? cell;
      const end = cell.closest('[class*=panel-content]').getBoundingClientRect().right;
      const isCut = words.scrollWidth > words.clientWidth + 1;
      const isBeyond = cell.getBoundingClientRect().right > end + 1;
      const link = cell.querySelector('a');
      const isThere = link?.getBoundingClientRect().height > 0;
      return [headings[index] ?? '', cell.innerText.trim(), isCut, isBeyond, isThere ? link.getAttribute('href') : ''];
    }));
})
"""
_FIND_CUT_HEADINGS = """
() => [...document.querySelectorAll('[role=columnheader]')].filter(heading => {
  const words = heading.firstElementChild ?? heading;
  return words.scrollWidth > words.clientWidth;
}).map(heading => `heading ${heading.innerText.trim()}`)
"""
_ERRORS = "[aria-label='Panel status'], [aria-label='Panel header error'], [data-testid*='Panel status error']"


@dataclass
class Seen:
    """Measurements of a dashboard."""

    uid: str
    queries: int = 0
    seconds: float = 0.0
    overlapping: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    empty_links: list[str] = field(default_factory=list)
    sideways: list[str] = field(default_factory=list)

    @property
    def defects(self) -> list[str]:
        """Every defect, as a line."""
        return [
            f"{self.uid}: {kind}: {each}"
            for kind, found in (
                ("labels overlap", self.overlapping),
                ("text is cut", self.cut),
                ("panel failed", self.failed),
                ("link to an empty dashboard", self.empty_links),
                (f"column beyond the edge at {NARROW} px", self.sideways),
            )
            for each in found
        ]


class _Queries:
    """The queries that a page sends to its data sources."""

    def __init__(self, page: Page) -> None:
        self.count = 0
        self.first = 0.0
        self.latest = time.monotonic()
        page.on("request", self._sent)
        page.on("requestfinished", self._answered)
        page.on("requestfailed", self._answered)

    def _sent(self, request: Request) -> None:
        if "/api/ds/query" in request.url:
            self.first = self.first or time.monotonic()
            self.count += len(json.loads(request.post_data or "{}").get("queries", ()))
        self._answered(request)

    def _answered(self, request: Request) -> None:
        if "/api/" in request.url:
            self.latest = time.monotonic()

    def wait(self, page: Page) -> None:
        """Wait until no query has run for a while."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < min(deadline, self.latest + QUIET_SECONDS):
            page.wait_for_timeout(100)


def overlaps(labels: Sequence[tuple[str, Sequence[float]]]) -> Iterator[str]:
    """Yield each pair of labels whose boxes have a common area."""
    for index, (text, (left, top, right, bottom)) in enumerate(labels):
        for other, (its_left, its_top, its_right, its_bottom) in labels[index + 1 :]:
            if left < its_right and its_left < right and top < its_bottom and its_top < bottom:
                yield f"{text!r} and {other!r}"


def is_empty_link(address: str) -> bool:
    """Return whether a link to a dashboard leaves a variable without a value."""
    parts = urlsplit(address)
    given = parse_qsl(parts.query, keep_blank_values=True)
    return parts.path.startswith("/d/") and any(name.startswith("var-") and not value for name, value in given)


def _open(
    browser: Browser, url: str, uid: str, window: tuple[int, int], theme: str, given: str
) -> tuple[Page, _Queries]:
    page = chromium.opened(browser, *window).new_page()
    page.add_init_script(_RECORD_LABELS)
    queries = _Queries(page)
    page.goto(f"{url}/d/{uid}?{urlencode({'kiosk': 'tv', 'theme': theme})}&{given}")
    page.wait_for_selector("[class*=panel-container]")
    queries.wait(page)
    return page, queries


def _open_rows(page: Page, queries: _Queries) -> None:
    """Open every row, and make the window so tall that Grafana draws all panels."""
    for closed in reversed(page.locator(".dashboard-row--collapsed").all()):
        closed.locator("a, button").first.click()
    height = page.evaluate("Math.max(...[...document.querySelectorAll('.react-grid-layout')].map(e => e.scrollHeight))")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": min(TALLEST, height + 200)})  # type: ignore[index]
    queries.latest = time.monotonic()
    queries.wait(page)


def look(browser: Browser, url: str, uid: str, given: str) -> Seen:
    """Measure one dashboard.

    Args:
        browser: the browser.
        url: address of the Grafana.
        uid: the dashboard.
        given: further parameters of its address, such as `from=now-1h`.
    """
    page, queries = _open(browser, url, uid, FIRST_SCREEN, "dark", given)
    seen = Seen(uid, queries.count, round(queries.latest - queries.first, 1))
    _open_rows(page, queries)
    for panel, labels in page.evaluate(_FIND_LABELS):
        seen.overlapping += [f"{panel}: {pair}" for pair in overlaps(labels)]
    for heading, words, is_cut, is_beyond, link in page.evaluate(_FIND_CELLS):
        if heading == "What to change" and (is_cut or is_beyond):
            seen.cut.append(words)
        if is_empty_link(link):
            seen.empty_links.append(f"{heading} {words!r}: {link}")
    page.set_viewport_size({"width": NARROW, "height": page.viewport_size["height"]})  # type: ignore[index]
    queries.latest = time.monotonic()
    queries.wait(page)
    beyond = {heading for heading, _words, _cut, is_beyond, _link in page.evaluate(_FIND_CELLS) if is_beyond}
    seen.sideways = sorted(beyond)
    seen.cut += page.evaluate(_FIND_CUT_HEADINGS)
    seen.failed = [each.inner_text() for each in page.locator(_ERRORS).all()]
    page.context.close()
    return seen


def take(browser: Browser, url: str, uid: str, given: str, folder: Path) -> None:
    """Save pictures of a dashboard with every row open, for each width and theme."""
    for theme in THEMES:
        for width in WIDTHS:
            page, queries = _open(browser, url, uid, (width, 900), theme, given)
            page.screenshot(path=folder / f"{uid}-{theme}-{width}-first.png")
            _open_rows(page, queries)
            page.screenshot(path=folder / f"{uid}-{theme}-{width}.png")
            page.context.close()


def main() -> int:
    """Measure all dashboards, and return 1 if any has a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.grafana.look", description=__doc__.splitlines()[0])
    parser.add_argument("url", help="address of the Grafana, such as http://localhost:3000")
    parser.add_argument("--dashboard", action="append", choices=sorted(PAGES), help="only this one; may be repeated")
    parser.add_argument("--parameters", default="", help='of the address, such as "from=now-6h&var-run=resnet50"')
    parser.add_argument("--out", type=Path, help="folder for pictures")
    given = parser.parse_args()
    defects: list[str] = []
    with chromium.started() as browser:
        for uid in given.dashboard or PAGES:
            seen = look(browser, given.url.rstrip("/"), uid, given.parameters)
            print(f"{uid}: first screen: {seen.queries} queries, {seen.seconds} s")
            defects += seen.defects
            if given.out:
                given.out.mkdir(parents=True, exist_ok=True)
                take(browser, given.url.rstrip("/"), uid, given.parameters, given.out)
    print("\n".join(defects) or "no defect")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
