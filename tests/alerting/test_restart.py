"""Alerts outlive a restart of Prometheus: with `--rules.alert.for-grace-period`, `for` does not start again."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.lab.stack.components import build_components
from stallscope.lab.stack.programs import find_programs
from tests.known_names import rules
from tests.prometheus_server import Server, prometheus
from tests.rules.rulebook import ROOT
from tests.stack_settings import stack_settings
from tests.waiting import until

FLAG = "--rules.alert.for-grace-period="
_RULE = {"alert": "AlwaysFiring", "expr": "vector(1)", "for": "2s"}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_SECONDS = 60.0


def duration(text: str) -> timedelta:
    """Return a duration such as `30s`."""
    return timedelta(**{_UNITS[unit]: int(count) for count, unit in re.findall(r"(\d+)([smh])", text)})


def firing(server: Server) -> dict[str, Any]:
    """Return the alert as soon as it fires."""
    return until(
        lambda: next((dict(each) for each in server.get("alerts")["data"]["alerts"] if each["state"] == "firing"), {}),
        "no alert fires",
        seconds=_SECONDS,
    )


def test_an_alert_that_fired_before_a_restart_fires_on_and_does_not_start_again(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": [_RULE]}]}), encoding="utf-8")
    active = []
    for _ in range(2):
        with prometheus(interval=1, data=tmp_path / "data", files=[file], flags=[f"{FLAG}1s"]) as server:
            active.append(firing(server)["activeAt"])
    # Prometheus stores the time as whole seconds.
    assert active[1].partition(".")[0].rstrip("Z") == active[0].partition(".")[0].rstrip("Z")


def _compose() -> list[str]:
    service = yaml.safe_load((ROOT / "deploy/compose/compose.yml").read_text(encoding="utf-8"))["services"]
    return list(service["prometheus"]["command"])


def _stack(folder: Path) -> list[str]:
    built = build_components(stack_settings(data_folder=folder), find_programs(), folder, None)
    return [str(word) for each in built if each.name == "Prometheus" for word in each._command]


@pytest.mark.parametrize("where", ["compose", "stack"])
def test_every_alert_that_waits_goes_on_where_we_start_prometheus(where: str, tmp_path: Path) -> None:
    command = _compose() if where == "compose" else _stack(tmp_path)
    (period,) = [word.removeprefix(FLAG) for word in command if word.startswith(FLAG)]
    waits = {duration(rule["for"]) for rule in rules() if "for" in rule}
    assert duration(period) <= min(waits)


@pytest.mark.parametrize(
    "path",
    [
        "prometheus/README.md",
        "prometheus/examples/README.md",
        "prometheus/examples/central.yml",
        "prometheus/examples/thanos-sidecar.yml",
    ],
)
def test_what_a_reader_copies_has_the_same_period(path: str) -> None:
    (period,) = [word.removeprefix(FLAG) for word in _compose() if word.startswith(FLAG)]
    assert f"{FLAG}{period}" in (ROOT / path).read_text(encoding="utf-8")
