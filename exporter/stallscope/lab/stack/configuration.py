"""Configuration of Prometheus and Alertmanager for this machine, derived from the bundle's own files.

Rules, alerts, routing and inhibition are unchanged. Addresses and intervals are adapted to one machine, and no
notification leaves the machine unless a webhook is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from stallscope.common.thresholds import with_values
from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.ports import ADDRESS, Port

JOB = "stallscope"
"""The only scrape job of the bundle that is kept: the others have targets on other machines."""
SCRAPE_INTERVAL = "2s"
EVALUATION_INTERVAL = "5s"
GROUP_WAIT = "10s"
"""Two evaluations: alerts on one fault meet in one notification."""
GROUP_INTERVAL = "5s"


def write_prometheus(
    bundle: Path,
    folder: Path,
    *,
    exporter: Port,
    alertmanager: Port,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """Derive Prometheus's configuration.

    Args:
        bundle: the bundle's `prometheus` folder, with `prometheus.yml`.
        folder: folder to write to.
        exporter: port of the exporter.
        alertmanager: port of Alertmanager.
        thresholds: thresholds to override, by name; `stallscope up` overrides none.

    Returns:
        Path of Prometheus' configuration file.

    Raises:
        StackError: an entry to change is missing in the bundle's file.
    """
    source = bundle / "prometheus.yml"
    configuration = _load(source)
    configuration["global"] = {
        **configuration.get("global", {}),
        "scrape_interval": SCRAPE_INTERVAL,
        "scrape_timeout": SCRAPE_INTERVAL,
        "evaluation_interval": EVALUATION_INTERVAL,
    }
    jobs = [entry for entry in configuration.get("scrape_configs", []) if entry["job_name"] == JOB]
    if not jobs:
        raise StackError(f"{source}: no scrape job named {JOB}; reinstall stallscope")
    configuration["scrape_configs"] = [_at_this_machine(entry, exporter) for entry in jobs]
    configuration["alerting"] = {
        **configuration.get("alerting", {}),
        "alertmanagers": [{"static_configs": [{"targets": [_target(alertmanager)]}]}],
    }
    configuration["rule_files"] = [
        _literal(with_thresholds(file, folder, thresholds) if file.name == "thresholds.yml" else file)
        for pattern in configuration.get("rule_files", [])
        for file in _files(source.parent, pattern)
    ]
    return _write(folder / "prometheus.yml", configuration)


def write_alertmanager(bundle: Path, folder: Path, *, webhook: str | None) -> Path:
    """Derive Alertmanager's configuration.

    Args:
        bundle: the bundle's `alerts` folder, with `alertmanager.yml`.
        folder: folder to write to.
        webhook: URL that every notification is sent to; None for no notifications.

    Returns:
        Path of Alertmanager's configuration file.
    """
    configuration = _load(bundle / "alertmanager.yml")
    # A demonstration must not page anyone. A receiver without integrations stays as it is.
    notification = {"webhook_configs": [{"url": webhook, "send_resolved": True}]} if webhook else {}
    configuration["receivers"] = [
        {"name": receiver["name"], **(notification if len(receiver) > 1 else {})}
        for receiver in configuration["receivers"]
    ]
    configuration["templates"] = [f"{_literal(bundle.resolve())}/{path}" for path in configuration.get("templates", [])]
    _hasten(configuration["route"])
    return _write(folder / "alertmanager.yml", configuration)


def _hasten(route: dict[str, Any], root: bool = True) -> None:
    for key, value in {"group_wait": GROUP_WAIT, "group_interval": GROUP_INTERVAL}.items():
        if root or key in route:
            route[key] = value
    for child in route.get("routes", []):
        _hasten(child, root=False)


def _at_this_machine(entry: dict[str, Any], port: Port) -> dict[str, Any]:
    """Return the scrape job with one static target in place of its service discovery."""
    intervals = ("scrape_interval", "scrape_timeout")
    kept = {key: value for key, value in entry.items() if not key.endswith("_sd_configs") and key not in intervals}
    return {**kept, "static_configs": [{"targets": [_target(port)], "labels": {"instance": port.instance}}]}


def with_thresholds(file: Path, folder: Path, thresholds: Mapping[str, float]) -> Path:
    """Write a copy of a rule file of the thresholds with other values into a folder, and return its path.

    Raises:
        StackError: the file has no threshold of that name.
    """
    try:
        text = with_values(thresholds, file)
    except ValueError as error:
        raise StackError(f"{file}: {error}") from None
    return _write_text(folder / "thresholds.yml", text)


def _files(folder: Path, pattern: str) -> list[Path]:
    path = folder / pattern
    found = sorted(path.parent.resolve().glob(path.name))
    if not found:
        raise StackError(f"{folder / 'prometheus.yml'}: no rule file matches {pattern}; reinstall stallscope")
    return found


def _literal(file: Path) -> str:
    """Return the path as a glob pattern. Prometheus accepts no star in a folder's name, not even an escaped one."""
    return re.sub(r"([?\[\\])", r"\\\1", str(file)).replace("*", "?")


def _target(port: Port) -> str:
    return f"{ADDRESS}:{port.number}"


def _load(file: Path) -> dict[str, Any]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise StackError(f"{file}: not a YAML mapping; reinstall stallscope")
    return content


def _write(file: Path, content: dict[str, Any]) -> Path:
    return _write_text(file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _write_text(file: Path, text: str) -> Path:
    note = "# Derived by `stallscope up` from the bundle's file of this name; overwritten at every start.\n"
    file.touch()
    file.chmod(0o600)  # the URL of a webhook may contain a password
    file.write_text(note + text, encoding="utf-8")
    return file
