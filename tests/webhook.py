"""A web server that takes what Alertmanager, or a chat service's client, posts."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
                self.wfile.write(b"ok")  # as Slack answers: Alertmanager takes anything else for a refusal

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next_alert(self, name: str, seconds: float) -> tuple[Notification, Notification]:
        """Return the first notification of the alert, and the alert in it."""
        while True:
            notification = self.notifications.get(timeout=seconds)
            for alert in notification["alerts"]:
                if alert["labels"]["alertname"] == name:
                    return notification, alert
