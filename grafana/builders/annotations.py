"""Annotations: moments, as thin lines on charts.

A region tints every chart for as long as an alert fires, so an annotation marks only its begin and its end. None has a
switch among the controls.
"""

from __future__ import annotations

import re

from grafana.builders import DATASOURCE, Json

_STEP = "1m"
_ALERTS = re.compile(r"ALERTS\{[^}]*\}")


def moments(
    name: str,
    expression: str,
    *,
    title: str,
    text: str = "",
    colour: str,
    labels: str = "",
    at_value: bool = False,
) -> Json:
    """Add a line at each time with a value of the expression.

    Args:
        name: of the annotation.
        expression: PromQL. It has no values at two consecutive minutes.
        title: heading of a mark, with labels in braces.
        text: text of a mark, also with labels in braces.
        colour: of the lines.
        labels: labels shown as tags, separated by commas.
        at_value: use the value as the time of the mark, in milliseconds.
    """
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": True,
        "expr": expression,
        "iconColor": colour,
        "step": _STEP,
        "tagKeys": labels,
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": at_value,
        "target": {"refId": "annotation", "expr": expression},
    }


def alert_marks(firing: str, *by: str, colour: str) -> Json:
    """Mark the minutes in which alerts begin and cease to fire.

    Args:
        firing: an expression for alerts, such as `alerts.firing()`.
        by: labels in the text of a mark.
        colour: of the lines.
    """
    labels = ", ".join(("alertname", "severity", *by))
    now = f"max by ({labels}) ({firing})"
    before = _ALERTS.sub(lambda found: f"{found[0]} offset {_STEP}", now)
    begin = f'label_replace({now} unless on ({labels}) {before}, "event", "begins", "", "")'
    end = f'label_replace({before} unless on ({labels}) {now}, "event", "ends", "", "")'
    return moments(
        "Alerts",
        f"{begin} or {end}",
        title="{{alertname}} {{event}}",
        text=" ".join(f"{{{{{label}}}}}" for label in by),
        colour=colour,
        labels="severity",
    )


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
