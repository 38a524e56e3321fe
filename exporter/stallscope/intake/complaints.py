"""Log lines about refused reports: a few of them, since a report may come twice a second."""

from __future__ import annotations

import logging

from stallscope.protocol.report import ReportError
from stallscope.sampling.clock import Clock

_logger = logging.getLogger(__name__)

_INTERVAL = 60.0
"""Seconds between two log lines about refusals of one reason."""


class Complaints:
    """Times at which each warning was last logged."""

    def __init__(self, clock: Clock) -> None:
        """Start with nothing told."""
        self._clock = clock
        self._told: dict[str, float] = {}

    def tell(self, where: str, error: ReportError) -> None:
        """Log why a report was refused."""
        now = self._clock.monotonic()
        if now - self._told.get(error.reason, -_INTERVAL) >= _INTERVAL:
            self._told[error.reason] = now
            _logger.warning("refused a report through %s (%s): %s", where, error.reason, error.message)
