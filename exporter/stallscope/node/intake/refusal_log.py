"""Rate-limited log of refused reports: a shim may send one twice a second."""

from __future__ import annotations

import logging

from stallscope.node.sampling.clock import Clock
from stallscope.training.protocol.report import ReportError

_logger = logging.getLogger(__name__)

_INTERVAL = 60.0
"""Minimum seconds between two log messages with the same reason."""


class RefusalLog:
    """Logs each reason at most once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def log(self, where: str, error: ReportError) -> None:
        """Log why a report was refused.

        Args:
            where: receiver, and sender where known.
            error: the refusal.
        """
        now = self._clock.monotonic()
        if now - self._logged.get(error.reason, -_INTERVAL) >= _INTERVAL:
            self._logged[error.reason] = now
            _logger.warning("refused a report through %s (%s): %s", where, error.reason, error.message)
