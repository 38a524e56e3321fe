"""The spread of a value across many subjects, such as the ranks of a run."""

from __future__ import annotations

from grafana.builders.field import by_name, limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query
from grafana.run_rows.run_queries import BY_RANK

_COLOUR = "#2A69BE"
MEDIAN = "median, with lowest and highest"


def spread(
    title: str,
    description: str,
    expression: str,
    unit: str,
    *further: Query,
    points: Query | None = None,
    width: int = 8,
    by: str = BY_RANK,
) -> Panel:
    """Draw the median as a line in a band from the lowest to the highest value, however many there are.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        expression: a value by subject.
        unit: of the axis.
        further: thresholds to compare with.
        points: a further value, drawn as points.
        width: of 24.
        by: labels that identify a subject.
    """
    values = f"max by ({by}) ({expression})"
    colour = {"mode": "fixed", "fixedColor": _COLOUR}
    edge: dict[str, object] = {
        "color": colour,
        "custom__lineWidth": 0,
        "custom__showPoints": "never",
        "custom__hideFrom": {"legend": True, "tooltip": False, "viz": False},
    }
    return time_series(
        title,
        description,
        [
            Query(f"max({values})", "highest"),
            Query(f"quantile(0.5, {values})", MEDIAN),
            Query(f"min({values})", "lowest"),
            *further,
            *([] if points is None else [points]),
        ],
        unit=unit,
        width=width,
        overrides=[
            by_name("highest", custom__fillBelowTo="lowest", custom__fillOpacity=25, **edge),
            by_name("lowest", **edge),
            by_name(MEDIAN, color=colour, custom__lineWidth=2),
            *limit_line(*(query.legend for query in further)),
            *([] if points is None else [by_name(points.legend, custom__drawStyle="points", custom__pointSize=5)]),
        ],
    )
