"""A GPU is lost in the simulated node, and the people who have to act are told what to do.

The whole way is real: exporter, Prometheus with the bundle's rules, Alertmanager with the bundle's routes, a webhook.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.up_process import started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Notification = dict[str, Any]


class Webhook:
    """Takes what Alertmanager posts."""

    def __init__(self) -> None:
        self.notifications: queue.SimpleQueue[Notification] = queue.SimpleQueue()
        received = self.notifications

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next_alert(self, name: str, seconds: float) -> tuple[Notification, Notification]:
        """The notification that first tells of the alert, and the alert in it."""
        while True:
            notification = self.notifications.get(timeout=seconds)
            for alert in notification["alerts"]:
                if alert["labels"]["alertname"] == name:
                    return notification, alert


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    receiver = Webhook()
    yield receiver
    receiver.close()


def test_a_lost_gpu_reaches_the_webhook_with_its_name_and_what_to_do(tmp_path: Path, webhook: Webhook) -> None:
    flags = ("--scenario=gpu_lost", "--scenario.onset=5", f"--alertmanager.webhook={webhook.url}", "--no-training-job")
    with started(tmp_path, *flags) as up:
        notification, alert = webhook.next_alert("GpuLost", seconds=120)
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
