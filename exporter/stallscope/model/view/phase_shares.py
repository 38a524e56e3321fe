"""The shares of a loop's phases, limited to the largest, in the order of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.common.formatting import percent, readable, whole_percents
from stallscope.model.catalogue.metrics import OUTSIDE_PHASES, PHASES

KNOWN: Mapping[str, int] = {name: place for place, name in enumerate(dict.fromkeys((*PHASES, *OUTSIDE_PHASES)))}
"""Position of each predefined phase."""
_NAMED_FROM = 0.01
"""Smallest share of a phase that is named."""
_MAX_NAMED = 10
_MIN_REMAINDER = 0.005
_LONGEST = 24
WORK = ("forward", "backward", "optimizer")
REMAINDER = "other"
"""Phase of a step with the time that no other phase has."""
LEAST_STEPS = 26
"""Steps of a rank from which there is advice on its largest phase: the first ones are slow."""
_COMPUTING = ("forward", "backward")
"""Phases of integrations, which find evaluations too."""


class PhaseShare(NamedTuple):
    """A phase with its share of the time."""

    name: str
    """As in the label `phase`; empty for the sum of phases that are not named."""
    share: float


def phase_shares(seconds: Mapping[str, float]) -> list[PhaseShare]:
    """Return the phases' shares in the order of a step, with small phases combined; empty if there is no time.

    The shares are whole per cents that add up to 100, except where the phases that are not named take under 0.5 %.
    """
    total = sum(seconds.values())
    if total <= 0:
        return []
    large = {name for name, amount in seconds.items() if amount / total >= _NAMED_FROM}
    named = sorted(large, key=seconds.__getitem__, reverse=True)[:_MAX_NAMED]
    # Phases of the user come before `other`.
    names = sorted(named, key=lambda name: (KNOWN.get(name, KNOWN["other"] - 0.5), name))
    exact = {name: seconds[name] / total for name in names}
    remainder = 1 - sum(exact.values())
    if remainder >= _MIN_REMAINDER:
        exact[""] = remainder
    return [PhaseShare(name, whole / 100) for name, whole in whole_percents(exact).items() if name or whole]


def rounded_share(shares: Mapping[str, float], phase: str, share: float) -> str:
    """Return a share in a phase as per cent; that of the whole phase as `phase_shares` rounds it."""
    whole = {each.name: each.share for each in phase_shares(shares)}
    return percent(whole[phase] if phase in whole and share == shares[phase] else share)


def largest_loss(shares: Mapping[str, float]) -> str:
    """Return the phase with the largest share apart from the work; empty if none has a share worth naming.

    The remainder of the steps counts if the work is measured as phases of its own.
    """
    work = WORK if WORK[0] in shares else (*WORK, REMAINDER)
    named = [each.name for each in phase_shares(shares) if each.name and each.name not in work]
    return max(named, key=lambda name: shares[name], default="")


def step_contents(seconds: Mapping[str, float]) -> str:
    """Return which pauses of the loop a step contains, such as `with checkpoints but without evaluation`.

    Where the forward and backward pass are not measured, an evaluation is known only if the program names it.
    """
    named = {each.name for each in phase_shares(seconds)}
    is_hidden = seconds and "evaluation" not in named and not any(seconds.get(phase) for phase in _COMPUTING)
    within = ["checkpoints"] if "checkpoint" in named else []
    within += ["any evaluation in the loop"] if is_hidden else []
    outside = " and ".join(phase for phase in ("evaluation", "restore") if phase in named)
    parts = (f"with {' and '.join(within)}" if within else "", f"without {outside}" if outside else "")
    return " but ".join(filter(None, parts))


def title_of_share(name: str) -> str:
    """Return the name of a phase in words."""
    return readable(name, _LONGEST).replace("_", " ") or "small phases"
