"""The shim's own cost in the loop, measured once on this machine.

Timing every step and phase would cost as much again as booking them, so a throw-away timeline is timed instead.
"""

from __future__ import annotations

import time
from functools import cache
from math import inf

from stallscope.training.shim.timeline import Timeline

_BATCHES = 4
_ROUNDS = 32


def booking_cost(timeline: Timeline) -> float:
    """Return the seconds that the booking of steps and phases has cost so far."""
    if not timeline.steps:
        return 0.0
    step_cost, phase_cost = costs()
    occurrences = sum([phase.occurrences for phase in timeline.phases.values()])
    return timeline.steps * step_cost + occurrences * phase_cost


@cache
def costs() -> tuple[float, float]:
    """Seconds for one step and for one phase, each of the quickest batch; takes a quarter of a millisecond, once."""
    timeline = Timeline(time.monotonic, lambda _: None, inf)
    phase = timeline.phase("optimizer")
    step_cost = phase_cost = inf
    for _ in range(_BATCHES):
        began = time.perf_counter()
        for _ in range(_ROUNDS):
            timeline.step()
        stepped = time.perf_counter()
        for _ in range(_ROUNDS):
            with phase:
                pass
        ended = time.perf_counter()
        step_cost = min(step_cost, (stepped - began) / _ROUNDS)
        phase_cost = min(phase_cost, (ended - stepped) / _ROUNDS)
    return step_cost, phase_cost
