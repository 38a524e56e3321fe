"""Grafana with a private set-up: the bundle's dashboards, the stack's Prometheus, nothing of an installed service's."""

from __future__ import annotations

from pathlib import Path

import yaml

from stallscope.stack.component import Component
from stallscope.stack.ports import ADDRESS, Port

_HOME = Path("/usr/share/grafana")
"""Where Grafana's own packages keep its web pages and defaults."""


def grafana_component(program: str, folder: Path, dashboards: Path, port: Port, prometheus: Port) -> Component:
    """Write Grafana's provisioning and describe how it runs.

    Args:
        program: path of `grafana-server`.
        folder: the stack's; Grafana writes to `grafana` in it.
        dashboards: the bundle's dashboards, as JSON files.
        port: where Grafana listens.
        prometheus: where its one data source does.
    """
    own = folder / "grafana"
    provisioning = own / "provisioning"
    source: dict[str, object] = {
        "name": "Prometheus",
        "uid": "prometheus",
        "type": "prometheus",
        "url": prometheus.url,
        "access": "proxy",
    }
    provider = {"name": "Stallscope", "type": "file", "options": {"path": str(dashboards)}}
    contents: dict[str, dict[str, object]] = {
        "datasources": {"datasources": [{**source, "isDefault": True}]},
        "dashboards": {"providers": [provider]},
        "plugins": {"apps": []},
        "alerting": {},
    }
    for kind, entries in contents.items():
        (provisioning / kind).mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({"apiVersion": 1, **entries}, sort_keys=False)
        (provisioning / kind / "stallscope.yml").write_text(text, encoding="utf-8")
    return Component(
        "Grafana",
        [program, f"--homepath={_HOME}"] if _HOME.is_dir() else [program],
        folder / "logs" / "grafana.log",
        {
            "GF_SERVER_HTTP_ADDR": ADDRESS,
            "GF_SERVER_HTTP_PORT": str(port.number),
            "GF_PATHS_DATA": str(own),
            "GF_PATHS_LOGS": str(own / "log"),
            "GF_PATHS_PLUGINS": str(own / "plugins"),
            "GF_PATHS_PROVISIONING": str(provisioning),
            # Only this machine reaches it, and nobody is to need a password for a first look.
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
            "GF_AUTH_ANONYMOUS_ORG_ROLE": "Editor",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        },
    )
