"""How often the web server sent somebody away, by reason: a log line comes once a minute, a counter each time."""

from __future__ import annotations

import threading
from typing import Literal

from stallscope.catalogue import family
from stallscope.sampling.reading import Sample

REFUSED = family("stallscope_exporter_requests_refused_total")

Reason = Literal["credentials", "certificate", "handshake", "limits"]
REASONS: tuple[Reason, ...] = ("credentials", "certificate", "handshake", "limits")


class Refusals:
    """Counts. Any thread may call."""

    def __init__(self) -> None:
        """Start at zero."""
        self._counting = threading.Lock()
        self._counts: dict[Reason, int] = dict.fromkeys(REASONS, 0)

    def count(self, reason: Reason) -> None:
        """Note one."""
        with self._counting:
            self._counts[reason] += 1

    def collect(self) -> list[Sample]:
        """The counters. Memory only."""
        return [Sample(REFUSED, (reason,), number) for reason, number in self._counts.items()]
