"""Panel types. Every panel has a title, a description, a unit, and a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana.builders import DATASOURCE, Json
from grafana.builders.field import ABSENT, DEFAULT_PORT, QUIET, Override, field_config, steps
from grafana.builders.query import Query

COLUMNS = 24
"""Width of a dashboard in Grafana's grid units."""
COUNTS = frozenset({"none", "short", "locale", "cps", "ops", "Bps"})
"""Units of counts and rates."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Panel:
    """A panel without its position."""

    kind: str
    title: str
    description: str
    """Meaning of the panel, and the action if the values are bad."""
    queries: tuple[Query, ...]
    fields: Json
    options: Json
    width: int
    height: int
    transformations: tuple[Json, ...] = ()
    links: tuple[Json, ...] = ()
    repeat: str = ""
    """Variable whose values each get their own copy of the panel."""
    extra: Json = field(default_factory=dict)

    def json(self, number: int, x: int, y: int) -> Json:
        """Return the panel with that number at that position."""
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


def _legend(shown: bool) -> Json:
    return {"showLegend": shown, "displayMode": "list", "placement": "bottom", "calcs": []}


def _short_names(queries: Sequence[Query]) -> list[Json]:
    """Return the transformations that omit an exporter's default port, and the spaces of empty labels."""
    if not any("{{instance}}" in query.legend for query in queries):
        return []
    return [
        {"id": "renameByRegex", "options": {"regex": regex, "renamePattern": pattern}}
        for regex, pattern in ((f"(.*?){DEFAULT_PORT}(.*)", "$1$2"), ("/ +(?= |$)/g", ""))
    ]


def time_series(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    bars: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
    soft_maximum: float | None = None,
    decimals: int | None = None,
    show_legend: bool = True,
    overrides: Sequence[Override] = (),
    links: Sequence[Json] = (),
    repeat: str = "",
    no_value: str = ABSENT,
) -> Panel:
    """Lines over time. Missing values stay gaps.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        queries: its queries.
        unit: of the axis.
        width: of 24.
        height: in rows of about 30 pixels.
        stacked: whether the series add up.
        bars: bars instead of lines.
        minimum: lower end of the axis; from the data if None.
        maximum: upper end of the axis; 100 % for shares if omitted.
        soft_maximum: upper end of the axis as long as no value exceeds it; 1 for counts if omitted.
        decimals: digits after the point.
        show_legend: whether there is a legend.
        overrides: options of some series.
        links: targets of a click.
        repeat: variable whose values each get a copy of the panel.
        no_value: text of a chart without lines.
    """
    if maximum is None and soft_maximum is None:
        # Without it, Grafana draws an axis up to 100 if all values are zero.
        soft_maximum = 1 if unit in COUNTS else None
        maximum = 1 if unit == "percentunit" else None
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 100 if bars else 80 if stacked else 0,
        "showPoints": "never" if stacked else "auto",
        "pointSize": 4,
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "scaleDistribution": {"type": "linear"},
        "axisPlacement": "auto",
        "thresholdsStyle": {"mode": "off"},
        **({} if soft_maximum is None else {"axisSoftMax": soft_maximum}),
    }
    return Panel(
        "timeseries",
        title,
        description,
        tuple(queries),
        field_config(
            unit=unit,
            decimals=decimals,
            minimum=minimum,
            maximum=maximum,
            links=links,
            custom=custom,
            overrides=overrides,
            no_value=no_value,
        ),
        {
            "legend": _legend(show_legend),
            "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": False},
        },
        width,
        height,
        tuple(_short_names(queries)),
        repeat=repeat,
    )


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 4,
    height: int = 3,
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
    """One or a few values in large letters.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        queries: its queries.
        unit: unit of the value.
        width: of 24.
        height: in rows.
        decimals: digits after the point.
        mappings: texts for values.
        thresholds: colours by value.
        colour: colour mode; by threshold if omitted.
        background: colour the background instead of the text.
        curve: a small graph under the value.
        text_of: `value`, `name`, or `value_and_name`.
        calculation: reduction of a series to one value.
        fields: which fields, as a regular expression between slashes; numbers only if omitted.
        overrides: options of some fields.
        links: targets of a click.
        transformations: Grafana transformations of the results.
        no_value: text of a panel without a value.
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
            "text": {"titleSize": 14, "valueSize": 28},
            # Next to one another, a value looks like that of the name on its right.
            "wideLayout": False,
        },
        width,
        height,
        tuple(transformations),
    )


_CELLS = (
    # Without this, Grafana fills each empty cell with the text of an empty table.
    Override(("byRegexp", "/.*/"), {"noValue": "n/a"}),
    # Without this, Grafana formats numeric labels as numbers, also in links: rank 1024 as 1.02 K, GPU 1 as 100 %.
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
    """Table of the values at the end of the time range.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        queries: its queries; each must be a table query.
        columns: label or value field and the heading of its column, in this order; other fields are hidden. The
            value of a single query is `Value`, those of several are `Value #A`, `Value #B`, … Results of several
            queries are joined into one row if all their common labels are equal: aggregate each by the same labels.
        unit: unit of columns without their own.
        width: of 24.
        height: in rows.
        sort: heading of the column by which rows are sorted, descending.
        overrides: options of some columns, by heading.
        transformations: Grafana transformations before columns are selected; by default a merge of all queries.
        no_value: text of a table without rows.
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
    """States over time, one row per series. Texts and colours come from the mappings only.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        queries: its queries.
        mappings: text and colour of each state's number.
        width: of 24.
        height: in rows.
        show_values: show the state as text in the row.
        links: targets of a click.
        overrides: options of some rows.
        repeat: variable whose values each get a copy of the panel.
    """
    return Panel(
        "state-timeline",
        title,
        description,
        tuple(queries),
        field_config(
            unit="none",
            # In this mode and without thresholds, only the mappings set colours.
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
            "legend": _legend(False),
            "tooltip": {"mode": "single", "sort": "none"},
        },
        width,
        height,
        tuple(_short_names(queries)),
        repeat=repeat,
    )


