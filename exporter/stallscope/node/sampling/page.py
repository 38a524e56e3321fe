"""The newest page, rendered in every form that scrapers request."""

from __future__ import annotations

import gzip as gzip_module
import time
from collections.abc import Callable

Form = tuple[bool, bool]
"""(OpenMetrics, gzip)."""

_WANTED_FOR = 300.0
"""Seconds after a request for which its form is rendered ahead of the next scrape."""
_GZIP_LEVEL = 1
"""A quarter larger than level 9, and ten times cheaper (tests/benchmarks)."""


class Page:
    """Bytes of one snapshot. Each form is rendered once: ahead if scrapers use it, otherwise on its first request."""

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        self._render = render
        self._forms: dict[Form, bytes] = {}

    def bytes(self, form: Form) -> bytes:
        """Return the page in this form."""
        made = self._forms.get(form)
        if made is None:
            openmetrics, compressed = form
            if compressed:
                made = gzip_module.compress(self.bytes((openmetrics, False)), _GZIP_LEVEL, mtime=0)
            else:
                made = self._render(openmetrics)
            # Two first requests at once both render it, with equal results, so a scrape needs no lock.
            self._forms[form] = made
        return made


class Demand:
    """Track which forms scrapers use, so that the publisher renders them ahead."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._requested: dict[Form, float] = {}

    def note(self, form: Form) -> None:
        """Record a request for this form."""
        self._requested[form] = self._monotonic()

    def forms(self) -> list[Form]:
        """Return the forms requested recently."""
        now = self._monotonic()
        return [form for form, requested in list(self._requested.items()) if now - requested < _WANTED_FOR]
