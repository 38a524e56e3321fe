"""The spread of a value across the ranks of a run."""

from __future__ import annotations

from grafana.builders.field import ORANGE, fixed_colours, limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query
from grafana.run_rows.run_queries import BY_RANK


def spread(title: str, description: str, expression: str, unit: str, *further: Query) -> Panel:
    """Draw the highest, the median and the lowest rank, however many there are.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        expression: a value by rank.
        unit: of the axis.
        further: lines to compare with.
    """
    by_rank = f"max by ({BY_RANK}) ({expression})"
    return time_series(
        title,
        description,
        [
            Query(f"max by (run) ({by_rank})", "highest rank"),
            Query(f"quantile by (run) (0.5, {by_rank})", "median"),
            Query(f"min by (run) ({by_rank})", "lowest rank"),
            *further,
        ],
        unit=unit,
        width=8,
        overrides=[
            *fixed_colours({"highest rank": "#C4162A", "median": "#37872D", "lowest rank": "#3274D9"}),
            *limit_line(*(query.legend for query in further), colour=ORANGE),
        ],
    )
