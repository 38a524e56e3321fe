"""Grafana with the bundle's dashboards and data sources, independent of an installed Grafana service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stallscope.lab.stack.component import Component
from stallscope.lab.stack.configuration import SCRAPE_INTERVAL
from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.ports import ADDRESS, Port

_HOME = Path("/usr/share/grafana")
"""Installation folder of Grafana's own packages: web pages and defaults."""
_HOME_DASHBOARD = "stallscope-fleet.json"


def grafana_component(
    program: str,
    folder: Path,
    bundle: Path,
    port: Port,
    prometheus: Port,
    alertmanager: Port | None,
    home: Path = _HOME,
) -> Component:
    """Write Grafana's provisioning and describe how it runs.

    Args:
        program: path of `grafana-server`.
        folder: the stack's folder; Grafana writes to `grafana` in it.
        bundle: the bundle's `grafana` folder, with `dashboards` and `provisioning`.
        port: port of Grafana.
        prometheus: port of the default data source.
        alertmanager: port of the other data source; None for a stack without Alertmanager.
        home: Grafana's installation folder; left to Grafana where it does not exist.

    Raises:
        StackError: the bundle's provisioning is not a YAML mapping.
    """
    own = folder / "grafana"
    provisioning = own / "provisioning"
    dashboards = bundle / "dashboards"
    contents: dict[str, dict[str, Any]] = {
        "datasources": _sources(bundle, {"prometheus": prometheus, "alertmanager": alertmanager}),
        "dashboards": _dashboards(bundle, dashboards),
        "plugins": {"apiVersion": 1, "apps": []},
        "alerting": {"apiVersion": 1},
    }
    for kind, content in contents.items():
        (provisioning / kind).mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(content, sort_keys=False)
        (provisioning / kind / "stallscope.yml").write_text(text, encoding="utf-8")
    return Component(
        "Grafana",
        [program, f"--homepath={home}"] if home.is_dir() else [program],
        folder / "logs" / "grafana.log",
        {
            "GF_SERVER_HTTP_ADDR": ADDRESS,
            "GF_SERVER_HTTP_PORT": str(port.number),
            "GF_PATHS_DATA": str(own),
            "GF_PATHS_LOGS": str(own / "log"),
            "GF_PATHS_PLUGINS": str(own / "plugins"),
            "GF_PATHS_PROVISIONING": str(provisioning),
            "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(dashboards / _HOME_DASHBOARD),
            # Only this machine can connect, so no login is required.
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
            "GF_AUTH_ANONYMOUS_ORG_ROLE": "Editor",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        },
    )


def _sources(bundle: Path, ports: dict[str, Port | None]) -> dict[str, Any]:
    """Return the bundle's data sources with the stack's addresses; Prometheus is the default."""
    content = _load(bundle / "provisioning" / "datasources" / "stallscope.yml")
    kept = []
    for source in content["datasources"]:
        port = ports.get(source["type"])
        settings = dict(source["jsonData"])
        if port is None:
            continue
        if source["type"] == "prometheus":
            source["isDefault"] = True
            settings["timeInterval"] = SCRAPE_INTERVAL
            if ports["alertmanager"] is None:
                settings.pop("alertmanagerUid", None)
        kept.append({**source, "url": port.url, "jsonData": settings})
    return {**content, "datasources": kept}


def _dashboards(bundle: Path, dashboards: Path) -> dict[str, Any]:
    """Return the bundle's dashboard providers, pointed at the bundle's folder of dashboards."""
    content = _load(bundle / "provisioning" / "dashboards" / "stallscope.yml")
    providers = [{**each, "options": {**each["options"], "path": str(dashboards)}} for each in content["providers"]]
    return {**content, "providers": providers}


def _load(file: Path) -> dict[str, Any]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise StackError(f"{file}: not a YAML mapping; reinstall stallscope")
    return content
