"""The kinds of panel. Every one has a title, a description, a unit, and the size of its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana.builders import DATASOURCE, Json
from grafana.builders.field import ABSENT, Override, field_config
from grafana.builders.query import Query

COLUMNS = 24
"""A dashboard is as wide as so many units."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Panel:
    """A panel without its place."""

    kind: str
    title: str
    description: str
    """What is shown, and what to do when it looks bad."""
    queries: tuple[Query, ...]
    fields: Json
    options: Json
    width: int
    height: int
    transformations: tuple[Json, ...] = ()
    links: tuple[Json, ...] = ()
    repeat: str = ""
    """Variable for each of whose values the panel is shown once."""
    extra: Json = field(default_factory=dict)

    def json(self, number: int, x: int, y: int) -> Json:
        """Return the panel under that number, at that place."""
        panel: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "options": self.options,
        }
        if self.queries:
            panel["datasource"] = DATASOURCE
            panel["targets"] = [query.json(letter) for letter, query in zip(_LETTERS, self.queries, strict=False)]
            panel["fieldConfig"] = self.fields
        if self.transformations:
            panel["transformations"] = list(self.transformations)
        if self.links:
            panel["links"] = list(self.links)
        if self.repeat:
            panel |= {"repeat": self.repeat, "repeatDirection": "h", "maxPerRow": COLUMNS // self.width}
        return panel | self.extra


def _legend(shown: bool, calculations: Sequence[str] = ()) -> Json:
    mode = "table" if calculations else "list"
    return {"showLegend": shown, "displayMode": mode, "placement": "bottom", "calcs": list(calculations)}


_REDUCED: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def time_series(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 12,
    height: int = 8,
    stacked: str = "",
    filled: int = 0,
    bars: bool = False,
    points: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
    decimals: int | None = None,
    logarithmic: bool = False,
    legend: Sequence[str] = (),
    show_legend: bool = True,
    mappings: Sequence[Json] = (),
    thresholds: Json | None = None,
    colour: Json | None = None,
    overrides: Sequence[Override] = (),
    links: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
    repeat: str = "",
) -> Panel:
    """Curves over time. Gaps stay gaps: a value that was not told is not drawn.

    Args:
        title: a few words.
        description: what is shown, and what to do when it looks bad.
        queries: what is asked.
        unit: of the axis.
        width: of 24.
        height: in rows of about 30 pixels.
        stacked: `normal` or `percent`; side by side if left out.
        filled: opacity under the curves, 0 to 100.
        bars: bars instead of lines.
        points: points instead of lines, for events.
        minimum: lower end of the axis; None: as the data are.
        maximum: its upper end.
        decimals: digits after the point.
        logarithmic: a logarithmic axis.
        legend: figures in the legend, such as `mean`, `max`, `lastNotNull`.
        show_legend: whether there is a legend.
        mappings: texts for values.
        thresholds: colours by value.
        colour: colour mode.
        overrides: what some series have for themselves.
        links: where a click leads.
        transformations: what Grafana does with the answers first.
        repeat: variable for each of whose values the panel is shown.
    """
    custom: Json = {
        "drawStyle": "bars" if bars else "points" if points else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": filled or (100 if bars else 60 if stacked else 0),
        "showPoints": "always" if points else "auto",
        "pointSize": 6 if points else 4,
        "spanNulls": False,
        "stacking": {"mode": stacked or "none", "group": "A"},
        "scaleDistribution": {"type": "log", "log": 10} if logarithmic else {"type": "linear"},
        "axisPlacement": "auto",
        "thresholdsStyle": {"mode": "off"},
    }
    return Panel(
        "timeseries",
        title,
        description,
        tuple(queries),
        field_config(
            unit=unit,
            decimals=decimals,
            minimum=None if logarithmic else minimum,
            maximum=maximum,
            colour=colour,
            mappings=mappings,
            thresholds=thresholds,
            links=links,
            custom=custom,
            overrides=overrides,
        ),
        {
            "legend": _legend(show_legend, legend),
            "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": False},
        },
        width,
        height,
        tuple(transformations),
        repeat=repeat,
    )


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    mappings: Sequence[Json] = (),
    thresholds: Json | None = None,
    colour: Json | None = None,
    background: bool = False,
    curve: bool = False,
    text_of: str = "value",
    calculation: str = "lastNotNull",
    fields: str = "",
    overrides: Sequence[Override] = (),
    links: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
    no_value: str = ABSENT,
) -> Panel:
    """One figure, or a few, in large letters.

    Args:
        title: a few words.
        description: what is shown, and what to do when it looks bad.
        queries: what is asked.
        unit: of the figure.
        width: of 24.
        height: in rows.
        decimals: digits after the point.
        mappings: texts for values.
        thresholds: colours by value.
        colour: colour mode; by threshold if left out.
        background: colour the ground instead of the letters.
        curve: a small curve under the figure.
        text_of: `value`, `name`, or `value_and_name`.
        calculation: how a curve becomes one figure.
        fields: which fields, as a regular expression between slashes; numbers only if left out.
        overrides: what some fields have for themselves.
        links: where a click leads.
        transformations: what Grafana does with the answers first.
        no_value: what is shown where there is no value.
    """
    return Panel(
        "stat",
        title,
        description,
        tuple(queries),
        field_config(
            unit=unit,
            decimals=decimals,
            colour=colour or {"mode": "thresholds"},
            mappings=mappings,
            thresholds=thresholds,
            links=links,
            overrides=overrides,
            no_value=no_value,
        ),
        {
            "reduceOptions": {"calcs": [calculation], "fields": fields, "values": False},
            "colorMode": "background" if background else "value",
            "graphMode": "area" if curve else "none",
            "textMode": text_of,
            "justifyMode": "auto",
            "orientation": "auto",
            "wideLayout": True,
        },
        width,
        height,
        tuple(transformations),
    )


