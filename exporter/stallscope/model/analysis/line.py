"""Fit a straight line to a few positive measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Point = tuple[float, float]
"""Place x, and the value measured there."""


class Line(NamedTuple):
    """A value at zero, and its increase per unit."""

    fixed: float
    slope: float
    deviation: float
    """Largest distance of a measurement from the line, as a share of the measurement."""
    places: int
    """Number of different places; a line through two places always fits exactly."""

    def at(self, place: float) -> float:
        """Return the value of the line at a place."""
        return self.fixed + self.slope * place


def line_through(points: Sequence[Point]) -> Line | None:
    """Return the line with the least squared relative deviations; None if there are fewer than two places.

    Timings scatter in proportion to their size. With absolute deviations, the scatter of the largest batch would hide
    the fixed part in the smallest.

    Args:
        points: measurements, each greater than 0.
    """
    places = len({place for place, _ in points})
    if places < 2:
        return None
    weights = [value**-2 for _, value in points]
    total_weight = sum(weights)
    weighted = list(zip(weights, points, strict=True))
    mean_place = sum(weight * place for weight, (place, _) in weighted) / total_weight
    mean_value = sum(weight * value for weight, (_, value) in weighted) / total_weight
    variance = sum(weight * (place - mean_place) ** 2 for weight, (place, _) in weighted)
    covariance = sum(weight * (place - mean_place) * (value - mean_value) for weight, (place, value) in weighted)
    slope = covariance / variance
    fixed = mean_value - slope * mean_place
    deviation = max(abs(fixed + slope * place - value) / value for place, value in points)
    return Line(fixed, slope, deviation, places)
