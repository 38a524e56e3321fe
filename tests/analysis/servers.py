"""Servers for tests of clients: a real Prometheus with scripted rules, and servers that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import math
import re
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stallscope.model.clients.prometheus import PrometheusError, RangeSeries
from tests.free_ports import free_port
from tests.handled import handled, reply
from tests.waiting import until

Rule = tuple[str, Mapping[str, str], float]
"""Name, labels and value of a recorded series."""


@contextlib.contextmanager
def prometheus(folder: Path, rules: Sequence[Rule]) -> Iterator[str]:
    """Run a Prometheus that records these series; yield its address once it has them."""
    recorded = [{"record": name, "labels": dict(labels), "expr": f"vector({value})"} for name, labels, value in rules]
    groups = {"groups": [{"name": "recorded", "interval": "1s", "rules": recorded}]}
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
        names = "|".join({name for name, _, _ in rules})
        everything = urllib.parse.quote(f'count({{__name__=~"{names}"}}) == {len(rules)}')
        _await(f"{url}/api/v1/query?query={everything}", b'"metric":{')
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _await(url: str, wanted: bytes) -> None:
    def says() -> bool:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return wanted in reply.read()

    until(says, f"{url} does not say {wanted!r}")


@contextlib.contextmanager
def answering(
    status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[Any]]]:
    """Run a web server with a fixed response; yield its address and the list of requests."""
    seen: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            seen.append((self.path, self.headers, self.rfile.read(length)))
            reply(self, body, status=status, headers=headers)

    with handled(Handler) as address:
        yield f"http://{address}", seen


def dripping(begun: bytes, drop: bytes = b"x") -> Callable[[socket.socket, threading.Event], None]:
    """Return a handler that sends these bytes and then single bytes forever, each before a read would time out."""

    def drip(connection: socket.socket, over: threading.Event) -> None:
        if not connection.recv(65_536):
            over.wait()  # the client has given up: Python's ssl leaks a socket that is reset before its handshake
            return
        connection.sendall(begun)
        while not over.wait(0.01):
            connection.sendall(drop)

    return drip


DRIPS = {
    "nothing but the status line": dripping(b"HTTP/1.1 2"),
    "a header without end": dripping(b"HTTP/1.1 200 OK\r\nX: "),
    "headers without end": dripping(b"HTTP/1.1 200 OK\r\n", b"X-%d: y\r\n"),
    "interim answers without end": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body without end": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"),
    "a chunk without end": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n"),
    "a size of a chunk without end": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    "a refusal without end": dripping(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 99999\r\n\r\n"),
}
"""Servers that send a byte at a time, by the part of the response that never ends."""
HANDSHAKE = dripping(b"\x16\x03\x03\x40\x00", b"\x02")
"""A server that sends a TLS record a byte at a time."""


@contextlib.contextmanager
def talking(say: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Run a server whose handler may do anything with a connection until the event is set."""
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
        thread.join(60)


Request = tuple[tuple[str, ...], float, float]
"""The instances and the time range of a query."""


class LimitedServer:
    """A server with one series per instance, whose value is the time; it rejects large queries and fails as scripted.

    Args:
        instances: what it has.
        points: of a series, at most.
        samples: of an answer, at most.
        failures: with which it answers the first questions.
    """

    def __init__(
        self,
        instances: Sequence[str],
        *,
        points: float = math.inf,
        samples: float = math.inf,
        failures: Sequence[PrometheusError] = (),
    ) -> None:
        self.requested: list[Request] = []
        self.refused: list[Request] = []
        self.slept: list[float] = []
        """Record a pause instead of sleeping."""
        self._instances = instances
        self._points = points
        self._samples = samples
        self._failures = list(failures)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Return every series at each step."""
        number = math.floor((end - start) / step + 1e-9) + 1
        return self._answer(expression, start, end, [start + place * step for place in range(number)])

    def samples(self, selector: str, start: float, end: float) -> list[RangeSeries]:
        """Return a scrape every seven seconds after the start."""
        first = math.floor(start / 7) + 1
        return self._answer(selector, start, end, [7.0 * place for place in range(first, math.floor(end / 7) + 1)])

    def _answer(self, expression: str, start: float, end: float, times: Sequence[float]) -> list[RangeSeries]:
        found = re.search(r'instance=~"([^"]*)"', expression)
        assert found, expression
        wanted = tuple(name for name in found[1].split("|") if name in self._instances)
        requested = wanted, start, end
        self.requested.append(requested)
        if self._failures:
            raise self._failures.pop(0)
        if len(times) > self._points or len(times) * len(wanted) > self._samples:
            self.refused.append(requested)
            raise PrometheusError("query rejected: too many samples", too_large=True)
        return [
            RangeSeries({"instance": name}, array("d", times), array("d", [each + place for each in times]))
            for place, name in enumerate(self._instances)
            if name in wanted and times
        ]
