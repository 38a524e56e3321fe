"""The system's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

NAMES = ("chromium", "google-chrome")
PATIENCE = 90_000
"""Timeout in milliseconds for a browser's start or a page's content, even on a slow machine."""


def find() -> str | None:
    """Return the path of Chromium, if installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def started() -> Iterator[Browser]:
    """Run a headless browser."""
    flags = ["--hide-scrollbars"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium does not start as root without this flag
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=flags, timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Browser, width: int, height: int, **settings: Any) -> BrowserContext:
    """Open a window with its own history and settings."""
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    context.set_default_timeout(PATIENCE)
    return context


def overheard(page: Page) -> tuple[list[str], list[str]]:
    """Record the addresses that a page requests, and its console messages, dialogs and errors."""
    requested: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("pageerror", lambda error: said.append(str(error)))
    return requested, said
