"""Requests to an exporter, with every way in which they may fail told in one line.

The standard library's client on one connection: half a millisecond a page, where requests would take three and 10 MB.
"""

from __future__ import annotations

import base64
import http.client
import re
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from stallscope.clients.client_certificate import ClientCertificate, ClientCertificateError, tls_trouble
from stallscope.clients.deadline import deadline_after, watch
from stallscope.common.formatting import without_password
from stallscope.common.version import __version__

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 64 << 20
"""Longest page that is read: ten times that of a thousand ranks."""
DEFAULT_PATH = "/metrics"
DEFAULT_PORT = 19400
_PIECE_BYTES = 262_144
_NONE: Mapping[str, str] = {}
_SHOWN = 200


class ExporterError(Exception):
    """No page came; the message is one line with what was wrong and what to do, without the address."""


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    location: str
    """Target of a redirection."""
    body: bytes


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        watch(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """Its handshake follows the connect of the class behind it."""


class ExporterClient:
    """One exporter. For one thread at a time."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_BYTES,
        certificate: ClientCertificate | None = None,
    ) -> None:
        """Take the address; nothing is asked yet.

        Args:
            url: `HOST`, `HOST:PORT` or a whole address; a user and a password in it are sent.
            timeout: seconds that an answer may take altogether.
            max_bytes: longest answer that is read.
            certificate: is shown to it, where it wants one.

        Raises:
            ValueError: it is no such address; the message says what is.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
        except ValueError:
            sound = False
        if not sound or not re.fullmatch(r"[\x21-\x7e]+", url):
            shown = without_password(url)
            raise ValueError(f"{shown!r} is no address of an exporter; one is http://localhost:{DEFAULT_PORT}")
        self._host: str = parts.hostname or ""
        self._secure = parts.scheme == "https"
        # A port left out is the web's own only where the scheme says that this is the web.
        self._port = port or (443 if self._secure else 80 if "://" in url else DEFAULT_PORT)
        self._path = (parts.path if parts.path not in ("", "/") else DEFAULT_PATH) + (
            f"?{parts.query}" if parts.query else ""
        )
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.name = f"{host}:{self._port}" + ("" if self._path == DEFAULT_PATH else self._path)
        self.timeout = timeout
        self._max_bytes = max_bytes
        self._certificate = certificate
        self._connection: http.client.HTTPConnection | None = None
        # The plain text is the cheapest to write and to read, and compression costs more than a loopback's bytes.
        self._headers = {
            "Accept": "text/plain;version=0.0.4",
            "Accept-Encoding": "identity",
            "User-Agent": f"stallscope/{__version__}",
        }
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode()

    def read(self, path: str = "") -> str:
        """The page as it is now.

        Args:
            path: of another page than that of the metrics.

        Raises:
            ExporterError: there is none.
        """
        answer = self.request("GET", path or self._path)
        try:
            if answer.status != http.HTTPStatus.OK:
                raise ExporterError(_refusal(answer.status, answer.location))
            return answer.body.decode()
        except UnicodeDecodeError:
            raise ExporterError("its answer is no page of metrics; see what listens at that address") from None

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NONE) -> Answer:
        """Return the answer, whatever its status.

        Args:
            method: of HTTP.
            path: of the page.
            body: of the request.
            headers: further ones.

        Raises:
            ExporterError: there is none.
        """
        is_kept = self._connection is not None
        try:
            try:
                return self._exchange(method, path, body, headers)
            except ConnectionError:
                if not is_kept:
                    raise
                # The server had closed a connection that nobody used, as it may.
                self.close()
                return self._exchange(method, path, body, headers)
        except (OSError, http.client.HTTPException, ExporterError) as problem:
            self.close()
            raise ExporterError(self._reason(problem)) from None

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        with deadline_after(self.timeout) as deadline:
            try:
                if self._connection is None:
                    self._connection = self._connected()
                watch(self._connection.sock)
                self._connection.request(method, path, body, headers={**self._headers, **headers})
                answer = self._answer(self._connection)
            except (OSError, http.client.HTTPException, ExporterError):
                if deadline.is_over:
                    raise TimeoutError from None
                raise
            if deadline.is_over:  # whatever seemed to end there was cut off
                raise TimeoutError
            return answer

    def _connected(self) -> http.client.HTTPConnection:
        if not self._secure:
            return _Connection(self._host, self._port, timeout=self.timeout)
        try:
            context = None if self._certificate is None else self._certificate.context()
        except ClientCertificateError as problem:
            raise ExporterError(str(problem)) from None
        return _SecureConnection(self._host, self._port, timeout=self.timeout, context=context)

    def _answer(self, connection: http.client.HTTPConnection) -> Answer:
        with connection.getresponse() as response:
            body = bytearray()
            while piece := response.read1(_PIECE_BYTES):
                body += piece
                if len(body) > self._max_bytes:
                    raise ExporterError(f"its page is longer than {self._max_bytes} bytes")
            if response.length:
                raise ExporterError("it broke off in the middle of its page")
            return Answer(response.status, response.headers.get("Location", ""), bytes(body))

    def _reason(self, problem: Exception) -> str:
        if isinstance(problem, ExporterError):
            return str(problem)
        if isinstance(problem, TimeoutError):
            return f"no answer within {self.timeout:g} s"
        if isinstance(problem, ssl.SSLError):
            return tls_trouble(problem, self._certificate, "SSL_CERT_FILE")
        if isinstance(problem, socket.gaierror):
            return f"there is no machine of that name: {problem.strerror}"
        if isinstance(problem, OSError) and problem.strerror:
            hint = "; start it with `stallscope exporter`" if isinstance(problem, ConnectionRefusedError) else ""
            return f"it can't be reached: {problem.strerror}{hint}"
        return "it broke off the connection, or is no web server"


def _refusal(status: int, target: str) -> str:
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        return f"it wants another user or password (HTTP {status}): http://USER:PASSWORD@HOST:PORT"
    if 300 <= status < 400:
        return f"it sends the question on to {without_password(target)[:_SHOWN]!a}; use that address"
    if status == http.HTTPStatus.NOT_FOUND:
        return "it has no metrics there (HTTP 404); see address and path"
    return f"it answers with HTTP {status}"
