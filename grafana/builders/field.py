"""Field options: units, texts for values, colours, and overrides of single series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana.builders import Json

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "#808080"
QUIET = "rgba(128, 128, 128, 0.25)"
"""Colour of what needs no attention."""
LINE = "text"
"""Colour of a threshold: that of text, which no series has."""
DEFAULT_PORT = ":19400"
"""Port of an exporter. It is omitted from names of series: at most one exporter of a node has it."""
ABSENT = "unknown"
"""Text of a panel without a value."""


@dataclass(frozen=True)
class Text:
    """Text and colour that replace a value."""

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
    """Map values by regular expressions. The first match counts; `$1` is its first group."""
    return [
        {"type": "regex", "options": {"pattern": f"/{pattern}/", "result": text.json(index)}}
        for index, (pattern, text) in enumerate(by_pattern.items())
    ]


def absent_as(text: str) -> list[Json]:
    """Map missing values to a text, such as table cells without a series."""
    return [{"type": "special", "options": {"match": "null+nan", "result": {"text": text, "color": GREY, "index": 0}}}]


def steps(base: str, *above: tuple[float, str]) -> Json:
    """Return thresholds that colour values from each step upwards.

    Args:
        base: colour below the first step.
        above: the steps: each has a value and the colour from that value upwards.
    """
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": colour, "value": value} for value, colour in above)],
    }


@dataclass(frozen=True)
class Override:
    """Options of some fields of a panel."""

    matcher: tuple[str, str]
    """Selects the fields: `("byName", "Power")`, `("byRegexp", "/limit/")`, `("byFrameRefID", "B")`."""
    properties: Mapping[str, object]
    """Options by name, such as `{"unit": "watt"}`."""

    def json(self) -> Json:
        """Return the override."""
        return {
            "matcher": {"id": self.matcher[0], "options": self.matcher[1]},
            "properties": [{"id": name, "value": value} for name, value in self.properties.items()],
        }


def by_name(name: str, **properties: object) -> Override:
    """Override one field; `__` in the name of an option stands for a dot, as in `custom__width`."""
    return Override(("byName", name), {key.replace("__", "."): value for key, value in properties.items()})


def limit_line(*names: str) -> list[Override]:
    """Draw series as dashed lines without fill, outside any stack: limits and thresholds.

    Args:
        names: of the series; between slashes, a regular expression.
    """
    return [
        Override(
            ("byRegexp" if name.startswith("/") else "byName", name),
            {
                "color": {"mode": "fixed", "fixedColor": LINE},
                "custom.lineStyle": {"fill": "dash", "dash": [8, 8]},
                "custom.lineWidth": 1,
                "custom.fillOpacity": 0,
                "custom.stacking": {"mode": "none", "group": name},
                "custom.showPoints": "never",
            },
        )
        for name in names
    ]


def second_axis(*names: str, unit: str) -> list[Override]:
    """Draw series on a second axis on the right."""
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
        unit: a Grafana unit: `percentunit`, `s`, `bytes`, `Bps`, `watt`, `celsius`, `hertz`, `short`, `none` …
        decimals: digits after the point; Grafana's choice if left out.
        minimum: lower end of the axis.
        maximum: upper end of the axis.
        colour: a colour mode; by series if omitted.
        mappings: texts for values.
        thresholds: colours by value; none if omitted.
        no_value: text of a field without a value.
        links: targets of a click.
        custom: options of this panel type.
        overrides: options of some fields.
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
