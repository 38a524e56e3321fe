"""Where a loop's time goes: its phases by their share, as many as there is room for, in the order of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.catalogue.metrics import OUTSIDE_PHASES, PHASES

KNOWN: Mapping[str, int] = {name: place for place, name in enumerate(dict.fromkeys((*PHASES, *OUTSIDE_PHASES)))}
"""Place of each phase that is not a user's own."""
_NAMED_FROM = 0.01
"""Share from which a phase is named by itself."""
_MAX_NAMED = 10
_REST_FROM = 0.005


class PhaseShare(NamedTuple):
    """A part of the time."""

    name: str
    """As in the label `phase`; empty for all that are not named."""
    share: float


def phase_shares(seconds: Mapping[str, float]) -> list[PhaseShare]:
    """Phases by their share of the time, in the order of a step; small ones as one. Nothing where there is no time."""
    total = sum(seconds.values())
    if total <= 0:
        return []
    large = {name for name, amount in seconds.items() if amount / total >= _NAMED_FROM}
    named = sorted(large, key=seconds.__getitem__, reverse=True)[:_MAX_NAMED]
    shares = [
        PhaseShare(name, seconds[name] / total)
        # A user's own stand before what is left of the step.
        for name in sorted(named, key=lambda name: (KNOWN.get(name, KNOWN["other"] - 0.5), name))
    ]
    rest = 1 - sum(each.share for each in shares)
    return [*shares, PhaseShare("", rest)] if rest >= _REST_FROM else shares
