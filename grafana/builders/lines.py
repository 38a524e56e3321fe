"""Charts of the few series that matter, with their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana.builders import Json
from grafana.builders.field import ABSENT, limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query

LINES = 8
"""Lines of a chart: a person cannot follow more."""


def few(expression: str, number: int, *, lowest: bool = False) -> str:
    """Return the series with the highest peaks or the lowest dips in the time range, also those that have ended.

    Args:
        expression: PromQL.
        number: of series.
        lowest: return the series with the lowest dips.
    """
    rank, extreme = ("bottomk", "min") if lowest else ("topk", "max")
    return f"({expression}) and {rank}({number}, {extreme}_over_time(({expression})[$__range:1m] @ end()))"


def lines(
    title: str,
    description: str,
    values: Mapping[str, str],
    *,
    unit: str,
    lowest: bool = False,
    limits: Mapping[str, str] | None = None,
    minimum: float | None = 0,
    soft_maximum: float | None = None,
    decimals: int | None = None,
    bars: bool = False,
    width: int = 12,
    height: int = 8,
    links: Sequence[Json] = (),
    no_value: str = ABSENT,
) -> Panel:
    """Draw the series with the highest or lowest values, and their limits as dashed lines.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        values: PromQL by the name of a line, with labels in braces.
        unit: of the axis.
        lowest: draw the lowest series rather than the highest.
        limits: PromQL of single values by name: thresholds of the rules, or limits of the hardware.
        minimum: lower end of the axis; from the data if None.
        soft_maximum: upper end of the axis as long as no value exceeds it.
        decimals: digits after the point.
        bars: bars instead of lines.
        width: of 24.
        height: in rows.
        links: targets of a click.
        no_value: text of a chart without lines.
    """
    limits = limits or {}
    named = " or ".join(
        f'label_replace({expression}, "limit", "{name}", "", "")' for name, expression in limits.items()
    )
    number = (LINES - len(limits)) // len(values)
    return time_series(
        title,
        description,
        [
            *(Query(few(expression, number, lowest=lowest), name) for name, expression in values.items()),
            *([Query(named, "{{limit}}")] if limits else []),
        ],
        unit=unit,
        minimum=minimum,
        soft_maximum=soft_maximum,
        decimals=decimals,
        bars=bars,
        width=width,
        height=height,
        overrides=limit_line(*limits),
        links=links,
        no_value=no_value,
    )
