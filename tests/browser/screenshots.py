"""`make screenshots`: the pictures of the README, taken of `stallscope up` with its simulated GPUs and its real loop.

They are taken once Prometheus has told the verdicts and the report what to change, which takes some minutes.
"""

from __future__ import annotations

import tempfile
import time
import urllib.request
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser

from stallscope.cli import report
from stallscope.stack.settings import RUN
from tests.browser import chromium
from tests.end_to_end.up_process import started

FOLDER = Path(__file__).parent / "screenshots"
VERDICTS = ("Verdict: Slowed by heat", "Verdict: Waiting for data")
"""What the simulated GPUs' scenario and the loop's slow loader come to."""
WAIT_SECONDS = 600.0
COLOURS = 128
"""Enough for a page of few colours; a file is a third as large."""


def main() -> None:
    """Take them all."""
    with tempfile.TemporaryDirectory(prefix="stallscope-screenshots-") as folder, started(Path(folder)) as stack:
        url = f"http://127.0.0.1:{stack.ports['exporter']}/?refresh=off"
        stack.wait_until(lambda: _all_judged(url), "the page does not show the verdicts", WAIT_SECONDS)
        page = Path(folder) / "report.html"
        prometheus = f"http://127.0.0.1:{stack.ports['prometheus']}"
        stack.wait_until(lambda: _reported(prometheus, page), "there is no report with a recommendation", WAIT_SECONDS)
        with chromium.started() as browser:
            _take(browser, url, "status_page", 1280, 1850, "light")
            _take(browser, url, "status_page_phone", 360, 1400, "dark")
            _take(browser, page.as_uri(), "report", 1280, 1500, "light")


def _all_judged(url: str) -> bool:
    time.sleep(2)
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            page = reply.read().decode()
    except OSError:  # not up yet
        return False
    return all(words in page for words in VERDICTS)


def _reported(prometheus: str, page: Path) -> bool:
    """Whether the loop's report says what to change first; it takes its figures where they have settled."""
    time.sleep(10)
    prices = ("--price-per-gpu-hour", "2.50", "--currency", "EUR")
    told = report.main(["--prometheus.url", prometheus, "--run", RUN, "--out", str(page), *prices])
    return told == 0 and "Change this first" in page.read_text(encoding="utf-8")


def _take(browser: Browser, url: str, name: str, width: int, height: int, scheme: Literal["light", "dark"]) -> None:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(url)
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    page.close()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
