"""The newest page, ready in every form that scrapers ask for."""

from __future__ import annotations

import gzip as gzip_module
import time
from collections.abc import Callable

Form = tuple[bool, bool]
"""Whether OpenMetrics, whether gzip."""

_WANTED_FOR = 300.0
"""Seconds for which a form that was asked for is made ahead of the next scrape."""
_GZIP_LEVEL = 1
"""A quarter larger than level 9, and ten times cheaper (tests/benchmarks)."""


class Page:
    """One snapshot's bytes. A form is made once: ahead when scrapers use it, else on the first request for it."""

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        self._render = render
        self._forms: dict[Form, bytes] = {}

    def bytes(self, form: Form) -> bytes:
        """The page in that form."""
        made = self._forms.get(form)
        if made is None:
            openmetrics, compressed = form
            if compressed:
                made = gzip_module.compress(self.bytes((openmetrics, False)), _GZIP_LEVEL, mtime=0)
            else:
                made = self._render(openmetrics)
            # Two first requests at once both make it, and either result is right: no lock for a scrape to wait on.
            self._forms[form] = made
        return made


class Demand:
    """Remembers which forms scrapers use, so that the publisher makes them before they are asked for."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked: dict[Form, float] = {}

    def note(self, form: Form) -> None:
        """A scraper asked for this form."""
        self._asked[form] = self._monotonic()

    def forms(self) -> list[Form]:
        """Forms asked for lately."""
        now = self._monotonic()
        return [form for form, asked in list(self._asked.items()) if now - asked < _WANTED_FOR]
