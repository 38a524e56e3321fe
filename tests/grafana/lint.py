"""Lint rules for dashboards: each is a function from a page to its violations.

These are the rules of Grafana's dashboard-linter, applied to all panel types and to closed rows (the linter checks six
types and open rows only), and additional rules.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from itertools import combinations

from grafana.builders.bands import BANDS, OTHER
from grafana.builders.field import LINE
from grafana.builders.panel import COUNTS
from stallscope.model.catalogue.metrics import FAMILIES, MetricType
from tests.grafana.pages import (
    Json,
    choices,
    drawn,
    first_screen,
    label_values,
    marks,
    panels,
    queries_of,
    strings,
    variable_names,
    variables,
)
from tests.known_names import BY_SERIES_NAME, LABELS, SERVER_SERIES
from tests.promql_names import names_in

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_BYTES = 300_000
_ON_TIME_RANGE_CHANGE = 2
_KINDS = frozenset(
    {"timeseries", "stat", "bargauge", "gauge", "table", "state-timeline", "status-history", "heatmap", "text", "row"}
)
"""Panel types in both Grafana 9.4 and 13."""
_COUNTERS = frozenset(
    {
        series
        for family in FAMILIES.values()
        if family.type in (MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.SUMMARY)
        for series in family.series_names
    }
    | {name for name in SERVER_SERIES if name.endswith("_total")}
)
_RATED = re.compile(r"\b(?:rate|irate|increase)\s*\(\s*(?P<metric>[\w:]+)\s*(?:\{[^}]*\})?\s*\[(?P<window>[^\]]*)\]")
_CONTROLS = 5
_FEW_BANDS = frozenset({"{{mode}}"})
"""Labels with few values."""
_FEW_ROWS = frozenset({"{{run}}", "{{event}}"})
"""Names of rows for one value of a variable, or for a fixed number of events."""
_ROWS = 16
_LARGEST_NUMBER = 32
PAGE_COLOURS = ("#FFFFFF", "#181B1F")
"""Panels of Grafana's light and dark theme."""
_LEAST_CONTRAST = 3
_TABLE, _LONGEST_REMEDY, _DEFAULT_COLUMN = 1390, 660, 150
"""Pixels of a table over the whole width of 1,440, of 93 letters, and of a column without a width."""
_NOT_COUNTED = ("What to change", "MIG")
"""The column of remedies, and one that only nodes with MIG instances have."""
_BUILT_IN = re.compile(r"__\w+")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?:[:.][^}]*)?\}|(?P<bare>[A-Za-z_]\w*))")
_FIXED_WINDOWS_OF = frozenset({"stallscope_training_restarts_total", "stallscope_gpu_xid_events_total"})
"""Counters of rare events, shown as increases over an interval that the title names."""


def identity(page: Json) -> Iterator[str]:
    """Check UID, title, tags and schema, and that the dashboard is read-only and suits file provisioning."""
    for key in ("uid", "title", "description", "tags", "schemaVersion", "time", "refresh", "panels", "templating"):
        if not page.get(key):
            yield f"no {key}"
    for key in ("__inputs", "__requires", "spec", "elements", "apiVersion", "kind", "id"):
        if key in page:
            yield f"has {key}"
    if page.get("editable") is not False:
        yield "editable"
    if not re.fullmatch(r"stallscope-[a-z]+", page.get("uid", "")):
        yield f"uid {page.get('uid')}"
    if "${DS_" in str(page):
        yield "a data source to be put in by hand"


def layout(page: Json) -> Iterator[str]:
    """Check that each panel has a unique number and position."""
    for number, count in Counter(panel["id"] for panel in panels(page)).items():
        if count > 1:
            yield f"{count} panels have the id {number}"
    places = [(panel["title"], panel["gridPos"]) for panel in panels(page)]
    for title, place in places:
        if place["x"] < 0 or place["x"] + place["w"] > _WIDTH or min(place["w"], place["h"]) < 1:
            yield f"{title} is outside the grid"
    # Panels of a closed row take the places that they have once it is open; all below move then.
    for group in (page["panels"], *(panel["panels"] for panel in page["panels"] if panel.get("panels"))):
        for one, other in combinations(group, 2):
            if _overlap(one["gridPos"], other["gridPos"]):
                yield f"{one['title']} overlaps {other['title']}"


