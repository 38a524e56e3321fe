"""A real Alertmanager with the bundle's configuration and short waits, and the addresses of a test's receivers."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from stallscope.lab.stack.programs import find_programs
from tests.free_ports import free_port
from tests.waiting import until

ALERTS = Path(__file__).parents[2] / "alerts"
PATIENCE = 60.0
"""Seconds within which a program starts and an alert takes effect on a slow machine."""
GROUP_WAIT = "600ms"
GROUP_INTERVAL = "1s"

Labels = Mapping[str, str]
Configuration = dict[str, Any]


@dataclass(frozen=True)
class Alert:
    """An alert as Prometheus posts it."""

    labels: Labels
    annotations: Labels = field(default_factory=dict)
    ended: bool = False

    def posted(self) -> dict[str, object]:
        """Return the alert as the API expects it: without an end it keeps firing."""
        end = {"endsAt": datetime.now(timezone.utc).isoformat()} if self.ended else {}
        return {"labels": dict(self.labels), "annotations": dict(self.annotations), **end}


class Alertmanager:
    """A running Alertmanager."""

    def __init__(self, address: str) -> None:
        self.address = f"http://{address}"

    @property
    def ready(self) -> bool:
        """Return whether it is ready."""
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{self.address}/-/ready", timeout=PATIENCE).ok
        return False

    def post(self, alerts: Iterable[Alert]) -> None:
        """Post alerts, as Prometheus does."""
        posted = [alert.posted() for alert in alerts]
        requests.post(f"{self.address}/api/v2/alerts", json=posted, timeout=PATIENCE).raise_for_status()

    def notified(self) -> int:
        """Return how many notifications it has started to send."""
        page = requests.get(f"{self.address}/metrics", timeout=PATIENCE).text
        return sum(
            int(float(value)) for value in re.findall(r"^alertmanager_notifications_total{.*} (\S+)$", page, re.M)
        )

    def muted(self) -> set[frozenset[tuple[str, str]]]:
        """Return the labels of every muted alert."""
        found = requests.get(f"{self.address}/api/v2/alerts", timeout=PATIENCE).json()
        return {frozenset(each["labels"].items()) for each in found if each["status"]["state"] == "suppressed"}


@contextlib.contextmanager
def running(configuration: Configuration, folder: Path) -> Iterator[Alertmanager]:
    """Run an Alertmanager until the end of the block."""
    program = find_programs().alertmanager
    if program is None:
        pytest.fail("Alertmanager is not on PATH; sh tests/install_tools.sh installs it on Debian and Ubuntu")
    folder.mkdir(parents=True, exist_ok=True)
    file, log, address = folder / "alertmanager.yml", folder / "log", f"127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        alertmanager = Alertmanager(address)
        wait_until(lambda: alertmanager.ready or process.poll() is not None, lambda: log.read_text())
        assert process.poll() is None, log.read_text()
        yield alertmanager
    finally:
        process.terminate()
        process.wait(PATIENCE)


def wait_until(condition: Callable[[], object], complaint: Callable[[], str]) -> None:
    """Wait until the condition is true, or fail with the message."""
    until(condition, complaint, seconds=PATIENCE)


def bundled() -> Configuration:
    """Return the bundle's configuration."""
    return _parsed((ALERTS / "alertmanager.yml").read_text(encoding="utf-8"))


def with_examples() -> Configuration:
    """Return the bundle's configuration with every example uncommented."""
    lines = (ALERTS / "alertmanager.yml").read_text(encoding="utf-8").splitlines()
    return _parsed("\n".join(_uncommented(lines)))


def hastened(configuration: Configuration) -> Configuration:
    """Return the configuration with shorter waits."""
    return {**configuration, "route": _hastened(configuration["route"])}


def notifying(configuration: Configuration, notifications: Mapping[str, Configuration]) -> Configuration:
    """Return the configuration with other notification settings for these receivers, and none for all others."""
    receivers = [{"name": each["name"], **notifications.get(each["name"], {})} for each in configuration["receivers"]]
    return {**configuration, "receivers": receivers}


def _parsed(text: str) -> Configuration:
    configuration: Configuration = yaml.safe_load(text)
    configuration["templates"] = [str(ALERTS / pattern) for pattern in configuration["templates"]]
    return configuration


def _hastened(route: Configuration) -> Configuration:
    waits = {"group_wait": GROUP_WAIT, "group_interval": GROUP_INTERVAL}
    changed: Configuration = {key: waits.get(key, value) for key, value in route.items()}
    if "routes" in route:
        changed["routes"] = [_hastened(child) for child in route["routes"]]
    return changed


def _uncommented(lines: Iterable[str]) -> Iterator[str]:
    """Uncomment examples: they begin with a `#` without a space; examples nested in them have two or more."""
    for line in lines:
        yield re.sub(r"^( *)#(?! \S|$)", r"\1", line)