def bar_gauge(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 8,
    height: int = 8,
    minimum: float | None = 0,
    maximum: float | None = None,
    decimals: int | None = None,
    thresholds: Json | None = None,
    colour: Json | None = None,
    horizontal: bool = True,
    overrides: Sequence[Override] = (),
    links: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
) -> Panel:
    """A bar for each series, at its newest value; arguments as for `stat`."""
    return Panel(
        "bargauge",
        title,
        description,
        tuple(queries),
        field_config(
            unit=unit,
            decimals=decimals,
            minimum=minimum,
            maximum=maximum,
            colour=colour or {"mode": "thresholds"},
            thresholds=thresholds,
            links=links,
            overrides=overrides,
        ),
        {
            "reduceOptions": _REDUCED,
            "displayMode": "basic",
            "orientation": "horizontal" if horizontal else "vertical",
            "showUnfilled": True,
            "minVizWidth": 8,
            "minVizHeight": 16,
            "valueMode": "color",
        },
        width,
        height,
        tuple(transformations),
    )


_CELLS = (
    # Else Grafana writes into each empty cell what stands for a table without rows.
    Override(("byRegexp", "/.*/"), {"noValue": "n/a"}),
    # Else it takes labels of digits for numbers, in links too: rank 1024 for 1.02 K, GPU 1 for 100 %.
    Override(("byType", "string"), {"unit": "string", "noValue": ""}),
)


def table(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    columns: Mapping[str, str],
    unit: str = "short",
    width: int = 24,
    height: int = 8,
    sort: str = "",
    overrides: Sequence[Override] = (),
    transformations: Sequence[Json] = (),
    no_value: str = ABSENT,
) -> Panel:
    """Rows and columns at the end of the time shown.

    Args:
        title: a few words.
        description: what is shown, and what to do when it looks bad.
        queries: what is asked; each must be a table query.
        columns: label or value field and the heading of its column, in their order; what is not named is not shown. The
            value of the only query is `Value`, those of several are `Value #A`, `Value #B`, … Several queries make one
            row where all labels that all of them have are the same: let each aggregate by the same labels.
        unit: of columns that have none of their own.
        width: of 24.
        height: in rows.
        sort: heading of the column that rows are ordered by, greatest first.
        overrides: what some columns have for themselves, by heading.
        transformations: what Grafana does before columns are chosen; a merge of all queries if left out.
        no_value: what stands in a table without rows.
    """
    first = list(transformations)
    if not first and len(queries) > 1:
        first = [{"id": "merge", "options": {}}]
    order = {name: index for index, name in enumerate(columns)}
    chosen: Json = {
        "id": "organize",
        "options": {"indexByName": order, "renameByName": dict(columns), "excludeByName": {}, "includeByName": {}},
    }
    kept: Json = {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}}
    return Panel(
        "table",
        title,
        description,
        tuple(queries),
        field_config(
            unit=unit,
            colour={"mode": "thresholds"},
            custom={"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": False},
            overrides=[*_CELLS, *overrides],
            no_value=no_value,
        ),
        {
            "showHeader": True,
            "cellHeight": "sm",
            "footer": {"show": False, "reducer": ["sum"], "fields": ""},
            "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
        },
        width,
        height,
        (*first, kept, chosen),
    )


