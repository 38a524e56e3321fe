"""Exporters for tests, and servers that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator

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
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.02)

        def serve() -> None:
            held = []
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with contextlib.suppress(OSError):
                    connection.recv(65_536)
                    for piece in pieces:
                        connection.sendall(piece)
                if then_close:
                    connection.close()
                else:
                    held.append(connection)
            for connection in held:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
