"""What is asked of every dashboard, each as a function from a page to its complaints.

The rules of Grafana's dashboard-linter, for all kinds of panel and for panels in closed rows as well (the linter looks
at six kinds and at open rows only), and what the linter does not ask.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from itertools import combinations

from stallscope.catalogue.metrics import FAMILIES, MetricType
from tests.grafana.pages import Json, asked, drawn, first_screen, label_values, marks, panels, variable_names, variables
from tests.known_names import BY_SERIES_NAME, LABELS, SERVER_SERIES
from tests.promql_names import names_in

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_BYTES = 300_000
_ON_TIME_RANGE_CHANGE = 2
_KINDS = frozenset(
    {"timeseries", "stat", "bargauge", "gauge", "table", "state-timeline", "status-history", "heatmap", "text", "row"}
)
"""Kinds that Grafana 9.4 and 13 both have."""
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
_SPAN = re.compile(r"(?P<metric>[\w:]+)\s*(?:\{[^}]*\})?\s*\[(?P<window>[^\]]*)\]")
_BUILT_IN = re.compile(r"__\w+")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?:[:.][^}]*)?\}|(?P<bare>[A-Za-z_]\w*))")
_FIXED_WINDOWS_OF = frozenset({"stallscope_training_restarts_total", "stallscope_gpu_xid_events_total"})
"""Counters of rare events, which are counted over a stretch that the title names."""


def identity(page: Json) -> Iterator[str]:
    """Uid, title, tags, schema; classic and for file provisioning; not to be edited."""
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
    """Each panel has a number of its own and a place that no other one has."""
    for number, count in Counter(panel["id"] for panel in panels(page)).items():
        if count > 1:
            yield f"{count} panels have the id {number}"
    places = [(panel["title"], panel["gridPos"]) for panel in panels(page)]
    for title, place in places:
        if place["x"] < 0 or place["x"] + place["w"] > _WIDTH or min(place["w"], place["h"]) < 1:
            yield f"{title} lies outside"
    # Panels of a closed row take the places that they have once it is open; all below move then.
    for group in (page["panels"], *(panel["panels"] for panel in page["panels"] if panel.get("panels"))):
        for one, other in combinations(group, 2):
            if _overlap(one["gridPos"], other["gridPos"]):
                yield f"{one['title']} lies over {other['title']}"


def _overlap(one: Json, other: Json) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def words(page: Json) -> Iterator[str]:
    """Title and description on every panel, in sentences."""
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
    """Queries on every panel but texts, each under a letter of its own."""
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        found = panel.get("targets", [])
        if not found:
            yield f"{panel['title']} asks nothing"
        if len({target["refId"] for target in found}) < len(found):
            yield f"{panel['title']} has two queries of one letter"
        for target in found:
            if not target["expr"].strip():
                yield f"{panel['title']} {target['refId']} is empty"
            if target["instant"] == target["range"]:
                yield f"{panel['title']} {target['refId']} asks for a moment and a stretch, or for neither"


def datasource(page: Json) -> Iterator[str]:
    """One variable chooses the Prometheus, and everything asks that one."""
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
            yield f"{panel['title']} asks another data source"
        for target in panel.get("targets", ()):
            if target.get("datasource") != DATASOURCE:
                yield f"{panel['title']} {target['refId']} asks another data source"
    for each in marks(page):
        if each["datasource"] != DATASOURCE:
            yield f"annotation {each['name']} asks another data source"


def templates(page: Json) -> Iterator[str]:
    """Query variables are what they are called, take several values and all, and follow the time that is shown."""
    for variable in variables(page):
        if variable["type"] != "query":
            continue
        name = variable["name"]
        if variable["datasource"] != DATASOURCE:
            yield f"variable {name} asks another data source"
        if variable["refresh"] != _ON_TIME_RANGE_CHANGE:
            yield f"variable {name} does not follow the time that is shown"
        # A run's nodes are listed by name, since what hosts tell has no run to be narrowed by.
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
            yield f"variable {name} shows another query than it asks"


def defined(page: Json) -> Iterator[str]:
    """Every variable that is used exists, and each but the data source is used."""
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
                if (match["braced"] or match["bare"]) not in before:
                    yield f"variable {variable['name']} stands before what narrows it"
        before.add(variable["name"])


def _texts(page: Json) -> Iterator[tuple[str, str]]:
    yield from asked(page)
    for panel in panels(page):
        yield f"title {panel['title']}", panel["title"]
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
    """Every link of a panel: its own, of its series, and of single columns; with `columns` only of these."""
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
    """Links to dashboards take the time, the data source and the clusters along, and values that need encoding."""
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
    """Tables write labels as they are, and nothing into their cells that is meant for a table without rows."""
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
    """Counters stand in a rate, and rates of scraped counters are taken over `$__rate_interval`."""
    for where, expression in asked(page):
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
    """Selectors that a choice of the dashboard could narrow, and that it does not.

    Args:
        page: the dashboard.
        labels_of: the labels that choices are made by and that a series has.

    Yields:
        Where, series, and the label.
    """
    choices: dict[str, set[str]] = defaultdict(set)
    for variable in variables(page):
        if variable["type"] == "query":
            choices[label_values(variable).label].add(variable["name"])
    for where, expression in asked(page):
        if where.startswith("variable"):
            continue
        for selector in names_in(expression).selectors:
            for label in sorted(labels_of(selector.metric) & choices.keys()):
                used = {
                    match["braced"] or match["bare"]
                    for matcher in selector.matchers
                    if matcher.label == label
                    for match in _VARIABLE.finditer(matcher.value)
                }
                fixed = any(each.label == label and each.operator == "=" and each.value for each in selector.matchers)
                if not fixed and not used & choices[label]:
                    yield where, selector.metric, label


def units(page: Json, known: frozenset[str]) -> Iterator[str]:
    """A unit of Grafana's on every panel but texts, and in every override of one."""
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
    """Before a row is opened, what was scraped is asked for a whole fleet only where a node has but a few series."""
    for panel in first_screen(page):
        for target in panel.get("targets", ()):
            for metric in sorted(names_in(target["expr"]).metrics):
                few = metric.endswith("_info") or metric.startswith("stallscope_exporter_")
                if metric in BY_SERIES_NAME and not few:
                    yield f"{panel['title']} {target['refId']} asks for {metric}"


def gaps(page: Json) -> Iterator[str]:
    """What was not told is not drawn, and says so where there is nothing else."""
    for panel in drawn(page):
        if panel["type"] == "text":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        if defaults.get("custom", {}).get("spanNulls"):
            yield f"{panel['title']} connects gaps"
        if not defaults.get("noValue"):
            yield f"{panel['title']} shows nothing where nothing was told"
        if panel["type"] == "state-timeline" and not defaults["mappings"]:
            yield f"{panel['title']} has states without texts"
        if panel["type"] == "state-timeline" and defaults["color"]["mode"] == "thresholds":
            yield f"{panel['title']} colours states by thresholds"


def size(text: str) -> Iterator[str]:
    """A file that is loaded at once."""
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
)
"""Those that need nothing but the dashboard; each yields its complaints."""
