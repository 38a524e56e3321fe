"""Annotations: events as marks on every panel with a time axis."""

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
    """Add an annotation at each time with a value of the expression.

    Args:
        name: shown next to the switch that hides the annotation.
        expression: PromQL.
        title: heading of a mark, with labels in braces.
        text: text of a mark, also with labels in braces.
        colour: of the marks.
        labels: labels shown as tags, separated by commas.
        at_value: use the value as the time of the mark, in milliseconds.
        shown: whether the annotation is enabled by default.
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
    """Return Grafana's built-in annotation, which each dashboard has."""
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }


def actions() -> Json:
    """Return the marks of actions on alerts, which `alerts/actions/act.py` adds through Grafana's API."""
    return {
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "purple",
        "name": "Actions",
        "target": {"type": "tags", "tags": ["stallscope-action"], "matchAny": True, "limit": 100},
    }
