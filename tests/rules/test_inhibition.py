"""A real Alertmanager with the bundle's configuration mutes what follows from something worse, and nothing else."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.rules.rulebook import ROOT

PATIENCE = 30.0
"""Seconds in which a program starts and an alert takes effect, on the slowest of machines."""


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Alertmanager's interface."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        pytest.fail("Alertmanager is not on PATH; sh tests/install_tools.sh installs it on Debian and Ubuntu")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("alertmanager")
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={_silent_configuration(folder)}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
            ],
            stdout=output,
            stderr=output,
        )
        try:
            _await_ready(address, log)
            yield f"http://{address}/api/v2/alerts"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _silent_configuration(folder: Path) -> Path:
    """The bundle's configuration with nobody behind its webhook."""
    text = (ROOT / "alerts" / "alertmanager.yml").read_text()
    path = folder / "alertmanager.yml"
    path.write_text(text[: text.index("receivers:")] + "receivers:\n  - name: default\n  - name: none\n")
    return path


def _await_ready(address: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"http://{address}/-/ready", timeout=PATIENCE).ok:
                return
        time.sleep(0.05)
    pytest.fail(f"Alertmanager did not start:\n{log.read_text()}")


GPU = {"instance": "n1", "gpu": "0", "uuid": "GPU-0"}
LOST = {"alertname": "GpuLost", "severity": "critical", **GPU}
DOWN = {"alertname": "StallscopeExporterDown", "severity": "warning", "instance": "n1"}
INPUT = {"alertname": "TrainingInputBound", "severity": "warning"}
STALLED = {"alertname": "TrainingStalled", "severity": "critical"}
UNDERUSED = {"alertname": "GpuUnderused", "severity": "warning"}


@pytest.mark.parametrize(
    ("source", "muted", "heard"),
    [
        pytest.param(
            LOST | {"run": "a", "rank": "0"}, STALLED | {"run": "a"}, STALLED | {"run": "b"}, id="lost GPU, run"
        ),
        pytest.param(LOST, UNDERUSED | GPU, UNDERUSED | GPU | {"gpu": "1", "uuid": "GPU-1"}, id="lost GPU, GPU"),
        pytest.param(
            LOST | {"cluster": "x", "run": "a"},
            INPUT | {"cluster": "x", "run": "a"},
            INPUT | {"run": "a"},
            id="cluster",
        ),
        pytest.param(LOST | {"run": "a"}, INPUT | {"run": "a"}, INPUT | {"run": "a", "namespace": "y"}, id="namespace"),
        pytest.param(STALLED | {"run": "a"}, INPUT | {"run": "a"}, INPUT | {"run": "b"}, id="stalled"),
        pytest.param(
            INPUT | {"alertname": "TrainingInputCpuSaturated", "run": "a"},
            INPUT | {"run": "a"},
            INPUT | {"run": "b"},
            id="sub-cause",
        ),
        pytest.param(DOWN, LOST, LOST | {"instance": "n2"}, id="exporter down"),
        pytest.param(
            STALLED | {"run": "a"},
            STALLED | {"run": "a", "severity": "info"},
            STALLED | {"run": "b", "severity": "info"},
            id="graver",
        ),
    ],
)
def test_an_alert_is_muted_by_what_explains_it_and_its_neighbour_is_not(
    alertmanager: str,
    source: dict[str, str],
    muted: dict[str, str],
    heard: dict[str, str],
    request: pytest.FixtureRequest,
) -> None:
    # Cases share one Alertmanager: a cluster of their own keeps them apart.
    case = request.node.callspec.id
    alerts = [{**labels, "cluster": case + labels.get("cluster", "")} for labels in (source, muted, heard)]
    requests.post(alertmanager, json=[{"labels": labels} for labels in alerts], timeout=PATIENCE).raise_for_status()

    deadline = time.monotonic() + PATIENCE
    states: dict[str, str] = {}
    while time.monotonic() < deadline and states.get(str(alerts[1])) != "suppressed":
        found = requests.get(alertmanager, timeout=PATIENCE).json()
        by_labels = {frozenset(alert["labels"].items()): alert["status"]["state"] for alert in found}
        states = {str(labels): by_labels.get(frozenset(labels.items()), "unknown") for labels in alerts}
        time.sleep(0.05)

    assert [states[str(labels)] == "suppressed" for labels in alerts] == [False, True, False], states
