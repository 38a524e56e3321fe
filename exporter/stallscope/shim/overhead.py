"""What the shim itself costs in the loop, measured once on this machine.

Timing every step and phase would cost as much again as booking them, so a throw-away timeline is timed instead.
"""

from __future__ import annotations

import time
from functools import cache
from math import inf

from stallscope.shim.timeline import Timeline

_ROUNDS = 64


@cache
def costs() -> tuple[float, float]:
    """Seconds for one step and for one phase; takes about a quarter of a millisecond, once a process."""
    timeline = Timeline(time.monotonic, lambda _: None, inf)
    phase = timeline.phase("forward")
    began = time.perf_counter()
    for _ in range(_ROUNDS):
        timeline.step()
    stepped = time.perf_counter()
    for _ in range(_ROUNDS):
        with phase:
            pass
    ended = time.perf_counter()
    return (stepped - began) / _ROUNDS, (ended - stepped) / _ROUNDS
