"""Limits of percentiles, compared with the percentiles of values whose histogram they are computed from."""

from __future__ import annotations

import random
from math import inf

import pytest

from stallscope.common.percentiles import Bucket, buckets_of, percentile_limits, relative_error

EDGES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def histogram(values: list[float]) -> tuple[Bucket, ...]:
    return buckets_of({edge: sum(value <= edge for value in values) for edge in (*EDGES, inf)})


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_percentile_is_between_its_limits(seed: int, share: float) -> None:
    drawn = random.Random(seed)
    median, spread = drawn.choice((0.15, 1.0)), drawn.choice((0.01, 0.3, 1.0))
    values = [median * drawn.lognormvariate(0, spread) for _ in range(drawn.choice((1, 7, 400)))]
    values = sorted(values + [4.0] * drawn.choice((0, 5)))  # empty buckets below rare long steps
    limits = percentile_limits(histogram(values), share, sum(values) / len(values))
    reached = next(value for number, value in enumerate(values, 1) if number >= share * len(values))
    assert limits.least <= reached + 1e-9
    assert reached - 1e-9 <= limits.most


def test_a_median_is_never_above_twice_the_mean() -> None:
    assert percentile_limits([Bucket(0.0, 100.0, 10.0)], 0.5, 1.0).most == pytest.approx(2.0)


def test_equal_values_have_a_median_near_their_mean() -> None:
    limits = percentile_limits(histogram([1.12] * 26), 0.5, 1.12)
    assert limits.least == 1.0
    assert limits.most == pytest.approx(1.24)


def test_without_a_mean_the_limits_are_those_of_the_bucket() -> None:
    assert percentile_limits([Bucket(1.0, 2.0, 3.0)], 0.5, None) == (1.0, 2.0)


def test_a_percentile_over_the_last_edge_has_no_upper_limit_without_a_mean() -> None:
    assert percentile_limits([Bucket(5.0, inf, 3.0)], 0.5, None) == (5.0, inf)


@pytest.mark.parametrize("seed", range(20))
def test_the_error_of_a_mean_is_not_below_that_of_the_values(seed: int) -> None:
    drawn = random.Random(seed)
    values = [drawn.uniform(1.0, 2.0) for _ in range(50)]
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    error = relative_error(histogram(values), mean)
    assert error is not None
    assert error >= deviation / len(values) ** 0.5 / mean - 1e-9


def test_the_error_of_a_mean_is_unknown_over_the_last_edge() -> None:
    assert relative_error([Bucket(5.0, inf, 3.0)], 6.0) is None
