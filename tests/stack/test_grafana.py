"""Grafana's private set-up, as far as it can be judged without Grafana."""

from __future__ import annotations

from pathlib import Path

import yaml

from stallscope.stack.grafana import grafana_component
from stallscope.stack.ports import Port

PORT = Port("Grafana", 23000, "--grafana.port")
PROMETHEUS = Port("Prometheus", 29090, "--prometheus.port")


def test_its_one_data_source_is_the_stacks_prometheus(tmp_path: Path) -> None:
    grafana_component("grafana-server", tmp_path, tmp_path / "dashboards", PORT, PROMETHEUS)
    content = yaml.safe_load((tmp_path / "grafana/provisioning/datasources/stallscope.yml").read_text(encoding="utf-8"))
    (source,) = content["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://127.0.0.1:29090", True)


def test_its_dashboards_are_the_bundles(tmp_path: Path) -> None:
    grafana_component("grafana-server", tmp_path, tmp_path / "dashboards", PORT, PROMETHEUS)
    content = yaml.safe_load((tmp_path / "grafana/provisioning/dashboards/stallscope.yml").read_text(encoding="utf-8"))
    (provider,) = content["providers"]
    assert provider["options"]["path"] == str(tmp_path / "dashboards")


def test_it_listens_here_only_and_writes_to_the_stacks_folder(tmp_path: Path) -> None:
    """A program that prints its environment stands in Grafana's place."""
    component = grafana_component("/usr/bin/env", tmp_path, tmp_path / "dashboards", PORT, PROMETHEUS)
    (tmp_path / "logs").mkdir()
    component.start()
    component.reap()
    told = dict(line.split("=", 1) for line in component.log_tail(200).splitlines() if line.startswith("GF_"))
    assert (told["GF_SERVER_HTTP_ADDR"], told["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", "23000")
    assert {told[f"GF_PATHS_{name}"] for name in ("DATA", "LOGS", "PLUGINS", "PROVISIONING")} == {
        str(tmp_path / "grafana"),
        *(str(tmp_path / "grafana" / name) for name in ("log", "plugins", "provisioning")),
    }
