"""Scaling: the gain of a run on more GPUs over a run on fewer.

scaling(gpus=2, rate=6100, base_gpus=1, base_rate=3500).efficiency == 0.871
"""

from __future__ import annotations

from typing import NamedTuple


class Scaling(NamedTuple):
    """The scaling of a run relative to its base."""

    speed_up: float
    """Ratio of the run's rate of work to the base's."""
    efficiency: float
    """Ratio of the run's rate of work per GPU to the base's."""
    gpus_lost: float
    """Number of GPUs whose whole time the loss of efficiency equals; negative if the run is more efficient."""


def scaling(*, gpus: float, rate: float, base_gpus: float, base_rate: float) -> Scaling:
    """Compare two runs of the same work.

    Args:
        gpus: number of GPUs of the run, at least one.
        rate: samples or tokens per second of the run on all its GPUs.
        base_gpus: number of GPUs of the base.
        base_rate: samples or tokens per second of the base, more than 0.
    """
    speed_up = rate / base_rate
    efficiency = speed_up * base_gpus / gpus
    return Scaling(speed_up, efficiency, gpus * (1 - efficiency))
