"""A GPU is lost in the simulated node, and the people on call are notified with the action to take.

The whole way is real: exporter, Prometheus with the bundle's rules, Alertmanager with the bundle's routes, a webhook.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.up_process import started
from tests.webhook import Webhook

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    receiver = Webhook()
    yield receiver
    receiver.close()


def test_a_lost_gpu_reaches_the_webhook_with_its_name_and_what_to_do(tmp_path: Path, webhook: Webhook) -> None:
    flags = ("--scenario=gpu_lost", "--scenario.onset=5", f"--alertmanager.webhook={webhook.url}", "--no-training-job")
    with started(tmp_path, *flags) as up:
        notification, alert = webhook.next_alert("GpuLost", seconds=300)
        instance = f"127.0.0.1:{up.ports['exporter']}"
    assert notification["status"] == alert["status"] == "firing"
    labels = alert["labels"]
    assert (labels["gpu"], labels["severity"], labels["cause"]) == ("5", "critical", "lost")
    assert labels["uuid"].startswith("GPU-simulated-")
    assert (labels["run"], labels["rank"]) == ("simulated-gpu-lost", "5")
    assert labels["instance"] == instance
    advice = alert["annotations"]["description"]
    assert "Drain the node" in advice
    assert "reboot" in advice
    assert alert["annotations"]["runbook_url"].endswith("/GpuLost.md")
    named = {each["labels"].get("gpu") for each in notification["alerts"] if each["labels"]["alertname"] == "GpuLost"}
    assert named == {"5"}, "the seven others are well"
