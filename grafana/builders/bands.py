"""Stacked charts: the largest values of a label, and the rest as one band."""

from __future__ import annotations

from grafana.builders.field import GREY
from grafana.builders.query import Query

BANDS = 6
"""Bands of a stacked chart: more colours cannot be distinguished."""
OTHER = "other"
OTHER_COLOUR = {OTHER: GREY}


def bands(expression: str, label: str) -> list[Query]:
    """Return queries for the largest values over the time range, and for the sum of all others.

    Args:
        expression: PromQL with one series for each value of the label.
        label: whose values are the names of the bands.
    """
    largest = f"topk({BANDS - 1}, sum_over_time(({expression})[$__range:1m] @ end()))"
    return [
        Query(f"({expression}) and on ({label}) {largest}", f"{{{{{label}}}}}", least_step="1m"),
        Query(f"sum(({expression}) unless on ({label}) {largest}) > 0", OTHER, least_step="1m"),
    ]
