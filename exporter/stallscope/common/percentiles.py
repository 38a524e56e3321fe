"""Percentiles of a histogram, as the limits that its buckets and its sum leave, instead of a point between edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple


class Bucket(NamedTuple):
    """A number of values between two limits."""

    over: float
    at_most: float
    """Infinite in the last bucket."""
    number: float


class Limits(NamedTuple):
    """The range in which a percentile is."""

    least: float
    most: float
    """Infinite if nothing limits it."""


def buckets_of(cumulative: Mapping[float, float]) -> tuple[Bucket, ...]:
    """Convert cumulative counts by upper limit to buckets, without empty buckets at the ends."""
    edges = [(0.0, 0.0), *sorted(cumulative.items())]
    every = [Bucket(low[0], high[0], max(0.0, high[1] - low[1])) for low, high in pairwise(edges)]
    filled = [place for place, bucket in enumerate(every) if bucket.number >= 0.5]
    return tuple(every[filled[0] : filled[-1] + 1]) if filled else ()


def percentile_limits(buckets: Sequence[Bucket], share: float, mean: float | None) -> Limits:
    """Return the limits of a percentile of values that are not negative.

    Args:
        buckets: one or more buckets, ascending.
        share: share of the values that are at most the percentile, between 0 and 1.
        mean: mean of the values, which narrows the range of their bucket; None if it is unknown.
    """
    total = sum(bucket.number for bucket in buckets)
    reached = 0.0
    least, most = buckets[-1].over, buckets[-1].at_most
    for bucket in buckets:
        reached += bucket.number
        if reached >= share * total:
            least, most = bucket.over, bucket.at_most
            break
    if mean is None or total <= 0:
        return Limits(least, most)
    # At least this number of values is not under the percentile, and every other value is over its bucket's limit.
    above = max(1.0, (1 - share) * total)
    smaller = _among(buckets, total - above)
    narrowed = (mean * total - sum(bucket.over * number for bucket, number in smaller)) / above
    most = max(least, min(most, narrowed))
    # At least this number of values is not over the percentile, and no other value is over its bucket's limit.
    under = max(1.0, share * total)
    greater = _among(buckets[::-1], total - under)
    if all(bucket.at_most < inf for bucket, _ in greater):
        narrowed = (mean * total - sum(bucket.at_most * number for bucket, number in greater)) / under
        least = min(most, max(least, narrowed))
    return Limits(least, most)


def relative_error(buckets: Sequence[Bucket], mean: float) -> float | None:
    """Return the greatest relative standard error of a mean that the buckets allow; None if nothing limits it."""
    number = sum(bucket.number for bucket in buckets)
    if number <= 0 or mean <= 0 or buckets[-1].at_most == inf:
        return None
    middles = sum(bucket.number * (bucket.over + bucket.at_most) / 2 for bucket in buckets)
    # Within a bucket, the square of a value is at most the chord of its limits.
    squares = sum(
        bucket.number
        * ((bucket.over + bucket.at_most) ** 2 / 2 * mean * number / middles - bucket.over * bucket.at_most)
        for bucket in buckets
    )
    return float((max(0.0, squares / number - mean**2) / number) ** 0.5 / mean)


def _among(buckets: Sequence[Bucket], number: float) -> list[tuple[Bucket, float]]:
    """Return the first values of buckets as numbers of each bucket."""
    found = []
    for bucket in buckets:
        if number <= 0:
            break
        taken = min(bucket.number, number)
        found.append((bucket, taken))
        number -= taken
    return found
