"""An API server for tests: HTTPS with a certificate of an authority of the tests, a token, and answers by path."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from stallscope.owners.kubernetes_api import ACCOUNT
from tests.handled import handled, reply
from tests.web.certificates import Authority

TOKEN = "eyJhbGciOi.of.tests"
ANSWERS = Path(__file__).parent / "kubernetes_answers"


def answer(name: str) -> Any:
    """Return a file of answers."""
    return json.loads((ANSWERS / name).read_text(encoding="utf-8"))


class ApiServer:
    """Answers with `answers`, by path without its query; 404 for others. Each request is recorded."""

    def __init__(self, root: Path) -> None:
        """Start serving, and write the files of a service account below the root."""
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[str] = []
        self.account = root / ACCOUNT
        self.account.mkdir(parents=True, exist_ok=True)
        authority = Authority(root)
        (self.account / "token").write_text(f"{TOKEN}\n")
        (self.account / "ca.crt").write_bytes(authority.certificate.read_bytes())
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                status, content = server.answers.get(self.path.partition("?")[0], (404, {"kind": "Status"}))
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status, content = 401, {"kind": "Status"}
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                reply(self, body, status=status)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.sign("server"))
        self._stack = ExitStack()
        host, _, port = self._stack.enter_context(handled(Handler, context)).partition(":")
        self.address = (host, int(port))

    def stop(self) -> None:
        """Stop serving and close the port."""
        self._stack.close()


@contextmanager
def api_server_at(root: Path) -> Iterator[ApiServer]:
    """Serve until the end of the block."""
    server = ApiServer(root)
    try:
        yield server
    finally:
        server.stop()