def _overlap(one: Json, other: Json) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def words(page: Json) -> Iterator[str]:
    """Check that every panel has a title and a description in sentences."""
    for panel in drawn(page):
        if not panel.get("title"):
            yield f"panel {panel['id']} has no title"
        if not re.fullmatch(r"[A-Z\d].*\.", panel.get("description", ""), re.DOTALL):
            yield f"{panel['title']} has no description in sentences: {panel.get('description')}"
        if panel["type"] not in _KINDS:
            yield f"{panel['title']} is of the kind {panel['type']}"
    for row in panels(page):
        if row["type"] == "row" and not row["title"]:
            yield f"row {row['id']} has no title"
    for variable in variables(page):
        for key in ("name", "label", "description"):
            if not variable.get(key):
                yield f"variable {variable['name']} has no {key}"


def targets(page: Json) -> Iterator[str]:
    """Check that every panel except texts has queries, each with a unique letter."""
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        found = panel.get("targets", [])
        if not found:
            yield f"{panel['title']} has no query"
        if len({target["refId"] for target in found}) < len(found):
            yield f"{panel['title']} has two queries of one letter"
        for target in found:
            if not target["expr"].strip():
                yield f"{panel['title']} {target['refId']} is empty"
            if target["instant"] == target["range"]:
                yield f"{panel['title']} {target['refId']} is both an instant and a range query, or neither"


def datasource(page: Json) -> Iterator[str]:
    """Check that one variable selects the Prometheus, and that every query uses it."""
    sources = [variable for variable in variables(page) if variable["type"] == "datasource"]
    if [(each["name"], each["label"], each["query"]) for each in sources] != [
        ("datasource", "Data Source", "prometheus")
    ]:
        yield "not exactly one variable `datasource` with the label `Data Source`"
    elif variables(page)[0] is not sources[0]:
        yield "the data source is not the first choice"
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        if panel.get("datasource") != DATASOURCE:
            yield f"{panel['title']} uses another data source"
        for target in panel.get("targets", ()):
            if target.get("datasource") != DATASOURCE:
                yield f"{panel['title']} {target['refId']} uses another data source"
    for each in marks(page):
        if each["datasource"] != DATASOURCE:
            yield f"annotation {each['name']} uses another data source"


def templates(page: Json) -> Iterator[str]:
    """Check that query variables are named after their label, allow several values and all, and follow the time range.
    Check that query variables are named after their label, allow several values and all, and follow the time range."""
    for variable in choices(page):
        name = variable["name"]
        if variable["datasource"] != DATASOURCE:
            yield f"variable {name} uses another data source"
        if variable["refresh"] != _ON_TIME_RANGE_CHANGE:
            yield f"variable {name} does not follow the time that is shown"
        # A run's nodes are listed by name, because series of hosts have no label `run`.
        listed = name == "instance" and "$run" in label_values(variable).series
        if variable["includeAll"] and not (variable["multi"] and (variable.get("allValue") in (".+", ".*") or listed)):
            yield f"variable {name} stands for all by a list of its values"
        if variable.get("allValue") == ".*" and name not in ("cluster", "namespace"):
            yield f"variable {name} takes what has no such label"
        if not variable["includeAll"] and variable.get("allValue"):
            yield f"variable {name} has a value for all and no such choice"
        label = label_values(variable).label
        if name != label and name in LABELS:
            yield f"variable {name} is called like another label than its own, {label}"
        if variable["definition"] != variable["query"]["query"]:
            yield f"variable {name} shows another query than it runs"


