"""The samples that a scraper stores."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One series as a scraper stores it."""

    name: str
    labels: dict[str, str]
    values: list[float | None]
    """One for each scrape, the first at Unix time 0. None where a scrape does not have the series; not a number where
    Prometheus did not scrape, so that it stored no mark of an end either."""

    def sample(self, position: int) -> float | None:
        """Return the value that was stored at a scrape; None if there is none."""
        value = self.values[position]
        return None if value is None or math.isnan(value) else value
