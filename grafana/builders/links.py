"""Ways from one dashboard to the next. The time shown, the data source and the clusters chosen go along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana.builders import Json

_KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
TAG = "stallscope"
"""What all dashboards are found by."""
RUNBOOKS = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks"
"""Where alerts' `runbook_url` leads: one page an alert."""


def to_dashboard(uid: str, title: str, variables: Mapping[str, str], *, kept: Sequence[str] = ()) -> Json:
    """A link from a value to another dashboard.

    Args:
        uid: the dashboard's.
        title: what the link says.
        variables: what its variables get: `{"run": "${__data.fields.Run}"}` in a table,
            `{"run": "${__field.labels.run}"}` from a curve, `{"run": "$run"}` from a panel with one run.
        kept: variables of both dashboards whose choice goes along.
    """
    # Left alone, Grafana encodes neither & nor # nor +, which names of runs may have.
    encoded = {name: value.replace("}", ":percentencode}") for name, value in variables.items()}
    given = "".join(f"&var-{name}={value}" for name, value in encoded.items())
    given += "".join(f"&${{{name}:queryparam}}" for name in kept)
    return {"title": title, "url": f"/d/{uid}?{_KEPT}{given}", "targetBlank": False}


def web(title: str, url: str) -> Json:
    """A link to elsewhere."""
    return {"title": title, "url": url, "targetBlank": True}


def runbook() -> Json:
    """A link to the page of the alert whose name the cell shows."""
    return web("Open runbook", f"{RUNBOOKS}/${{__value.text}}.md")


def menu() -> Json:
    """The list of the other dashboards at the top, with the choices and the time kept."""
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
