"""How values look: units, texts for values, colours, and what one series has for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana.builders import Json

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "#808080"
ABSENT = "unknown"
"""What a panel shows where there is no value."""


@dataclass(frozen=True)
class Text:
    """What stands for a value."""

    text: str
    colour: str = ""

    def json(self, index: int) -> Json:
        """Return the result of a value mapping."""
        return {"text": self.text, "index": index, **({"color": self.colour} if self.colour else {})}


def texts(by_value: Mapping[str, Text]) -> list[Json]:
    """Map single values to texts."""
    options = {value: text.json(index) for index, (value, text) in enumerate(by_value.items())}
    return [{"type": "value", "options": options}]


def patterns(by_pattern: Mapping[str, Text]) -> list[Json]:
    """Map values by regular expressions, of which the first that matches counts; `$1` is its first group."""
    return [
        {"type": "regex", "options": {"pattern": f"/{pattern}/", "result": text.json(index)}}
        for index, (pattern, text) in enumerate(by_pattern.items())
    ]


def absent_as(text: str) -> list[Json]:
    """Map what is missing to a text, as in a cell of a table that no series fills."""
    return [{"type": "special", "options": {"match": "null+nan", "result": {"text": text, "color": GREY, "index": 0}}}]


def steps(base: str, *above: tuple[float, str]) -> Json:
    """Colour values from each step on.

    Args:
        base: colour under the first step.
        above: the steps, each a value and the colour from it on.
    """
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": colour, "value": value} for value, colour in above)],
    }


@dataclass(frozen=True)
class Override:
    """What some fields of a panel have for themselves."""

    matcher: tuple[str, str]
    """Which fields: `("byName", "Power")`, `("byRegexp", "/limit/")`, `("byFrameRefID", "B")`."""
    properties: Mapping[str, object]
    """What they have: `{"unit": "watt"}`."""

    def json(self) -> Json:
        """Return the override."""
        return {
            "matcher": {"id": self.matcher[0], "options": self.matcher[1]},
            "properties": [{"id": name, "value": value} for name, value in self.properties.items()],
        }


def by_name(name: str, **properties: object) -> Override:
    """Override one field; `__` in a property's name stands for a full stop, as in `custom__width`."""
    return Override(("byName", name), {key.replace("__", "."): value for key, value in properties.items()})


def limit_line(*names: str, colour: str = RED) -> list[Override]:
    """Draw series as dashed lines without filling, apart from any stack: limits and thresholds.

    Args:
        names: of the series; between slashes, a regular expression.
        colour: of the lines.
    """
    return [
        Override(
            ("byRegexp" if name.startswith("/") else "byName", name),
            {
                "color": {"mode": "fixed", "fixedColor": colour},
                "custom.lineStyle": {"fill": "dash", "dash": [8, 8]},
                "custom.lineWidth": 1,
                "custom.fillOpacity": 0,
                "custom.stacking": {"mode": "none", "group": name},
                "custom.showPoints": "never",
            },
        )
        for name in names
    ]


def limits_of_each() -> list[Override]:
    """Draw series whose name ends in `limit` as such, out of the legend: like subjects' are alike."""
    unlisted = {"custom.hideFrom": {"legend": True, "tooltip": False, "viz": False}}
    return [*limit_line("/ limit$/"), Override(("byRegexp", "/ limit$/"), unlisted)]


def second_axis(*names: str, unit: str) -> list[Override]:
    """Give series an axis of their own on the right."""
    return [Override(("byName", name), {"unit": unit, "custom.axisPlacement": "right"}) for name in names]


def fixed_colours(colours: Mapping[str, str]) -> list[Override]:
    """Give series a colour by name."""
    return [
        Override(("byName", name), {"color": {"mode": "fixed", "fixedColor": colour}})
        for name, colour in colours.items()
    ]


def field_config(
    *,
    unit: str,
    decimals: int | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    colour: Json | None = None,
    mappings: Sequence[Json] = (),
    thresholds: Json | None = None,
    no_value: str = ABSENT,
    links: Sequence[Json] = (),
    custom: Json | None = None,
    overrides: Sequence[Override] = (),
) -> Json:
    """Return a panel's `fieldConfig`.

    Args:
        unit: a unit of Grafana's: `percentunit`, `s`, `bytes`, `Bps`, `watt`, `celsius`, `hertz`, `short`, `none` …
        decimals: digits after the point; Grafana's choice if left out.
        minimum: lower end of the axis.
        maximum: its upper end.
        colour: a colour mode; by series if left out.
        mappings: texts for values.
        thresholds: colours by value; none if left out.
        no_value: what is shown where there is no value at all.
        links: where a click leads.
        custom: what only this kind of panel has.
        overrides: what some fields have for themselves.
    """
    defaults: Json = {
        "unit": unit,
        "color": colour or {"mode": "palette-classic"},
        "mappings": list(mappings),
        "thresholds": thresholds or steps("text"),
        "noValue": no_value,
        "links": list(links),
        "custom": custom or {},
    }
    optional = {"decimals": decimals, "min": minimum, "max": maximum}
    defaults |= {name: value for name, value in optional.items() if value is not None}
    return {"defaults": defaults, "overrides": [override.json() for override in overrides]}
