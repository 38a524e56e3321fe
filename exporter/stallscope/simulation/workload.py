"""The phase model: steps of a data-parallel job, drawn at random by seed, from which every signal follows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from stallscope.simulation.scenarios import Workload


class PhaseEffect(NamedTuple):
    """What a phase asks of the GPU, as ratios."""

    busy: float
    memory: float
    """Time in which device memory is read or written."""
    power: float
    """Share of the dynamic power at full clocks."""


IDLE = PhaseEffect(0.0, 0.0, 0.0)
SPINNING = PhaseEffect(1.0, 0.02, 0.3)
"""A collective's kernel that polls for its peers: resident all the time, at little power."""

EFFECTS: dict[str, PhaseEffect] = {
    "data_wait": IDLE,
    # A copy keeps the copy engine busy, which utilisation (kernels resident) does not count.
    "host_copy": PhaseEffect(0.0, 0.1, 0.05),
    "forward": PhaseEffect(1.0, 0.45, 0.9),
    "backward": PhaseEffect(1.0, 0.55, 1.0),
    # A collective's kernel is resident while it waits for slower ranks.
    "communication": PhaseEffect(1.0, 0.15, 0.3),
    "optimizer": PhaseEffect(1.0, 0.9, 0.7),
}
"""In the order in which a step runs through its phases."""

PhaseTime = tuple[str, float]


class Step(NamedTuple):
    """One step of all ranks: they share its boundaries, because the slowest decides."""

    start: float
    """Seconds since the simulation began."""
    end: float
    ranks: tuple[tuple[PhaseTime, ...], ...]
    """Phases of each rank in their order; they sum to the step."""


class StepGenerator:
    """Draws one step after the other; the same seed draws the same steps."""

    def __init__(self, ranks: int, seed: int) -> None:
        self._ranks = ranks
        self._random = random.Random(seed)  # noqa: S311 - a reproducible workload, no secret

    def draw(self, workload: Workload, start: float, slowdown: Sequence[float]) -> Step:
        """Draw the step that begins at `start`; a rank's GPU phases take `slowdown` times as long as at full clocks."""
        gauss = self._random.gauss
        means = [(phase, getattr(workload, phase)) for phase in EFFECTS if phase != "communication"]
        own = [
            {
                phase: mean
                * max(0.2, gauss(1.0, workload.variation))
                * (slowdown[rank] if EFFECTS[phase].busy else 1.0)
                for phase, mean in means
            }
            for rank in range(self._ranks)
        ]
        collective = workload.communication * max(0.2, gauss(1.0, workload.variation))
        totals = [sum(phases.values()) for phases in own]
        length = max(totals) + collective
        ranks = []
        for phases, total in zip(own, totals, strict=True):
            phases["communication"] = length - total
            ranks.append(tuple((phase, phases[phase]) for phase in EFFECTS if phases[phase] > 0.0))
        return Step(start, start + length, tuple(ranks))