def deviation(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    width: int = 24,
    height: int = 8,
    links: Sequence[Json] = (),
) -> Panel:
    """Rows over time, coloured by their difference from a median in percentage points: quiet if nothing differs."""
    return _status_history(
        title,
        description,
        queries,
        # The same colours whatever the data are: a scale of the data's own makes noise look like a difference.
        steps("#2A69BE", (-0.2, "#7B90C9"), (-0.05, QUIET), (0.05, "#D47F15"), (0.2, "#E72620")),
        width=width,
        height=height,
        links=links,
    )


def shares_over_time(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    width: int = 24,
    height: int = 8,
    links: Sequence[Json] = (),
) -> Panel:
    """Rows over time, coloured by a share of time that should be zero."""
    return _status_history(
        title,
        description,
        queries,
        steps(QUIET, (0.05, "#D47F15"), (0.2, "#F85F4F"), (0.5, "#E72620")),
        width=width,
        height=height,
        links=links,
    )


def _status_history(
    title: str,
    description: str,
    queries: Sequence[Query],
    thresholds: Json,
    *,
    width: int,
    height: int,
    links: Sequence[Json],
) -> Panel:
    return Panel(
        "status-history",
        title,
        description,
        tuple(queries),
        field_config(
            unit="percentunit",
            decimals=0,
            colour={"mode": "thresholds"},
            thresholds=thresholds,
            links=links,
            custom={"fillOpacity": 90, "lineWidth": 0},
        ),
        {
            "showValue": "never",
            "rowHeight": 0.9,
            "colWidth": 1,
            "legend": _legend(False),
            "tooltip": {"mode": "single", "sort": "none"},
        },
        width,
        height,
        tuple(_short_names(queries)),
        # Grafana draws at most one column for two pixels.
        extra={"maxDataPoints": 120},
    )


def text(title: str, description: str, markdown: str, *, width: int = 24, height: int = 3) -> Panel:
    """Markdown text."""
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
