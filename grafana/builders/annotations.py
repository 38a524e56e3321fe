"""Events, drawn as marks on every panel with a time axis."""

from __future__ import annotations

from grafana.builders import DATASOURCE, Json


def events(
    name: str,
    expression: str,
    *,
    title: str,
    text: str = "",
    colour: str,
    labels: str = "",
    at_value: bool = False,
    shown: bool = True,
) -> Json:
    """Mark where an expression has a value.

    Args:
        name: shown beside the switch that turns the marks off.
        expression: PromQL.
        title: heading of a mark, with labels in braces.
        text: its text, likewise.
        colour: of the marks.
        labels: labels shown as tags, separated by commas.
        at_value: the value is the event's time in milliseconds; the mark goes there.
        shown: whether the marks are there until switched off, or only once switched on.
    """
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": shown,
        "hide": False,
        "expr": expression,
        "iconColor": colour,
        "step": "60s",
        "tagKeys": labels,
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": at_value,
        "target": {"refId": "annotation", "expr": expression},
    }


def built_in() -> Json:
    """Grafana's own marks, which each dashboard has."""
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }
