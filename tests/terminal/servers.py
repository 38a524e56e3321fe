"""Exporters for tests, and servers that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator

from tests.analysis.servers import talking
from tests.handled import handled, reply

Answer = tuple[int, bytes]


@contextlib.contextmanager
def exporter(answer: Callable[[], Answer], headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Run a web server with keep-alive; yield its address, and path and credentials of its requests."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append(f"{self.path} {self.headers.get('Authorization', '')}".strip())
            status, body = answer()
            reply(self, body, status=status, headers=headers)

    with handled(Handler) as address:
        yield address, seen


@contextlib.contextmanager
def speaking(*pieces: bytes, then_close: bool = True) -> Iterator[str]:
    """Run a server that sends these bytes on each connection, and then closes it or stays silent."""

    def say(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65_536)
        for piece in pieces:
            connection.sendall(piece)
        if not then_close:
            over.wait()

    with talking(say) as url:
        yield url.removeprefix("http://")
