"""A straight line through a few measurements of positive figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Point = tuple[float, float]
"""Where it was measured, and what."""


class Line(NamedTuple):
    """What a figure is at zero, and what each unit adds."""

    fixed: float
    slope: float
    deviation: float
    """Largest distance of a measurement from the line, as a share of the measurement."""
    places: int
    """At how many different places it was measured; the line passes through any two whatever they are."""

    def at(self, place: float) -> float:
        """The figure at that place."""
        return self.fixed + self.slope * place


def line_through(points: Sequence[Point]) -> Line | None:
    """The line with the least squared deviations, each as a share of its measurement.

    Timings scatter by a share of themselves: taken in seconds, the scatter of the largest batch would drown what the
    smallest says of the fixed part.

    Args:
        points: measurements, each more than 0.

    Returns:
        None where they were measured at fewer than two places.
    """
    places = len({place for place, _ in points})
    if places < 2:
        return None
    weights = [figure**-2 for _, figure in points]
    whole = sum(weights)
    middle = sum(weight * place for weight, (place, _) in zip(weights, points, strict=True)) / whole
    mean = sum(weight * figure for weight, (_, figure) in zip(weights, points, strict=True)) / whole
    spread = sum(weight * (place - middle) ** 2 for weight, (place, _) in zip(weights, points, strict=True))
    together = sum(
        weight * (place - middle) * (figure - mean) for weight, (place, figure) in zip(weights, points, strict=True)
    )
    slope = together / spread
    fixed = mean - slope * middle
    deviation = max(abs(fixed + slope * place - figure) / figure for place, figure in points)
    return Line(fixed, slope, deviation, places)
