"""A real Alertmanager with the bundle's configuration, in a hurry, and the addresses of a test's own receivers."""

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

from stallscope.stack.programs import find_programs
from tests.free_ports import free_port
from tests.waiting import until

ALERTS = Path(__file__).parents[2] / "alerts"
PATIENCE = 60.0
"""Seconds in which a program starts and an alert takes effect, on the slowest of machines."""
GROUP_WAIT = "600ms"
GROUP_INTERVAL = "1s"

Labels = Mapping[str, str]
Configuration = dict[str, Any]


@dataclass(frozen=True)
class Alert:
    """What Prometheus posts of one alert."""

    labels: Labels
    annotations: Labels = field(default_factory=dict)
    ended: bool = False

    def posted(self) -> dict[str, object]:
        """As the interface wants it: what says no end goes on."""
        end = {"endsAt": datetime.now(timezone.utc).isoformat()} if self.ended else {}
        return {"labels": dict(self.labels), "annotations": dict(self.annotations), **end}


class Alertmanager:
    """One that runs."""

    def __init__(self, address: str) -> None:
        self.address = f"http://{address}"

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{self.address}/-/ready", timeout=PATIENCE).ok
        return False

    def post(self, alerts: Iterable[Alert]) -> None:
        """Tell it of alerts, as Prometheus does."""
        posted = [alert.posted() for alert in alerts]
        requests.post(f"{self.address}/api/v2/alerts", json=posted, timeout=PATIENCE).raise_for_status()

    def notified(self) -> int:
        """How many notifications it has begun to send."""
        page = requests.get(f"{self.address}/metrics", timeout=PATIENCE).text
        return sum(
            int(float(value)) for value in re.findall(r"^alertmanager_notifications_total{.*} (\S+)$", page, re.M)
        )

    def muted(self) -> set[frozenset[tuple[str, str]]]:
        """The labels of every alert that is muted now."""
        found = requests.get(f"{self.address}/api/v2/alerts", timeout=PATIENCE).json()
        return {frozenset(each["labels"].items()) for each in found if each["status"]["state"] == "suppressed"}


@contextlib.contextmanager
def running(configuration: Configuration, folder: Path) -> Iterator[Alertmanager]:
    """Run it until the end of the block."""
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
    """Wait until it holds, or fail with the complaint."""
    until(condition, complaint, seconds=PATIENCE)


def bundled() -> Configuration:
    """The bundle's configuration as it is."""
    return _parsed((ALERTS / "alertmanager.yml").read_text(encoding="utf-8"))


def with_examples() -> Configuration:
    """The bundle's configuration with every example in it uncommented: as an operator would who follows them all."""
    lines = (ALERTS / "alertmanager.yml").read_text(encoding="utf-8").splitlines()
    return _parsed("\n".join(_uncommented(lines)))


def hastened(configuration: Configuration) -> Configuration:
    """The same with waits that a test can afford; nothing else differs."""
    return {**configuration, "route": _hastened(configuration["route"])}


def notifying(configuration: Configuration, notifications: Mapping[str, Configuration]) -> Configuration:
    """The same with other ways to notify for the receivers named, and none for all others."""
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
    """An example is commented out by a mark without a space; what is nested in it has two or more."""
    for line in lines:
        yield re.sub(r"^( *)#(?! \S|$)", r"\1", line)