def defined(page: Json) -> Iterator[str]:
    """Check that every used variable exists, and that every variable except the data source is used."""
    names = variable_names(page)
    used: set[str] = set()
    for where, text in _texts(page):
        for match in _VARIABLE.finditer(text):
            name = match["braced"] or match["bare"]
            if _BUILT_IN.fullmatch(name):
                continue
            used.add(name)
            if name not in names:
                yield f"{where} uses ${name}"
    for name in sorted(names - used - {"datasource"}):
        yield f"nothing uses ${name}"
    before: set[str] = set()
    for variable in variables(page):
        if variable["type"] == "query":
            for match in _VARIABLE.finditer(variable["query"]["query"]):
                used_here = match["braced"] or match["bare"]
                if used_here not in before and not _BUILT_IN.fullmatch(used_here):
                    yield f"variable {variable['name']} is before the variable that narrows it"
        before.add(variable["name"])


def _texts(page: Json) -> Iterator[tuple[str, str]]:
    yield from queries_of(page)
    for panel in panels(page):
        yield f"title {panel['title']}", panel["title"]
        for target in panel.get("targets", ()):
            yield f"name of {panel['title']}", target["legendFormat"]
        if panel.get("repeat"):
            yield f"repetition of {panel['title']}", f"${panel['repeat']}"
        for link in links(panel):
            yield f"link of {panel['title']}", link["url"]
        if panel["type"] == "text":
            yield f"text {panel['title']}", panel["options"]["content"]
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            for found in override["properties"]:
                if isinstance(found["value"], str):
                    yield f"override of {panel['title']}", found["value"]
        for step in panel.get("transformations", ()):
            yield f"transformation of {panel['title']}", str(step["options"])


def links(panel: Json, columns: Collection[str] = ()) -> Iterator[Json]:
    """Yield every link of a panel: its own, of its series, and of single columns; with `columns` only the last."""
    yield from panel.get("links", ())
    config = panel.get("fieldConfig", {})
    yield from config.get("defaults", {}).get("links", ())
    for override in config.get("overrides", ()):
        if not columns or override["matcher"]["options"] in columns:
            for found in override["properties"]:
                if found["id"] == "links":
                    yield from found["value"]


_KEPT = ("${__url_time_range}", "${datasource:queryparam}", "${cluster:queryparam}")


def ways(page: Json) -> Iterator[str]:
    """Check that links to dashboards keep time range, data source and clusters, and encode values that need it."""
    for panel in panels(page):
        for link in links(panel):
            address, _mark, query = link["url"].partition("?")
            if not address.startswith("/d/"):
                continue
            given = query.split("&")
            for kept in _KEPT:
                if kept not in given:
                    yield f"{panel['title']} forgets {kept}"
            for each in given:
                if "=" in each and not each.endswith(":percentencode}"):
                    yield f"{panel['title']} leaves {each} as it is"


def cells(page: Json) -> Iterator[str]:
    """Check that tables show labels unchanged, and do not fill cells with the text of an empty table."""
    for panel in drawn(page):
        if panel["type"] != "table":
            continue
        looks = {
            (override["matcher"]["id"], found["id"]): found["value"]
            for override in panel["fieldConfig"]["overrides"]
            for found in override["properties"]
        }
        if looks.get(("byType", "unit")) != "string":
            yield f"{panel['title']} takes labels of digits for numbers"
        if not looks.get(("byRegexp", "noValue")) or looks.get(("byType", "noValue")) != "":
            yield f"{panel['title']} fills its cells with words"


def rates(page: Json) -> Iterator[str]:
    """Check that counters are in a rate, and that rates of scraped counters use `$__rate_interval`."""
    for where, expression in queries_of(page):
        if where.startswith("variable"):
            continue
        rated = Counter(match["metric"] for match in _RATED.finditer(expression))
        for match in _RATED.finditer(expression):
            metric, window = match["metric"], match["window"]
            if metric in _FIXED_WINDOWS_OF or where.startswith("annotation"):
                continue
            if metric in BY_SERIES_NAME and not window.startswith(("$__rate_interval", "$__range")):
                yield f"{where}: {metric} over {window}"
        for metric, count in Counter(
            selector.metric for selector in names_in(expression).selectors if selector.metric in _COUNTERS
        ).items():
            changes = len(re.findall(rf"\b(?:changes|resets)\s*\(\s*{metric}\b", expression))
            if count > rated[metric] + changes and not where.startswith("annotation"):
                yield f"{where}: {metric} without a rate"


