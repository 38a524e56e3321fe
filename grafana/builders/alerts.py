"""Alerts: a table of what fires, and a timeline of what fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana.builders import Json
from grafana.builders.field import BLUE, ORANGE, RED, Override, Text, by_name, texts
from grafana.builders.links import runbook
from grafana.builders.panel import Panel, table
from grafana.builders.query import Query
from grafana.builders.verdicts import in_colour

_OWN = 'alertstate="firing", cause!~"|watchdog"'
ROWS = 8
"""Alerts in a timeline."""
_SEVERITIES = {"info": (1001, BLUE), "warning": (1002, ORANGE), "critical": (1003, RED)}
"""Number and colour of each severity in a timeline. The numbers differ from those of causes."""


def firing(matchers: str = "") -> str:
    """Return a selector of firing alerts of the bundle: only they have a cause. The watchdog always fires."""
    return f"ALERTS{{{', '.join(filter(None, (matchers, _OWN)))}}}"


def severity_column() -> Override:
    """Return the override of the column `Severity`."""
    colours = {severity: Text(severity, colour) for severity, (_code, colour) in reversed(_SEVERITIES.items())}
    return by_name("Severity", mappings=texts(colours), custom__width=80, **in_colour())


def severities() -> list[Json]:
    """Return text and colour for the numbers of `fired`."""
    return texts({str(code): Text(f"{severity} alert", colour) for severity, (code, colour) in _SEVERITIES.items()})


def fired(alerts: str) -> Query:
    """Return a query for the alerts that fired for the longest time, with their severities as numbers.

    Args:
        alerts: an expression for alerts, such as `firing()`.
    """
    by_severity = []
    for severity, (code, _colour) in reversed(_SEVERITIES.items()):
        of_severity = alerts.replace("ALERTS{", f'ALERTS{{severity="{severity}", ')
        by_severity.append(f"{code} * max by (alertname) ({of_severity})")
    longest = f"topk({ROWS}, count_over_time((max by (alertname) ({alerts}))[$__range:1m] @ end()))"
    return Query(f"({' or on (alertname) '.join(by_severity)}) and on (alertname) {longest}", "{{alertname}}")


def alert_table(
    title: str,
    description: str,
    alerts: str,
    columns: Mapping[str, str],
    overrides: Sequence[Override],
    *,
    width: int = 24,
    height: int = 6,
) -> Panel:
    """Table of firing alerts with links to their runbooks, newest first.

    Args:
        title: a few words.
        description: meaning of the panel, and the action if the values are bad.
        alerts: an expression for alerts, such as `firing()`.
        columns: further labels and their headings.
        overrides: options of these columns.
        width: of 24.
        height: in rows.
    """
    labels = ", ".join(("alertname", "severity", "cause", "cluster", "uuid", "mig", *columns))
    since = alerts.replace("ALERTS{", "ALERTS_FOR_STATE{").replace('alertstate="firing", ', "")
    return table(
        title,
        description,
        [Query(f"topk(100, 1000 * max by ({labels}) ({since}) and on ({labels}) ({alerts}))", table=True)],
        columns={"severity": "Severity", "alertname": "Alert", "Value": "Since", **columns},
        unit="none",
        width=width,
        height=height,
        sort="Since",
        overrides=[
            severity_column(),
            by_name("Alert", links=[runbook()], custom__minWidth=220),
            by_name("Since", unit="dateTimeFromNow", custom__width=120),
            *overrides,
        ],
        no_value="No firing alerts.",
    )