def state_timeline(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    mappings: Sequence[Json],
    width: int = 24,
    height: int = 8,
    show_values: bool = False,
    links: Sequence[Json] = (),
    overrides: Sequence[Override] = (),
    repeat: str = "",
) -> Panel:
    """States over time, one row a series. Texts and colours come from the mappings alone.

    Args:
        title: a few words.
        description: what is shown, and what to do when it looks bad.
        queries: what is asked.
        mappings: text and colour of each state's number.
        width: of 24.
        height: in rows.
        show_values: write the state's text into the row.
        links: where a click leads.
        overrides: what some rows have for themselves.
        repeat: variable for each of whose values the panel is shown.
    """
    return Panel(
        "state-timeline",
        title,
        description,
        tuple(queries),
        field_config(
            unit="none",
            # Without a thresholds key of use and with this mode, only mappings colour.
            colour={"mode": "fixed", "fixedColor": "text"},
            mappings=mappings,
            links=links,
            custom={"fillOpacity": 85, "lineWidth": 0, "spanNulls": False},
            overrides=overrides,
        ),
        {
            "mergeValues": True,
            "showValue": "auto" if show_values else "never",
            "alignValue": "left",
            "rowHeight": 0.85,
            "legend": _legend(shown=False),
            "tooltip": {"mode": "single", "sort": "none"},
        },
        width,
        height,
        repeat=repeat,
    )


def status_history(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    colour: Json | None = None,
    thresholds: Json | None = None,
    mappings: Sequence[Json] = (),
    minimum: float | None = 0,
    maximum: float | None = None,
    width: int = 24,
    height: int = 8,
    links: Sequence[Json] = (),
) -> Panel:
    """A heat map of series by time: one row a series, coloured by value; arguments as for `time_series`."""
    return Panel(
        "status-history",
        title,
        description,
        tuple(queries),
        field_config(
            unit=unit,
            colour=colour or {"mode": "continuous-YlRd"},
            thresholds=thresholds,
            mappings=mappings,
            minimum=minimum,
            maximum=maximum,
            links=links,
            custom={"fillOpacity": 90, "lineWidth": 0},
        ),
        {
            "showValue": "never",
            "rowHeight": 0.95,
            "colWidth": 1,
            "legend": _legend(shown=False),
            "tooltip": {"mode": "single", "sort": "none"},
        },
        width,
        height,
        # Grafana refuses to draw more columns than half the panel's pixels.
        extra={"maxDataPoints": 120},
    )


def heat_map(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    width: int = 12,
    height: int = 8,
    scheme: str = "Oranges",
    links: Sequence[Json] = (),
) -> Panel:
    """How the observations of a histogram are distributed, over time; buckets come from the series' `le`.

    Args:
        title: a few words.
        description: what is shown, and what to do when it looks bad.
        query: rates of buckets by `le`, as `heat_map` query.
        unit: of the vertical axis.
        width: of 24.
        height: in rows.
        scheme: a colour scheme of Grafana's.
        links: where a click leads.
    """
    return Panel(
        "heatmap",
        title,
        description,
        (query,),
        field_config(
            unit=unit,
            links=links,
            custom={
                "scaleDistribution": {"type": "linear"},
                "hideFrom": {"legend": False, "tooltip": False, "viz": False},
            },
        ),
        {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": scheme, "scale": "exponential", "exponent": 0.5, "steps": 64},
            # A bucket without an observation is background, not the palest colour.
            "filterValues": {"le": 1e-9},
            "rowsFrame": {"layout": "auto"},
            "yAxis": {"unit": unit, "axisPlacement": "left", "reverse": False},
            "cellValues": {"unit": "short"},
            "legend": {"show": False},
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "tooltip": {"show": True, "mode": "single", "yHistogram": True, "showColorScale": False},
        },
        width,
        height,
    )


def text(title: str, description: str, markdown: str, *, width: int = 24, height: int = 3) -> Panel:
    """Words, in Markdown."""
    return Panel(
        "text",
        title,
        description,
        (),
        {},
        {"mode": "markdown", "content": markdown, "code": {"language": "plaintext", "showLineNumbers": False}},
        width,
        height,
    )
