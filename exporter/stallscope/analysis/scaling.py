"""The study of several GPUs: what a run on more of them gives against one on fewer.

scaling(gpus=2, rate=6100, base_gpus=1, base_rate=3500).efficiency == 0.871
"""

from __future__ import annotations

from typing import NamedTuple


class Scaling(NamedTuple):
    """A run against its base."""

    speed_up: float
    """How many times the work of the base it does in a second."""
    efficiency: float
    """What each of its GPUs does, as a share of what each of the base's does."""
    gpus_lost: float
    """How many of its GPUs' whole time goes into being many; negative where they do more than the base's."""


def scaling(*, gpus: float, rate: float, base_gpus: float, base_rate: float) -> Scaling:
    """Compare two runs of the same work.

    Args:
        gpus: of the run, at least one.
        rate: samples or tokens that it does in a second on all of them together.
        base_gpus: the same of the base.
        base_rate: the same of the base, more than 0.
    """
    speed_up = rate / base_rate
    efficiency = speed_up * base_gpus / gpus
    return Scaling(speed_up, efficiency, gpus * (1 - efficiency))
