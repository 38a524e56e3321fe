"""The committed dashboards and their parts, including panels in closed rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from grafana.__main__ import FOLDER

Json = dict[str, Any]

GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
"""The data source of annotations that Grafana itself stores."""

PAGES: dict[str, Json] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
}
"""Every committed dashboard by file name without extension."""
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<series>.+),\s*)?(?P<label>\w+)\)", re.DOTALL)


_SENTENCE = re.compile(r"query_result\((.+)\)", re.DOTALL)


class Query(NamedTuple):
    """A query and its place."""

    where: str
    """Panel and letter, or variable, or annotation."""
    expression: str


class LabelValues(NamedTuple):
    """The label and the series of a query variable."""

    series: str
    """A selector; empty for all series."""
    label: str


def panels(page: Json) -> Iterator[Json]:
    """Yield every panel in order, including rows and their panels."""
    for panel in page["panels"]:
        yield panel
        yield from panel.get("panels", ())


def drawn(page: Json) -> Iterator[Json]:
    """Yield every panel except rows."""
    return (panel for panel in panels(page) if panel["type"] != "row")


def first_screen(page: Json) -> Iterator[Json]:
    """Return the panels above the first heading, whose queries run when a dashboard is opened."""
    for panel in page["panels"]:
        if panel["type"] == "row":
            return
        yield panel


def variables(page: Json) -> list[Json]:
    """Return the variables in order."""
    found: list[Json] = page["templating"]["list"]
    return found


def choices(page: Json) -> list[Json]:
    """Return the variables that offer the values of a label, without hidden sentences."""
    return [each for each in variables(page) if each["type"] == "query" and not sentence(each)]


def sentence(variable: Json) -> str:
    """Return the expression of a hidden variable with the sentence at the top of a dashboard; empty for others."""
    match = _SENTENCE.fullmatch(variable["query"]["query"]) if variable["type"] == "query" else None
    return match[1] if match else ""


def variable_names(page: Json) -> set[str]:
    """Return the names of all variables."""
    return {variable["name"] for variable in variables(page)}


def marks(page: Json) -> Iterator[Json]:
    """Return the annotations that query Prometheus."""
    return (each for each in page["annotations"]["list"] if each["datasource"] != GRAFANA)


def label_values(variable: Json) -> LabelValues:
    """Return the query of a variable.

    Raises:
        ValueError: it is no `label_values(…)`.
    """
    text = variable["query"]["query"]
    match = _LABEL_VALUES.fullmatch(text)
    if match is None:
        raise ValueError(f"variable {variable['name']} is not a label_values query: {text}")
    return LabelValues(match["series"] or "", match["label"])


def queries_of(page: Json) -> Iterator[Query]:
    """Yield every PromQL expression of panels, annotations and variables."""
    for panel in drawn(page):
        for target in panel.get("targets", ()):
            yield Query(f"{panel['title']} {target['refId']}", target["expr"])
    for each in marks(page):
        yield Query(f"annotation {each['name']}", each["expr"])
    for variable in variables(page):
        if sentence(variable):
            yield Query(f"sentence {variable['name']}", sentence(variable))
    for variable in choices(page):
        series = label_values(variable).series
        if series:
            yield Query(f"variable {variable['name']}", series)


def strings(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
