"""A web server that takes what Alertmanager, or a chat service's client, posts."""

from __future__ import annotations

import json
import queue
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.handled import handled, reply

Notification = dict[str, Any]


class Webhook:
    """Takes what Alertmanager posts."""

    def __init__(self) -> None:
        self.notifications: queue.SimpleQueue[Notification] = queue.SimpleQueue()
        received = self.notifications

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                reply(self, b"ok")  # as Slack answers: Alertmanager takes anything else for a refusal

        self._stack = ExitStack()
        self.url = f"http://{self._stack.enter_context(handled(Handler))}/"

    def close(self) -> None:
        self._stack.close()

    def next_alert(self, name: str, seconds: float) -> tuple[Notification, Notification]:
        """Return the first notification of the alert, and the alert in it."""
        while True:
            notification = self.notifications.get(timeout=seconds)
            for alert in notification["alerts"]:
                if alert["labels"]["alertname"] == name:
                    return notification, alert
