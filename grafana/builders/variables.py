"""Variables at the top of a dashboard; each is narrowed by the ones before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from grafana.builders import DATASOURCE, Json

_ON_TIME_RANGE_CHANGE = 2


def datasource() -> Json:
    """Select the Prometheus data source."""
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data Source",
        "description": "Prometheus, or a compatible server, with the metrics of the Stallscope exporters.",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "skipUrlSync": False,
        # Name of the data source in the local stack and the provisioning files. Without it, Grafana uses its default.
        "current": {"selected": False, "text": "default", "value": "default"},
    }


def labels_of(
    name: str,
    label: str,
    series: str,
    *,
    title: str,
    description: str,
    multi: bool = True,
    everything: bool = True,
    all_value: str = ".+",
    hide: bool = False,
) -> Json:
    """Select among the values of a label.

    Args:
        name: name of the variable.
        label: the label.
        series: selector of the series, narrowed by earlier variables.
        title: shown next to the variable.
        description: tooltip of the variable.
        multi: whether several values can be selected.
        everything: whether All can be selected; it is then the default. Otherwise the first value is.
        all_value: regular expression for All; `.*` if the label may be missing.
        hide: do not show the variable.
    """
    query = f"label_values({series}, {label})"
    variable: Json = {
        "type": "query",
        "name": name,
        "label": title,
        "description": description,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": _ON_TIME_RANGE_CHANGE,
        "sort": 7,  # in natural order: node2 before node10
        "regex": "",
        "hide": 2 if hide else 0,
        "multi": multi,
        "includeAll": everything,
        "options": [],
        "skipUrlSync": False,
        "current": {},
    }
    if everything:
        variable["allValue"] = all_value
        variable["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return variable


def entry(name: str, default: str, *, title: str, description: str) -> Json:
    """Add a text box for a value, such as a price."""
    return {
        "type": "textbox",
        "name": name,
        "label": title,
        "description": description,
        "query": default,
        "hide": 0,
        "options": [{"selected": True, "text": default, "value": default}],
        "skipUrlSync": False,
        "current": {"selected": True, "text": default, "value": default},
    }


def choice(
    name: str,
    values: Sequence[str],
    *,
    title: str,
    description: str,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> Json:
    """Select one of a few fixed values; the first is the default, and `texts` has the text of values that need one."""
    options: list[Json] = [
        {"selected": index == 0, "text": texts.get(value, value), "value": value} for index, value in enumerate(values)
    ]
    return {
        "type": "custom",
        "name": name,
        "label": title,
        "description": description,
        "query": ",".join(f"{texts[value]} : {value}" if value in texts else value for value in values),
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": options,
        "skipUrlSync": False,
        "current": options[0],
    }
