"""The system's own Chromium, driven by Playwright, which brings none here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

NAMES = ("chromium", "google-chrome")
PATIENCE = 90_000
"""Milliseconds in which a browser starts, or a page shows what it should, on the slowest of machines."""


def find() -> str | None:
    """Its path, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def started() -> Iterator[Browser]:
    """A browser without a window."""
    flags = ["--hide-scrollbars"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # which root has no need of, and Chromium refuses to do without a word
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=flags, timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Browser, width: int, height: int, **settings: Any) -> BrowserContext:
    """A window with a history and settings of its own."""
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    context.set_default_timeout(PATIENCE)
    return context


def overheard(page: Page) -> tuple[list[str], list[str]]:
    """From now on: the addresses that a page asks for, and what it says by console, dialogue or error."""
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("pageerror", lambda error: said.append(str(error)))
    return asked, said
