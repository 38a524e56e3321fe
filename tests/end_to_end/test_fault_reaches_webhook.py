"""A GPU is lost in the simulated node, and the people on call are notified; then the GPU is replaced.

The whole way is real: exporter, Prometheus with the bundle's rules, Alertmanager with the bundle's routes, a webhook.
"""

from __future__ import annotations

import platform
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
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


def gpus_up(exporter: str) -> Mapping[str, int]:
    """Return how many GPUs are up (1) and how many are not (0); empty while the exporter does not respond."""
    with suppress(OSError), urllib.request.urlopen(f"http://{exporter}/metrics", timeout=30) as response:
        page = response.read().decode()
        return Counter(re.findall(r"^stallscope_gpu_up{.*} (\d)$", page, re.MULTILINE))
    return {}


def test_a_lost_gpu_reaches_the_webhook_with_its_name_and_what_to_do(tmp_path: Path, webhook: Webhook) -> None:
    flags = ("--scenario=gpu_lost", "--scenario.onset=5", f"--alertmanager.webhook={webhook.url}", "--no-training-job")
    with started(tmp_path, *flags) as up:
        notification, alert = webhook.next_alert("GpuLost", seconds=300)
        address = f"127.0.0.1:{up.ports['exporter']}"
        assert gpus_up(address).get("0") == 1
        up.process.send_signal(signal.SIGUSR1)  # as `stallscope up --end` does
        up.wait_for("the fault of scenario gpu_lost has ended", 60)
        up.wait_until(lambda: gpus_up(address) == {"1": 8}, "the GPU is not replaced", 60)
    assert notification["status"] == alert["status"] == "firing"
    labels = alert["labels"]
    assert (labels["gpu"], labels["severity"], labels["cause"]) == ("5", "critical", "lost")
    assert labels["uuid"].startswith("GPU-simulated-")
    assert (labels["run"], labels["rank"]) == ("simulated-gpu-lost", "5")
    assert labels["instance"] == f"{platform.node()}:{up.ports['exporter']}"
    advice = alert["annotations"]["description"]
    assert "Drain the node" in advice
    assert "reboot" in advice
    assert alert["annotations"]["runbook_url"].endswith("/GpuLost.md")
    named = {each["labels"].get("gpu") for each in notification["alerts"] if each["labels"]["alertname"] == "GpuLost"}
    assert named == {"5"}, "the seven others are well"