def narrowing(page: Json, labels_of: Callable[[str], frozenset[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield selectors that a variable of the dashboard could narrow but does not.

    Args:
        page: the dashboard.
        labels_of: the labels that choices are made by and that a series has.

    Yields:
        Where, series, and the label.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for variable in choices(page):
        names[label_values(variable).label].add(variable["name"])
    for where, expression in queries_of(page):
        if where.startswith("variable"):
            continue
        for selector in names_in(expression).selectors:
            for label in sorted(labels_of(selector.metric) & names.keys()):
                used = {
                    match["braced"] or match["bare"]
                    for matcher in selector.matchers
                    if matcher.label == label
                    for match in _VARIABLE.finditer(matcher.value)
                }
                fixed = any(each.label == label and each.operator == "=" and each.value for each in selector.matchers)
                if not fixed and not used & names[label]:
                    yield where, selector.metric, label


def units(page: Json, known: frozenset[str]) -> Iterator[str]:
    """Check the unit of every panel except texts, and of every override that sets one."""
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        config = panel["fieldConfig"]
        given = [config["defaults"].get("unit", "")]
        for override in config["overrides"]:
            given += [found["value"] for found in override["properties"] if found["id"] == "unit"]
        for unit in given:
            if unit not in known and not re.match(r"(prefix|suffix):.", unit):
                yield f"{panel['title']} has the unit {unit!r}"


def raw_on_first_screen(page: Json) -> Iterator[str]:
    """Check that open rows read scraped series of a whole fleet only if a node has few of them."""
    for panel in first_screen(page):
        for target in panel.get("targets", ()):
            for metric, matchers in sorted(names_in(target["expr"]).selectors):
                one = any(each.label == "rank" and each.operator == "=" for each in matchers)
                few = one or metric.endswith("_info") or metric.startswith("stallscope_exporter_")
                if metric in BY_SERIES_NAME and not few:
                    yield f"{panel['title']} {target['refId']} reads {metric}"


def gaps(page: Json) -> Iterator[str]:
    """Check that missing values stay gaps, and that panels without any value say so."""
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        if defaults.get("custom", {}).get("spanNulls"):
            yield f"{panel['title']} connects gaps"
        if not defaults.get("noValue"):
            yield f"{panel['title']} has no text for missing values"
        if panel["type"] == "state-timeline" and not defaults["mappings"]:
            yield f"{panel['title']} has states without texts"
        if panel["type"] == "state-timeline" and defaults["color"]["mode"] == "thresholds":
            yield f"{panel['title']} colours states by thresholds"


def axes(page: Json) -> Iterator[str]:
    """Check that each axis covers its values, and nothing that makes a chart look empty."""
    for panel in drawn(page):
        if panel["type"] != "timeseries":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        custom = defaults["custom"]
        bounded = "max" in defaults or "axisSoftMax" in custom
        if custom["stacking"]["mode"] == "percent" and "max" in defaults:
            yield f"{panel['title']} has no range: percent stacking with a fixed maximum"
        if custom["scaleDistribution"]["type"] == "log":
            yield f"{panel['title']} labels ticks of its logarithmic axis with the text for missing values"
        if defaults.get("unit") == "percentunit" and not (defaults.get("min") == 0 and bounded):
            yield f"{panel['title']} has shares on an axis that does not show 0 and 100 %"
        if defaults.get("unit") in COUNTS and defaults.get("min") == 0 and not bounded:
            yield f"{panel['title']} has an axis up to 100 if all counts are zero"


def events(page: Json) -> Iterator[str]:
    """Check that annotations are moments rather than regions, and have no switch among the controls."""
    for each in marks(page):
        if not each["useValueForTime"] and not re.search(r"unless on \(.*\boffset 1m\b", each["expr"]):
            yield f"annotation {each['name']} tints charts for as long as it lasts"
        if not each["hide"]:
            yield f"annotation {each['name']} has a switch"
    shown = [variable["name"] for variable in variables(page) if not variable["hide"]]
    if len(shown) > _CONTROLS:
        yield f"{len(shown)} controls: {', '.join(shown)}"


def colours(page: Json) -> Iterator[str]:
    """Check that bands are few, limits have no colour of a series, and every colour contrasts with both themes."""
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        config = panel["fieldConfig"]
        found = panel["targets"]
        if config["defaults"]["custom"].get("stacking", {}).get("mode", "none") != "none":
            few = len(found) == 2 and found[1]["legendFormat"] == OTHER and "topk(5," in found[0]["expr"]
            if not few and found[0]["legendFormat"] not in _FEW_BANDS:
                yield f"{panel['title']} may have more than {BANDS} bands"
        for override in config["overrides"]:
            given = {each["id"]: each["value"] for each in override["properties"]}
            dashed = given.get("custom.lineStyle", {}).get("fill") == "dash"
            if dashed and "color" in given and given["color"]["fixedColor"] != LINE:
                yield f"{panel['title']} draws a limit in the colour of a series"
        for colour in {text for text in strings(config) if re.fullmatch(r"#[0-9A-Fa-f]{6}", text)}:
            if min(contrast(colour, page_colour) for page_colour in PAGE_COLOURS) < _LEAST_CONTRAST:
                yield f"{panel['title']} has the colour {colour}, which one of the themes swallows"


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (WCAG)."""
    darker, lighter = sorted(_luminance(colour) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def linear(colour: str) -> tuple[float, ...]:
    """Return the parts of a colour such as `#2A69BE` in linear light, from 0 to 1."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def remedies(page: Json) -> Iterator[str]:
    """Check that a table leaves the column of remedies the width of the longest remedy, at 1,440 pixels."""
    for panel in drawn(page):
        headings = [
            heading
            for step in panel.get("transformations", ())
            if step["id"] == "organize"
            for heading in step["options"]["renameByName"].values()
        ]
        if "What to change" not in headings:
            continue
        widths = {
            override["matcher"]["options"]: found["value"]
            for override in panel["fieldConfig"]["overrides"]
            for found in override["properties"]
            if found["id"] == "custom.width"
        }
        others = [widths.get(heading, _DEFAULT_COLUMN) for heading in headings if heading not in _NOT_COUNTED]
        if panel["gridPos"]["w"] < _WIDTH or sum(others) > _TABLE - _LONGEST_REMEDY:
            yield f"{panel['title']} cuts remedies: its other columns take {sum(others)} pixels"


def bounded(page: Json) -> Iterator[str]:
    """Check that maps and timelines have few rows and fixed colours, and that numbers are of one moderate size."""
    for panel in drawn(page):
        kind = panel["type"]
        if kind == "status-history" and panel["fieldConfig"]["defaults"]["color"]["mode"] != "thresholds":
            yield f"{panel['title']} has a scale of the data's own"
        if kind in ("status-history", "state-timeline"):
            for target in panel["targets"]:
                ranks = re.findall(r"\b(?:topk|bottomk)(?: by \([^)]*\))? ?\(\s*(\d+)", target["expr"])
                few = ranks and max(map(int, ranks)) <= _ROWS
                if not few and target["legendFormat"] not in _FEW_ROWS:
                    yield f"{panel['title']} {target['refId']} may have any number of rows"
        if kind == "stat" and not 0 < panel["options"].get("text", {}).get("valueSize", 0) <= _LARGEST_NUMBER:
            yield f"{panel['title']} has letters as large as the panel"
        if kind == "stat" and panel["options"]["textMode"] == "name":
            yield f"{panel['title']} shows words as large as numbers"


def size(text: str) -> Iterator[str]:
    """Check the size of a dashboard."""
    if len(text.encode()) > _BYTES:
        yield f"{len(text.encode())} bytes"


RULES: tuple[Callable[[Json], Iterator[str]], ...] = (
    identity,
    layout,
    words,
    targets,
    datasource,
    templates,
    defined,
    ways,
    cells,
    rates,
    raw_on_first_screen,
    gaps,
    axes,
    events,
    colours,
    remedies,
    bounded,
)
"""Rules that need only the dashboard; each yields its violations."""
