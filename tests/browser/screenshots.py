"""`make screenshots`: the README's pictures of the status page and of a report.

Those of the page are taken of `stallscope up` with its simulated GPUs and its real loop, once Prometheus has the
verdicts, which takes some two minutes.
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

from stallscope.tools.cli import report
from stallscope.tools.report import lost_time
from tests.browser import chromium
from tests.end_to_end.up_process import started
from tests.filled_prometheus import filled_prometheus

FOLDER = Path(__file__).parent / "screenshots"
VERDICTS = ("Verdict: Slowed by heat", "Verdict: Waiting for data")
"""The expected verdicts of the simulated GPUs and of the loop with a slow loader."""
WAIT_SECONDS = 600.0
RUN = "straggling"
"""A run of `tests/installation.py` with four GPUs, one of which is a straggler."""
COLOURS = 128
"""Enough for a page with few colours, at a third of the file size."""


def main() -> None:
    """Take all pictures."""
    _take_report()
    with tempfile.TemporaryDirectory(prefix="stallscope-screenshots-") as folder, started(Path(folder)) as stack:
        url = f"http://127.0.0.1:{stack.ports['exporter']}/?refresh=off"
        stack.wait_until(lambda: _all_judged(url), "the page does not show the verdicts", WAIT_SECONDS)
        with chromium.started() as browser:
            _take(browser, url, "status_page", 1280, 1850, "light")
            _take(browser, url, "status_page_phone", 360, 1400, "dark")


def _take_report() -> None:
    """Take pictures of a report, of its head and of the lost time, for a run with half an hour of problems."""
    with tempfile.TemporaryDirectory(prefix="stallscope-screenshots-") as folder, filled_prometheus() as filled:
        page = Path(folder) / "report.html"
        prices = ("--price-per-gpu-hour", "2.50", "--currency", "EUR")
        report.main(["--prometheus.url", filled.server.address, "--run", RUN, "--out", str(page), *prices])
        with chromium.started() as browser:
            _take(browser, page.as_uri(), "report", 1280, 900, "light")
            _take(browser, f"{page.as_uri()}#{lost_time.KEY}", "report_time", 1280, 2000, "light")


def _all_judged(url: str) -> bool:
    time.sleep(2)
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            page = reply.read().decode()
    except OSError:  # not up yet
        return False
    return all(words in page for words in VERDICTS)


def _take(browser: Browser, url: str, name: str, width: int, height: int, scheme: Literal["light", "dark"]) -> None:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(url)
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    page.close()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
