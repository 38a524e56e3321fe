"""Run the queries of a dashboard against a Prometheus, with variables substituted as Grafana does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.grafana.pages import Json, label_values, sentence, variables
from tests.prometheus_server import Prometheus

SCRAPE_SECONDS = 15
"""Scrape interval in the provisioned data source."""
_PIXELS = 1000
"""Width in pixels of a panel with a time axis, on a typical screen."""
_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|']")
_USE = re.compile(r"\$\{(?P<braced>\w+)(?::(?P<form>\w+))?\}|\$(?P<bare>\w+)")
_NICE = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Steps in seconds to which Grafana rounds."""
ALL = ("$__all",)


@dataclass(frozen=True)
class Window:
    """Time range of a dashboard, in Unix seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> int:
        """Return its length in seconds."""
        return round(self.end - self.start)


@dataclass(frozen=True)
class Chosen:
    """Selected values of each variable; `ALL` if all are selected."""

    page: Json
    window: Window
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Available values of query variables."""

    def put_in(self, expression: str, step: int) -> str:
        """Substitute all variables in an expression.

        Args:
            expression: with variables.
            step: seconds between two points.
        """
        built_in = {
            "__interval": f"{step}s",
            "__interval_ms": str(1000 * step),
            "__rate_interval": f"{max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)}s",
            "__range": f"{self.window.seconds}s",
            "__range_s": str(self.window.seconds),
            "__range_ms": str(1000 * self.window.seconds),
            "__from": str(round(1000 * self.window.start)),
            "__to": str(round(1000 * self.window.end)),
        }
        by_name = {variable["name"]: variable for variable in variables(self.page)}

        def value(match: re.Match[str]) -> str:
            name = match["braced"] or match["bare"]
            if name in built_in:
                return built_in[name]
            return match.group() if name not in by_name else self._value(by_name[name])

        return _USE.sub(value, expression)

    def _value(self, variable: Json) -> str:
        name = variable["name"]
        values = self.values[name]
        if values == ALL:
            if variable.get("allValue"):
                return str(variable["allValue"])
            values = self.options[name]
        if not (variable.get("multi") or variable.get("includeAll")):
            return (
                "".join(values).replace("\\", "\\\\").replace('"', '\\"') if variable["type"] == "query" else values[0]
            )
        # Escaped for the regular expression, and once more for the string around it.
        escaped = [_SPECIAL.sub(lambda found: 2 * "\\" + found.group().replace("\\", "\\\\"), each) for each in values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def choose(server: Prometheus, page: Json, window: Window, wanted: Mapping[str, Sequence[str]]) -> Chosen:
    """Open a dashboard: set its variables in order, from the URL or to their defaults.

    Args:
        server: the Prometheus.
        page: the dashboard.
        window: the time that is shown.
        wanted: values that the address gives. What a query variable does not offer is not taken.
    """
    values: dict[str, tuple[str, ...]] = {}
    options: dict[str, tuple[str, ...]] = {}
    for variable in variables(page):
        name = variable["name"]
        if sentence(variable):
            found = server.get(
                "query",
                query=Chosen(page, window, values, options).put_in(sentence(variable), SCRAPE_SECONDS),
                time=f"{window.end}",
            )
            values[name] = tuple(series["metric"][name] for series in found["data"]["result"])[:1]
        elif variable["type"] == "query":
            sofar = Chosen(page, window, values, options)
            options[name] = _options(server, variable, sofar)
            given = tuple(each for each in wanted.get(name, ()) if each in options[name])
            values[name] = given or (ALL if variable["includeAll"] else options[name][:1])
        else:
            values[name] = tuple(wanted.get(name) or (str(variable["current"]["value"]),))
    return Chosen(page, window, values, options)


def _options(server: Prometheus, variable: Json, chosen: Chosen) -> tuple[str, ...]:
    series, label = label_values(variable)
    limits = {"start": f"{chosen.window.start}", "end": f"{chosen.window.end}"}
    if series:
        limits["match[]"] = chosen.put_in(series, SCRAPE_SECONDS)
    found = server.get(f"label/{label}/values", **limits)["data"]
    if variable.get("regex"):
        raise ValueError(f"variable {variable['name']} has a regular expression, which is not followed here")
    return tuple(sorted(found))


def step_of(target: Json, window: Window) -> int:
    """Return the step in seconds that Grafana uses on a typical screen."""
    least = SCRAPE_SECONDS
    if target.get("interval"):
        number, unit = re.fullmatch(r"(\d+)([smh])", target["interval"]).groups()  # type: ignore[union-attr]
        least = int(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    points = target.get("maxDataPoints", _PIXELS)
    raw = window.seconds / points
    return max(least, next((nice for nice in _NICE if nice >= raw), _NICE[-1]))


def run_query(server: Prometheus, chosen: Chosen, target: Json, panel: Json | None = None) -> dict[str, Any]:
    """Run one query of a panel as Grafana does, and return the whole response.

    Args:
        server: the Prometheus.
        chosen: what is shown.
        target: the query.
        panel: that it is of.

    Raises:
        RefusedError: the query is wrong.
    """
    window = chosen.window
    limited = {**target, **({"maxDataPoints": panel["maxDataPoints"]} if panel and "maxDataPoints" in panel else {})}
    step = step_of(limited, window)
    expression = chosen.put_in(target["expr"], step)
    if target["instant"]:
        return server.get("query", query=expression, time=f"{window.end}")
    # Grafana begins at a whole step, so that a reload moves no point.
    start, end = (int(moment // step) * step for moment in (window.start, window.end))
    return server.get("query_range", query=expression, start=f"{start}", end=f"{end}", step=f"{step}")


def legend(target: Json, labels: Mapping[str, str]) -> str:
    """Return the name of a series in a panel."""
    form = target.get("legendFormat") or "__auto"
    if form == "__auto":
        return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form)
