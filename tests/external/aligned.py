"""Put the steps of several ranks next to each other, by their numbers: clocks of ranks may differ by seconds."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from tests.external.errors import ExternalError
from tests.external.recording import MAX_RANK_STEPS, Recording

Steps = Mapping[int, Mapping[str, float]]
"""Seconds by phase, by the number of the step."""


def aligned(
    name: str, source: str, ranks: Mapping[int, Steps], *, stages: Mapping[int, int] | None = None
) -> Recording:
    """Return the recording of the steps that all ranks have.

    Args:
        name: what was read, for errors.
        source: where the data are from.
        ranks: steps by global rank.
        stages: pipeline stage by global rank, if known.

    Raises:
        ExternalError: the ranks have fewer than two steps in common.
    """
    if not ranks:
        raise ExternalError(f"{name}: no rank with a step; check the format")
    numbers = sorted(set.intersection(*(set(steps) for steps in ranks.values())))
    if len(numbers) < 2:
        raise ExternalError(
            f"{name}: the {len(ranks)} ranks have {len(numbers)} steps in common, two are needed; record longer"
        )
    notes = []
    most = max(len(steps) for steps in ranks.values())
    if most > len(numbers):
        notes.append(f"{most - len(numbers)} steps are left out, because a rank lacks them")
    kept = numbers[: max(2, MAX_RANK_STEPS // len(ranks))]
    if len(kept) < len(numbers):
        notes.append(f"only the first {len(kept)} steps are used")
    order = sorted(ranks)
    missing = sorted(set(range(order[-1] + 1)) - set(order))
    if missing:
        notes.append(f"{len(missing)} of ranks 0 to {order[-1]} are not recorded")
    return Recording(
        name=name,
        source=source,
        ranks=tuple(order),
        stages=tuple(stages[rank] for rank in order) if stages else (),
        steps=[[ranks[rank][number] for rank in order] for number in kept],
        notes=tuple(notes),
    )


def checked_duration(where: str, seconds: float) -> float:
    """Return a duration unchanged.

    Raises:
        ExternalError: it is negative or no finite number.
    """
    if not isfinite(seconds):
        raise ExternalError(f"{where}: {seconds} is no duration; leave the step out")
    if seconds < 0:
        raise ExternalError(f"{where}: {seconds:g} s is negative, the clock went back; leave the step out")
    return seconds
