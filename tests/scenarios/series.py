"""What a scraper stores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One series on the scrape grid."""

    name: str
    labels: dict[str, str]
    values: list[float | None]
    """One a scrape, the first at Unix time 0; None where there is no sample."""
