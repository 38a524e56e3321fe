"""Servers that are asked: a real Prometheus with rules that say what a test wants, and others that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.free_ports import free_port

Rule = tuple[str, Mapping[str, str], float]
"""Name, labels and value of a recorded series."""


@contextlib.contextmanager
def prometheus(folder: Path, rules: Sequence[Rule]) -> Iterator[str]:
    """A Prometheus that records these series; its address, once they are there."""
    recorded = [{"record": name, "labels": dict(labels), "expr": f"vector({value})"} for name, labels, value in rules]
    groups = {"groups": [{"name": "told", "interval": "1s", "rules": recorded}]}
    (folder / "rules.yml").write_text(yaml.safe_dump(groups))
    (folder / "prometheus.yml").write_text("rule_files: [rules.yml]\n")
    url = f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--log.level=error",
        ]
    )
    try:
        _await(f"{url}/api/v1/query?query={rules[-1][0]}", b'"metric":{')
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _await(url: str, wanted: bytes) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(url, timeout=5) as reply,
        ):
            if wanted in reply.read():
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} never said {wanted!r}")


@contextlib.contextmanager
def answering(
    status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[Any]]]:
    """A web server that answers everything alike; its address, and the requests that came."""
    seen: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            seen.append((self.path, self.headers, self.rfile.read(length)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def talking(say: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that does with a connection what it likes, until the event is set."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    say(connection, over)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
