"""Counts refused requests by reason; logs each reason once a minute."""

from __future__ import annotations

import logging
import threading
import time
from typing import Literal

from stallscope.model.catalogue.metrics import family
from stallscope.node.sampling.reading import Sample

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
        self._logged_at: dict[str, float] = {}

    def count(self, reason: Reason, client: str, why: str) -> None:
        """Count one refused request.

        Args:
            reason: the value of the label `reason`.
            client: the address of the client.
            why: text for the log. It must not contain text from the client, because each distinct text is stored.
        """
        now = time.monotonic()
        with self._counting:
            self._counts[reason] += 1
            logged = now - self._logged_at.get(why, -_COMPLAINT_SECONDS) < _COMPLAINT_SECONDS
            if not logged:
                self._logged_at[why] = now
        if not logged:
            _logger.warning("refused a client at %s: %s", client or "an unknown address", why)

    def collect(self) -> list[Sample]:
        """Return the counters. Reads memory only."""
        return [Sample(REFUSED, (reason,), number) for reason, number in self._counts.items()]
