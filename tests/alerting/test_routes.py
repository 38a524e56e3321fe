"""Routing: pages, tickets, no notification, and the team that owns the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.alerting.alertmanager import (
    ALERTS,
    PATIENCE,
    Alert,
    Configuration,
    Labels,
    bundled,
    hastened,
    notifying,
    running,
    with_examples,
)
from tests.alerting.subjects import RUN, on_gpu, on_node, on_run
from tests.rules.rulebook import run_tool
from tests.webhook import Webhook

DOWN = "StallscopeExporterDown"


def written(configuration: Configuration, folder: Path) -> str:
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return str(file)


def assert_notifies(configuration: Configuration, labels: Labels, receivers: str, folder: Path) -> None:
    """Fail unless exactly these receivers, separated by commas, get the alert."""
    pairs = [f"{label}={value}" for label, value in labels.items()]
    flags = (f"--config.file={written(configuration, folder)}", f"--verify.receivers={receivers}")
    run_tool("amtool", "config", "routes", "test", *flags, *pairs)


def test_amtool_accepts_the_configuration() -> None:
    said = run_tool("amtool", "check-config", str(ALERTS / "alertmanager.yml"))
    assert " - 1 templates\n" in said


def test_amtool_accepts_it_with_every_example_in_use(tmp_path: Path) -> None:
    configuration = with_examples()
    run_tool("amtool", "check-config", written(configuration, tmp_path))
    names = {each["name"] for each in configuration["receivers"]}
    assert names - {each["name"] for each in bundled()["receivers"]} == {"mail", "slack", "pager", "chat", "vision"}
    assert configuration["time_intervals"]


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (on_run("TrainingStalled"), "page"),
        (on_run("TrainingInputBound"), "ticket"),
        (on_run("TrainingStalled", severity="info"), "none"),
        (on_gpu("GpuLost"), "page"),
        (on_gpu("GpuThermalThrottle"), "ticket"),
        (on_gpu("GpuPowerCapped"), "none"),
        (on_node("HostOomKill"), "page"),
        (on_node(DOWN, severity="warning"), "ticket"),
        ({"alertname": "StallscopeThresholdMissing", "severity": "warning"}, "ticket"),
        ({"alertname": "StallscopeWatchdog", "severity": "info"}, "watchdog"),
        ({"alertname": "Watchdog", "severity": "info"}, "watchdog"),  # the former name
        ({"alertname": "SomebodyElses"}, "default"),
        ({"alertname": "GpuOfSomebodyElse"}, "default"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['alertname']}-{value.get('severity', 'none')}",
)
def test_severity_decides(labels: Labels, receiver: str, tmp_path: Path) -> None:
    assert_notifies(bundled(), labels, receiver, tmp_path)


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        pytest.param(on_run("TrainingInputBound"), "vision", id="its-run"),
        pytest.param(on_run("TrainingStalled"), "vision", id="its-run-gravely"),
        pytest.param(on_run("TrainingInputBound", severity="info"), "none", id="mere-context"),
        pytest.param(on_run("TrainingInputBound", namespace="language"), "ticket", id="the-run-of-others"),
        pytest.param(on_run("TrainingInputBound", namespace=""), "ticket", id="a-run-without-an-owner"),
        pytest.param(on_gpu("GpuLost", **RUN), "vision,page", id="the-hardware-under-its-run"),
        pytest.param(on_gpu("GpuLost"), "page", id="hardware-that-it-does-not-use"),
        pytest.param(on_gpu("GpuIdleAllocated", namespace="vision"), "vision,ticket", id="a-gpu-that-it-holds"),
        pytest.param(on_gpu("GpuUnderused", namespace="language"), "ticket", id="a-gpu-that-others-hold"),
        pytest.param(on_node(DOWN, **RUN), "vision,page", id="a-dead-node-under-its-run"),
        pytest.param(on_node("HostSwapping"), "ticket", id="a-host"),
    ],
)
def test_the_example_routes_a_namespace_to_its_team(labels: Labels, receivers: str, tmp_path: Path) -> None:
    assert_notifies(with_examples(), labels, receivers, tmp_path)


@pytest.mark.parametrize(
    ("user", "receiver"), [("ada", "vision"), ("grace", "vision"), ("adam", "ticket"), ("", "ticket")]
)
def test_the_example_routes_users_to_their_team(user: str, receiver: str, tmp_path: Path) -> None:
    configuration = with_examples()
    text = (ALERTS / "alertmanager.yml").read_text(encoding="utf-8")
    by_user = 'user =~ "ada|grace"'
    assert f"'{by_user}'" in text
    for route in configuration["route"]["routes"]:
        route["matchers"] = [by_user if each == 'namespace = "vision"' else each for each in route["matchers"]]
    assert_notifies(configuration, on_run("TrainingInputBound", namespace="", user=user), receiver, tmp_path)


@pytest.mark.parametrize("name", ["GpuIdleAllocated", "GpuUnderused", "GpuSharedUnexpectedly"])
def test_every_owner_of_a_shared_gpu_is_notified(name: str, tmp_path: Path) -> None:
    configuration = with_examples()
    (route,) = [each for each in configuration["route"]["routes"] if each["matchers"] == ['namespace = "vision"']]
    other = {**route, "matchers": ['user =~ "ada|grace"'], "receiver": "slurm"}
    configuration["route"]["routes"].insert(0, other)
    configuration["receivers"].append({"name": "slurm"})
    webhook = Webhook()
    posts = {"webhook_configs": [{"url": webhook.url, "send_resolved": True}]}
    notified: dict[str, set[tuple[str, str]]] = {"vision": set(), "slurm": set(), "ticket": set()}
    owners = {"vision": ("vision", ""), "slurm": ("", "ada"), "unnamed": ("language", "")}
    try:
        with running(hastened(notifying(configuration, dict.fromkeys(notified, posts))), tmp_path) as alertmanager:
            alertmanager.post(Alert(on_gpu(name, namespace=space, user=user)) for space, user in owners.values())
            while len(notified["ticket"]) < len(owners) or not (notified["vision"] and notified["slurm"]):
                notification = webhook.notifications.get(timeout=PATIENCE)
                notified[notification["receiver"]] |= {
                    (each["labels"].get("namespace", ""), each["labels"].get("user", ""))
                    for each in notification["alerts"]
                }
    finally:
        webhook.close()
    assert notified == {"vision": {owners["vision"]}, "slurm": {owners["slurm"]}, "ticket": set(owners.values())}
