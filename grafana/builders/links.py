"""Links between dashboards. They keep the time range, the data source and the selected clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana.builders import Json
from stallscope.common.bundle import RUNBOOKS

_KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
TAG = "stallscope"
"""Tag of all dashboards."""


def to_dashboard(uid: str, title: str, variables: Mapping[str, str], *, kept: Sequence[str] = ()) -> Json:
    """Return a link from a value to another dashboard.

    Args:
        uid: UID of the dashboard.
        title: text of the link.
        variables: values of its variables: `{"run": "${__data.fields.Run}"}` in a table,
            `{"run": "${__field.labels.run}"}` from a series, `{"run": "$run"}` from a panel with one run.
        kept: variables of both dashboards that keep their values.
    """
    # By default, Grafana does not encode &, # and +, which names of runs may contain.
    encoded = {name: value.replace("}", ":percentencode}") for name, value in variables.items()}
    given = "".join(f"&var-{name}={value}" for name, value in encoded.items())
    given += "".join(f"&${{{name}:queryparam}}" for name in kept)
    return {"title": title, "url": f"/d/{uid}?{_KEPT}{given}", "targetBlank": False}


def web(title: str, url: str) -> Json:
    """Return a link to another site."""
    return {"title": title, "url": url, "targetBlank": True}


def runbook() -> Json:
    """Return a link to the runbook of the alert named in the cell."""
    return web("Open runbook", f"{RUNBOOKS}/${{__value.text}}.md")


def menu() -> Json:
    """Return the menu of the other dashboards, which keeps variables and time range."""
    return {
        "type": "dashboards",
        "title": "Stallscope",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "Other dashboards, with the same time range and variables",
        "url": "",
    }
