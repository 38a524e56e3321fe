"""Pages of metrics from an exporter, with every way in which it may fail told in one line.

The standard library's client on one connection: half a millisecond a page, where requests would take three and 10 MB.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from urllib.parse import SplitResult, unquote, urlsplit

from stallscope.analysis.client_certificate import ClientCertificate, ClientCertificateError, tls_trouble
from stallscope.readable import without_password
from stallscope.version import __version__

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 64 << 20
"""Longest page that is read: ten times that of a thousand ranks."""
DEFAULT_PATH = "/metrics"
DEFAULT_PORT = 19400
_PIECE_BYTES = 262_144
_SHOWN = 200


class ExporterError(Exception):
    """No page came; the message is one line with what was wrong and what to do, without the address."""


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
            timeout: seconds that a page may take altogether.
            max_bytes: longest page that is read.
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
        self._headers |= login_header(parts)

    def read(self, path: str = "") -> str:
        """The page as it is now.

        Args:
            path: of another page than that of the metrics.

        Raises:
            ExporterError: there is none.
        """
        path = path or self._path
        kept = self._connection is not None
        try:
            try:
                return self._read(path)
            except ConnectionError:
                if not kept:
                    raise
                # The server had closed a connection that nobody used, as it may.
                self.close()
                return self._read(path)
        except (OSError, http.client.HTTPException, ExporterError) as problem:
            self.close()
            raise ExporterError(self._reason(problem)) from None

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self, path: str) -> str:
        deadline = time.monotonic() + self.timeout
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connected()
        connection.request("GET", path, headers=self._headers)
        # The socket's own timeout is for each piece of an answer, which may come byte by byte.
        alarm = threading.Timer(self.timeout, _shut, [connection.sock])
        alarm.daemon = True
        alarm.start()
        problem: Exception | None = None
        page = ""
        try:
            page = self._answer(connection)
        except (OSError, http.client.HTTPException, ExporterError) as found:
            problem = found
        alarm.cancel()
        if time.monotonic() >= deadline:  # whatever seemed to end there was cut off
            raise TimeoutError
        if problem is not None:
            raise problem
        return page

    def _connected(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self.timeout)
        try:
            context = None if self._certificate is None else self._certificate.context()
        except ClientCertificateError as problem:
            raise ExporterError(str(problem)) from None
        return http.client.HTTPSConnection(self._host, self._port, timeout=self.timeout, context=context)

    def _answer(self, connection: http.client.HTTPConnection) -> str:
        with connection.getresponse() as response:
            body = bytearray()
            while piece := response.read1(_PIECE_BYTES):
                body += piece
                if len(body) > self._max_bytes:
                    raise ExporterError(f"its page is longer than {self._max_bytes} bytes")
            if response.length:
                raise ExporterError("it broke off in the middle of its page")
            if response.status != http.HTTPStatus.OK:
                raise ExporterError(_refusal(response.status, response.headers.get("Location", "")))
        try:
            return body.decode()
        except UnicodeDecodeError:
            raise ExporterError("its answer is no page of metrics; see what listens at that address") from None

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


def login_header(parts: SplitResult) -> dict[str, str]:
    """Return the header of HTTP's basic authentication for the user and password of an address; empty without them."""
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Authorization": "Basic " + base64.b64encode(login).decode()}


def _shut(connection: socket.socket) -> None:
    """Let whoever reads from it come back."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _refusal(status: int, target: str) -> str:
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        return f"it wants another user or password (HTTP {status}): http://USER:PASSWORD@HOST:PORT"
    if 300 <= status < 400:
        return f"it sends the question on to {without_password(target)[:_SHOWN]!a}; use that address"
    if status == http.HTTPStatus.NOT_FOUND:
        return "it has no metrics there (HTTP 404); see address and path"
    return f"it answers with HTTP {status}"
