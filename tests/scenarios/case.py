"""A labelled case: a story and its correct diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stallscope.lab.replay.series import Series
from tests.scenarios.disturbance import Disturbance
from tests.scenarios.page import pages
from tests.scenarios.story import Story

__all__ = ["KINDS", "MISSING_RANK_ALERTS", "WELL", "Case", "Series", "render"]

WELL = frozenset({"healthy", "compute_bound"})
"""The two verdicts that report no problem."""
KINDS = ("positive", "negative", "abstention", "near")
MISSING_RANK_ALERTS = frozenset({"TrainingTelemetryMissing"})
"""Right where noise took away a rank's reports: one is truly missing."""


@dataclass(frozen=True, eq=False)  # compared by identity: names are unique
class Case:
    """A story and its correct diagnosis."""

    name: str
    """Unique, lower case, words joined by underscores."""
    kind: str
    """One of KINDS. `near`: at 0.8 or 1.25 of a published threshold."""
    subject: str
    """`run`, `gpu`, `server` or `host`: whose verdict or alert it is about. A server's verdict is that of its GPU."""
    cause: str
    """Word of the contract: the primary verdict expected, or the alert's cause where a cause never is primary."""
    story: Story
    acceptable: frozenset[str] = frozenset()
    """Further verdicts that count as correct, in addition to `cause`."""
    forbidden: frozenset[str] = frozenset()
    """Verdicts whose advice would be harmful."""
    alerts: frozenset[str] = frozenset()
    """Alerts expected, by name; empty: none above info."""
    level: float | None = None
    """Severity over the published threshold, for kind `near`: under 1 stays silent. Where less is worse (a clock, a
    utilisation) the figure is the threshold over the level."""
    onset: float = 7.0
    """Minute from which the cause holds."""
    length: float = 37.0
    """Minutes of the whole case."""
    lost: float | None = None
    """True share of GPU time lost, of the subject, while the cause holds."""
    tolerance: float = 0.05
    culprit: tuple[tuple[str, str], ...] | None = None
    """Labels of the rank, GPU or host at fault."""
    verdict_expected: bool = True
    """The cause may be a primary verdict."""
    run: str = "resnet50"
    """Name of the run concerned; empty if there is no run."""
    allowed: frozenset[str] = frozenset()
    """Further alerts above info that count as correct."""
    end: float | None = None
    """Minute from which the cause no longer holds; None if it holds to the end of the case."""
    before: frozenset[str] = WELL
    """Verdicts that count as correct before the onset and after the end."""


def render(case: Case, seed: int, *, noise: bool, labels: Mapping[str, str], scrape_seconds: int = 30) -> list[Series]:
    """Let the exporters of a case's machines be scraped.

    Args:
        case: the labelled story.
        seed: draws step times, and the noise; the same seed gives the same series.
        noise: disturb levels, scrapes and pages as a real installation does.
        labels: put on every series, beside `job` and `instance`.
        scrape_seconds: between two scrapes; the first is at Unix time 0.
    """
    scrapes = int(case.length * 60 / scrape_seconds) + 1
    disturbance = Disturbance(case.story, seed, scrapes, scrape_seconds, noise=noise, case=case.name)
    return [replace(each, labels={**labels, **each.labels}) for each in pages(case.story, disturbance)]
