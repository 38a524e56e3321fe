"""A web server of a test's own, on a free port of this machine."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    """Do not wait at exit for clients on keep-alive connections."""
    request_queue_size = 128
    """The library's default of five fills up when the machine stalls; further clients then connect a second late."""

    context: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, client = super().get_request()
        if self.context is None:
            return accepted, client
        try:
            return self.context.wrap_socket(accepted, server_side=True), client
        except OSError:
            accepted.close()
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers who hang up."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def handled(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answer by that handler, without a word for each request, until the block ends; host and port.

    Args:
        handler: answers each request.
        context: with which to serve TLS instead of plain HTTP.
    """
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    with _Server(("127.0.0.1", 0), quiet) as server:
        server.context = context
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def reply(
    handler: BaseHTTPRequestHandler, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Answer one request; ignore clients that have hung up."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    with contextlib.suppress(ConnectionError):
        handler.wfile.write(body)
