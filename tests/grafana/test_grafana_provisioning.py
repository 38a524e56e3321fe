"""Grafana's provisioning files use documented fields, and match dashboards, rules and stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import grafana
from stallscope.tools.cli import up
from tests.grafana.dashboard_queries import SCRAPE_SECONDS
from tests.rules.rulebook import ROOT

PROVISIONING = Path(grafana.__file__).parent / "provisioning"
Json = dict[str, Any]

# Field: type; from Grafana's documentation of file provisioning.
_DATASOURCE = {
    "name": str,
    "type": str,
    "uid": str,
    "access": str,
    "url": str,
    "orgId": int,
    "isDefault": bool,
    "editable": bool,
    "version": int,
    "jsonData": dict,
}
_JSON_DATA = {
    "prometheus": {
        "httpMethod": str,
        "prometheusType": str,
        "prometheusVersion": str,
        "timeInterval": str,
        "manageAlerts": bool,
        "alertmanagerUid": str,
        "exemplarTraceIdDestinations": list,
    },
    "alertmanager": {"implementation": str, "handleGrafanaManagedAlerts": bool},
}
_PROVIDER = {
    "name": str,
    "orgId": int,
    "folder": str,
    "folderUid": str,
    "type": str,
    "disableDeletion": bool,
    "updateIntervalSeconds": int,
    "allowUiUpdates": bool,
    "options": dict,
}
_OPTIONS = {"path": str, "foldersFromFilesStructure": bool}


def _read(kind: str) -> Json:
    (path,) = sorted((PROVISIONING / kind).glob("*.y*ml"))
    document: Json = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _unknown(given: Json, fields: dict[str, type]) -> dict[str, object]:
    return {name: value for name, value in given.items() if type(value) is not fields.get(name)}


def _datasources() -> list[Json]:
    document = _read("datasources")
    assert document.keys() <= {"apiVersion", "datasources", "deleteDatasources", "prune"}
    assert document["apiVersion"] == 1
    found: list[Json] = document["datasources"]
    return found


def _datasource(kind: str) -> Json:
    (found,) = (each for each in _datasources() if each["type"] == kind)
    return found


@pytest.mark.parametrize("kind", ["prometheus", "alertmanager"])
def test_a_data_source_has_only_fields_that_grafana_knows(kind: str) -> None:
    source = _datasource(kind)
    assert _unknown(source, _DATASOURCE) == {}
    assert _unknown(source["jsonData"], _JSON_DATA[kind]) == {}
    assert source.keys() >= {"name", "uid", "url"}
    assert source["access"] == "proxy"
    assert source["editable"] is False


def test_data_sources_have_names_and_uids_of_their_own() -> None:
    sources = _datasources()
    assert len({each["name"] for each in sources}) == len({each["uid"] for each in sources}) == len(sources)
    assert _datasource("prometheus")["uid"] == "prometheus"


def test_prometheus_leads_to_the_alertmanager_that_is_there() -> None:
    assert _datasource("prometheus")["jsonData"]["alertmanagerUid"] == _datasource("alertmanager")["uid"]


def test_rates_are_taken_over_the_interval_of_prometheus() -> None:
    scraped = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert _datasource("prometheus")["jsonData"]["timeInterval"] == scraped == f"{SCRAPE_SECONDS}s"


def test_the_addresses_are_those_of_the_local_stack() -> None:
    usual = {name: port for name, _title, port in up._SERVICES}
    for kind in ("prometheus", "alertmanager"):
        assert _datasource(kind)["url"] == f"http://127.0.0.1:{usual[kind]}"


def test_dashboards_are_provided_read_only_in_one_folder() -> None:
    document = _read("dashboards")
    assert document.keys() == {"apiVersion", "providers"}
    assert document["apiVersion"] == 1
    (provider,) = document["providers"]
    assert _unknown(provider, _PROVIDER) == {}
    assert _unknown(provider["options"], _OPTIONS) == {}
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert (provider["folder"], provider["folderUid"]) == ("Stallscope", "stallscope")
    # With folders from the file structure, both settings must be absent.
    assert not provider["options"].get("foldersFromFilesStructure")
    assert provider["options"]["path"].startswith("/")
