"""One simulated GPU: utilisation, power, temperature, clocks and energy follow from its work."""

from __future__ import annotations

import math
from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from stallscope.lab.simulation.workload import IDLE, PhaseEffect

IDLE_WATTS = 69.0
DYNAMIC_WATTS = 565.0
"""Full load comes to 634 W, as measured on an H100 SXM under a burn-in load."""
POWER_LIMIT_WATTS = 700.0
MEMORY_BYTES = 81_559 * 1024**2
POWER_EXPONENT = 2.5
"""Dynamic power against clock: frequency times voltage squared, the voltage falling with the frequency."""
INLET_CELSIUS = 34.0
THERMAL_RESISTANCE = 0.05
"""Celsius above the inlet for each watt."""
THERMAL_SECONDS = 40.0
"""Time constant of die, spreader and heat sink."""
THROTTLE_CELSIUS = 86.0
THROTTLE_SPAN_CELSIUS = 8.0
"""The driver lowers clocks in proportion to the excess over its limit, by all of them over this span."""
LOWEST_CLOCK_RATIO = 0.18

SAMPLES_PER_SECOND = 6
SAMPLES_KEPT = 100
"""Length of the driver's sample buffer: about 16 s."""
_HISTORY_SECONDS = SAMPLES_KEPT / SAMPLES_PER_SECOND + 2.0
_TRIM_AT = 4096


class _Segment(NamedTuple):
    """An interval of constant work, with the totals at its start."""

    start: float
    effect: PhaseEffect
    clock_ratio: float
    watts: float
    settled_celsius: float
    celsius: float
    totals: PhaseEffect
    joules: float
    throttled_seconds: float


class GpuState(NamedTuple):
    """State of the GPU at one moment."""

    watts: float
    celsius: float
    clock_ratio: float
    joules: float
    totals: PhaseEffect
    """Integrals of the work's load: seconds, and bytes."""
    throttled_seconds: float

    @property
    def throttled(self) -> bool:
        """True if the clocks are below the highest."""
        return self.clock_ratio < 1.0


class SimulatedGpu:
    """History of the GPU, as intervals of constant work; can be queried for any moment of its last seconds."""

    def __init__(self, thermal_spread: float) -> None:
        self._resistance = THERMAL_RESISTANCE * thermal_spread
        start = INLET_CELSIUS + self._resistance * IDLE_WATTS
        self._end = 0.0
        self._last = GpuState(IDLE_WATTS, start, 1.0, 0.0, IDLE, 0.0)
        self._segments: list[_Segment] = []
        self._highest_clock_ratio = 1.0

    def limit_clock(self, ratio: float) -> None:
        """Limit the clock to this share of the maximum from now on."""
        self._highest_clock_ratio = ratio

    def worsen_cooling(self, factor: float) -> None:
        """Reduce the cooling from now on."""
        self._resistance *= factor

    def clock_ratio(self) -> float:
        """Return the clock at the end of the history, as a share of the maximum."""
        excess = self._last.celsius - THROTTLE_CELSIUS
        heat = 1.0 if excess <= 0 else max(LOWEST_CLOCK_RATIO, 1.0 - excess / THROTTLE_SPAN_CELSIUS)
        return min(heat, self._highest_clock_ratio)

    def work(self, effect: PhaseEffect, seconds: float, clock_ratio: float) -> None:
        """Append an interval of work."""
        before = self._last
        watts = IDLE_WATTS + DYNAMIC_WATTS * effect.power * clock_ratio**POWER_EXPONENT
        segment = _Segment(
            self._end,
            effect,
            clock_ratio,
            watts,
            INLET_CELSIUS + self._resistance * watts,
            before.celsius,
            before.totals,
            before.joules,
            before.throttled_seconds,
        )
        self._segments.append(segment)
        self._end += seconds
        self._last = _state(segment, seconds)
        if len(self._segments) > _TRIM_AT:
            del self._segments[: bisect_right(self._segments, self._end - 2 * _HISTORY_SECONDS, key=_start) - 1]

    def at(self, time: float) -> GpuState:
        """The state at a moment of the recent past."""
        segment = self._segments[max(bisect_right(self._segments, time, key=_start) - 1, 0)]
        return _state(segment, max(time - segment.start, 0.0))


_start = attrgetter("start")


def _state(segment: _Segment, seconds: float) -> GpuState:
    settled = segment.settled_celsius
    return GpuState(
        watts=segment.watts,
        celsius=settled + (segment.celsius - settled) * math.exp(-seconds / THERMAL_SECONDS),
        clock_ratio=segment.clock_ratio,
        joules=segment.joules + segment.watts * seconds,
        totals=PhaseEffect(
            *[total + rate * seconds for total, rate in zip(segment.totals, segment.effect, strict=True)]
        ),
        throttled_seconds=segment.throttled_seconds + (seconds if segment.clock_ratio < 1.0 else 0.0),
    )
