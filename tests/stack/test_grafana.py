"""Configuration that `stallscope up` writes for Grafana. No test needs Grafana, or depends on an installed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.bundle import bundle_folder
from stallscope.lab.stack.component import Component
from stallscope.lab.stack.configuration import SCRAPE_INTERVAL
from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.grafana import grafana_component
from stallscope.lab.stack.ports import Port

PORT = Port("Grafana", 23000, "--grafana.port")
PROMETHEUS = Port("Prometheus", 29090, "--prometheus.port")
ALERTMANAGER = Port("Alertmanager", 29093, "--alertmanager.port")
BUNDLE = bundle_folder("grafana")


def component(
    folder: Path,
    *,
    program: str = "grafana-server",
    bundle: Path = BUNDLE,
    alertmanager: Port | None = ALERTMANAGER,
    home: Path = Path("/nonexistent"),
) -> Component:
    return grafana_component(program, folder, bundle, PORT, PROMETHEUS, alertmanager, home)


def written(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / "grafana" / "provisioning" / kind / "stallscope.yml"
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def test_its_data_sources_are_the_bundles_at_the_stacks_addresses(tmp_path: Path) -> None:
    component(tmp_path)
    prometheus, alertmanager = written(tmp_path, "datasources")["datasources"]
    assert (prometheus["type"], prometheus["url"], prometheus["isDefault"]) == (
        "prometheus",
        "http://127.0.0.1:29090",
        True,
    )
    assert (alertmanager["type"], alertmanager["url"]) == ("alertmanager", "http://127.0.0.1:29093")
    assert prometheus["jsonData"]["alertmanagerUid"] == alertmanager["uid"]


def test_its_rates_are_taken_over_the_stacks_scrape_interval(tmp_path: Path) -> None:
    component(tmp_path)
    settings = written(tmp_path, "datasources")["datasources"][0]["jsonData"]
    assert settings["timeInterval"] == SCRAPE_INTERVAL
    assert (settings["httpMethod"], settings["prometheusType"]) == ("POST", "Prometheus")


def test_a_stack_without_alertmanager_has_prometheus_alone(tmp_path: Path) -> None:
    component(tmp_path, alertmanager=None)
    (source,) = written(tmp_path, "datasources")["datasources"]
    assert source["type"] == "prometheus"
    assert "alertmanagerUid" not in source["jsonData"]


def test_its_dashboards_are_the_bundles_in_a_folder_of_their_own(tmp_path: Path) -> None:
    component(tmp_path)
    (provider,) = written(tmp_path, "dashboards")["providers"]
    assert provider["options"]["path"] == str(BUNDLE / "dashboards")
    assert (provider["folder"], provider["allowUiUpdates"]) == ("Stallscope", False)


def test_it_opens_with_the_fleet(tmp_path: Path) -> None:
    home = Path(environment(tmp_path)["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.name == "stallscope-fleet.json"
    assert home.is_file()


def test_it_listens_here_only_and_writes_to_the_stacks_folder(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    assert (variables["GF_SERVER_HTTP_ADDR"], variables["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", "23000")
    assert {variables[f"GF_PATHS_{name}"] for name in ("DATA", "LOGS", "PLUGINS", "PROVISIONING")} == {
        str(tmp_path / "grafana"),
        *(str(tmp_path / "grafana" / name) for name in ("log", "plugins", "provisioning")),
    }


@pytest.mark.parametrize(("installed", "arguments"), [(True, ["--homepath={home}"]), (False, [])])
def test_it_names_its_installation_folder_only_where_there_is_one(
    installed: bool, arguments: list[str], tmp_path: Path
) -> None:
    home = tmp_path / "installation"
    if installed:
        home.mkdir()
    printed = output(component(tmp_path, program="/bin/echo", home=home))
    assert printed.split() == [each.format(home=home) for each in arguments]


def test_provisioning_that_is_not_a_mapping_is_named(tmp_path: Path) -> None:
    file = tmp_path / "provisioning" / "datasources" / "stallscope.yml"
    file.parent.mkdir(parents=True)
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(StackError, match=r"datasources/stallscope\.yml: not a YAML mapping"):
        component(tmp_path, bundle=tmp_path)


def environment(folder: Path) -> dict[str, str]:
    """Return Grafana's environment variables, as printed by a program that runs in place of Grafana."""
    lines = output(component(folder, program="/usr/bin/env")).splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith("GF_"))


def output(started: Component) -> str:
    started.log.parent.mkdir()
    started.start()
    started.reap()
    return started.log_tail(200)
