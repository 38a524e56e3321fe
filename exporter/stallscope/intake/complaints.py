"""Rate-limited log messages about refused reports: a report may arrive twice a second."""

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
        """Start with no message logged."""
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def tell(self, where: str, error: ReportError) -> None:
        """Log why a report was refused."""
        now = self._clock.monotonic()
        if now - self._logged_at.get(error.reason, -_INTERVAL) >= _INTERVAL:
            self._logged_at[error.reason] = now
            _logger.warning("refused a report through %s (%s): %s", where, error.reason, error.message)
