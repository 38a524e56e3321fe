"""The phase model: steps of a data-parallel job, drawn at random by seed, from which every signal follows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from stallscope.lab.simulation.scenarios import Workload


class PhaseEffect(NamedTuple):
    """A phase's use of the GPU: shares of its time, and bytes a second."""

    busy: float = 0.0
    """Some kernel is resident; no other share of the GPU's units is above it."""
    memory: float = 0.0
    """Time in which device memory is read or written."""
    power: float = 0.0
    """Share of the dynamic power at full clocks."""
    sm: float = 0.0
    """Multiprocessors that hold a warp."""
    occupancy: float = 0.0
    """Warps held, of all that would fit."""
    dram: float = 0.0
    """Cycles in which memory moves data."""
    tensor: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    integer: float = 0.0
    pcie_received: float = 0.0
    """Bytes a second, as are the following."""
    pcie_transmitted: float = 0.0
    nvlink: float = 0.0
    """In each direction."""


IDLE = PhaseEffect()
SPINNING = PhaseEffect(busy=1.0, memory=0.02, power=0.3, sm=0.15, occupancy=0.05, dram=0.01, integer=0.02)
"""A collective's kernel that polls for its peers: resident all the time, on few multiprocessors, at little power."""

EFFECTS: dict[str, PhaseEffect] = {
    "data_wait": IDLE,
    # A copy keeps the copy engine busy, which utilisation (kernels resident) does not count.
    "host_copy": PhaseEffect(memory=0.1, power=0.05, dram=0.02, pcie_received=25e9, pcie_transmitted=0.1e9),
    "forward": PhaseEffect(
        busy=1.0,
        memory=0.45,
        power=0.9,
        sm=0.91,
        occupancy=0.42,
        dram=0.38,
        tensor=0.58,
        fp32=0.12,
        fp16=0.03,
        integer=0.09,
        pcie_transmitted=0.02e9,
    ),
    "backward": PhaseEffect(
        busy=1.0,
        memory=0.55,
        power=1.0,
        sm=0.93,
        occupancy=0.45,
        dram=0.47,
        tensor=0.64,
        fp32=0.14,
        fp16=0.03,
        integer=0.1,
        pcie_transmitted=0.02e9,
    ),
    # The collective itself; who waits in it for slower ranks spins.
    "communication": PhaseEffect(
        busy=1.0, memory=0.15, power=0.3, sm=0.18, occupancy=0.06, dram=0.12, fp32=0.02, integer=0.02, nvlink=200e9
    ),
    "optimizer": PhaseEffect(
        busy=1.0, memory=0.9, power=0.7, sm=0.86, occupancy=0.7, dram=0.82, fp32=0.24, integer=0.06
    ),
}
"""In the order in which a step runs through its phases."""

PhaseTime = tuple[str, float]


def effect_of(phase: str, workload: Workload) -> PhaseEffect:
    """Return the use of the GPU by a phase of a rank with this workload."""
    if phase == "evaluation":
        phase = "forward"
    effect = EFFECTS.get(phase, IDLE)
    return effect._replace(**workload.kernels) if phase in ("forward", "backward") else effect


_PHASES = (*EFFECTS, "other")
_OWN_PHASES = tuple(phase for phase in _PHASES if phase != "communication")
"""Phases whose length does not depend on other ranks."""


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

    def draw(
        self, workloads: Sequence[Workload], start: float, slowdown: Sequence[float], pause: PhaseTime | None = None
    ) -> Step:
        """Draw a step.

        Args:
            workloads: the workload of each rank.
            start: the beginning of the step.
            slowdown: how many times as long as at full clocks each rank's GPU phases take.
            pause: the phase that all ranks begin the step with, and its seconds.
        """
        gauss = self._random.gauss
        own = [
            {
                phase: getattr(workload, phase)
                * max(0.2, gauss(1.0, workload.variation))
                * (slowdown[rank] if phase in EFFECTS and EFFECTS[phase].busy else 1.0)
                for phase in _OWN_PHASES
                if phase in EFFECTS or workload.other
            }
            for rank, workload in enumerate(workloads)
        ]
        for workload, phases in zip(workloads, own, strict=True):
            if workload.unevenness:
                # So that the mean is 1.
                factor = self._random.lognormvariate(-(workload.unevenness**2) / 2, workload.unevenness)
                for phase in ("forward", "backward"):
                    phases[phase] *= factor
        workload = workloads[0]
        collective = workload.communication * max(0.2, gauss(1.0, workload.variation))
        totals = [sum(phases.values()) for phases in own]
        length = max(totals) + collective
        before = () if pause is None else (pause,)
        ranks = []
        for phases, total in zip(own, totals, strict=True):
            phases["communication"] = length - total
            ranks.append(before + tuple((phase, phases[phase]) for phase in _PHASES if phases.get(phase, 0.0) > 0.0))
        return Step(start, start + length + sum(seconds for _, seconds in before), tuple(ranks))
