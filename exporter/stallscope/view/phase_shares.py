"""The shares of a loop's phases, limited to the largest, in the order of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.catalogue.metrics import OUTSIDE_PHASES, PHASES

KNOWN: Mapping[str, int] = {name: place for place, name in enumerate(dict.fromkeys((*PHASES, *OUTSIDE_PHASES)))}
"""Position of each predefined phase."""
_NAMED_FROM = 0.01
"""Smallest share of a phase that is named."""
_MAX_NAMED = 10
_MIN_REMAINDER = 0.005


class PhaseShare(NamedTuple):
    """A phase with its share of the time."""

    name: str
    """As in the label `phase`; empty for the sum of phases that are not named."""
    share: float


def phase_shares(seconds: Mapping[str, float]) -> list[PhaseShare]:
    """Return the phases' shares in the order of a step, with small phases combined; empty if there is no time."""
    total = sum(seconds.values())
    if total <= 0:
        return []
    large = {name for name, amount in seconds.items() if amount / total >= _NAMED_FROM}
    named = sorted(large, key=seconds.__getitem__, reverse=True)[:_MAX_NAMED]
    shares = [
        PhaseShare(name, seconds[name] / total)
        # Phases of the user come before `other`.
        for name in sorted(named, key=lambda name: (KNOWN.get(name, KNOWN["other"] - 0.5), name))
    ]
    remainder = 1 - sum(each.share for each in shares)
    return [*shares, PhaseShare("", remainder)] if remainder >= _MIN_REMAINDER else shares
