"""Counts refused requests by reason; logs each reason once a minute."""

from __future__ import annotations

import logging
import threading
import time
from typing import Literal

from stallscope.catalogue.metrics import family
from stallscope.sampling.reading import Sample

_logger = logging.getLogger(__name__)

REFUSED = family("stallscope_exporter_requests_refused_total")

Reason = Literal["credentials", "certificate", "forbidden", "handshake", "malformed", "limits"]
REASONS: tuple[Reason, ...] = ("credentials", "certificate", "forbidden", "handshake", "malformed", "limits")
_COMPLAINT_SECONDS = 60.0
"""Seconds between two log lines with the same reason: any client can cause them."""


class Refusals:
    """Counter and log of refusals. Thread-safe."""

    def __init__(self) -> None:
        """Start at zero."""
        self._counting = threading.Lock()
        self._counts: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._told: dict[str, float] = {}

    def count(self, reason: Reason, client: str, why: str) -> None:
        """Note one.

        Args:
            reason: which of the few kinds it is of.
            client: the address of who was sent away.
            why: words for the log, never the client's own: each of them is remembered.
        """
        now = time.monotonic()
        with self._counting:
            self._counts[reason] += 1
            told = now - self._told.get(why, -_COMPLAINT_SECONDS) < _COMPLAINT_SECONDS
            if not told:
                self._told[why] = now
        if not told:
            _logger.warning("refused a client at %s: %s", client or "an unknown address", why)

    def collect(self) -> list[Sample]:
        """The counters. Memory only."""
        return [Sample(REFUSED, (reason,), number) for reason, number in self._counts.items()]
