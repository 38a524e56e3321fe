"""Questions to Prometheus over its HTTP API, with every way in which it may fail told in one line.

A server that is slow, absent or no Prometheus at all costs the caller so many seconds and so many bytes, never more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import requests
from urllib3.exceptions import HTTPError, ReadTimeoutError

from stallscope.version import __version__

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 16 << 20
_PIECE_BYTES = 65_536
_SHOWN = 200
"""Characters that are shown of what a server said."""


class PrometheusError(Exception):
    """Prometheus did not answer a question; the message is one line with what was wrong, where, and what to do."""


class _Unusable(requests.RequestException):
    """An answer came that can't be used; in words."""


class Series(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float
    """As Prometheus has it: may be NaN or infinite."""


class Prometheus:
    """One server. For one thread at a time."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        """Take the address; nothing is asked yet.

        Args:
            url: where it answers, with its path prefix, if any; a user and a password in it are sent.
            timeout: seconds that one question may take altogether.
            max_bytes: longest answer that is read.
        """
        self.name = without_password(url)
        self._endpoint = url.rstrip("/") + "/api/v1/query"
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._session = requests.Session()
        self._session.headers["User-Agent"] = f"stallscope/{__version__}"

    def query(self, expression: str) -> list[Series]:
        """The series that an expression has now.

        Raises:
            PrometheusError: it gave no such answer.
        """
        try:
            status, body = self._post({"query": expression, "timeout": f"{self._timeout:g}s"})
        except (requests.RequestException, HTTPError) as problem:  # the latter while an answer is read
            raise PrometheusError(f"{self.name}: {_reason(problem, self._timeout)}") from None
        document = _document(body)
        if status != requests.codes.ok:
            raise PrometheusError(f"{self.name}: {_refusal(status, document)}")
        try:
            return _vector(document)
        except (LookupError, TypeError, ValueError):
            nonsense = "its answer is none that Prometheus gives; see what listens at that address"
            raise PrometheusError(f"{self.name}: {nonsense}") from None

    def close(self) -> None:
        """Let the connection go."""
        self._session.close()

    def _post(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Ask with POST, since names of runs may make a question longer than an address may be."""
        deadline = time.monotonic() + self._timeout
        with self._session.post(
            self._endpoint, data=form, timeout=self._timeout, stream=True, allow_redirects=False
        ) as response:
            body = bytearray()
            # Piece by piece as they come: the library's timeout is for each of them, not for all.
            while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
                body += piece
                if len(body) > self._max_bytes:
                    raise _Unusable(f"its answer is longer than {self._max_bytes} bytes")
                if time.monotonic() > deadline:
                    raise requests.Timeout
            if response.is_redirect:
                target = without_password(response.headers["Location"])[:_SHOWN]
                raise _Unusable(f"it sends the question on to {target}; use that address")
            return response.status_code, bytes(body)


def without_password(url: str) -> str:
    """The address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _refusal(status: int, document: Any) -> str:
    said = document.get("error") if isinstance(document, dict) else None
    if isinstance(said, str):
        return f"it refuses the question: {said[:_SHOWN]}"
    if status in (requests.codes.unauthorized, requests.codes.forbidden):
        return f"it wants another user or password (HTTP {status})"
    if status == requests.codes.not_found:
        return "it has no query interface there (HTTP 404); see address and path prefix"
    return f"it answers with HTTP {status}"


def _vector(document: Any) -> list[Series]:
    if document["status"] != "success" or document["data"]["resultType"] != "vector":
        raise ValueError
    series = [Series(each["metric"], float(each["value"][1])) for each in document["data"]["result"]]
    for labels, _value in series:
        if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
            raise TypeError
    return series


def _reason(problem: Exception, timeout: float) -> str:
    if isinstance(problem, _Unusable):
        return str(problem)
    if isinstance(problem, (requests.Timeout, ReadTimeoutError)):
        return f"no answer within {timeout:g} s"
    if isinstance(problem, requests.exceptions.SSLError):
        return "its certificate is not trusted; name its authority in REQUESTS_CA_BUNDLE"
    deeper: BaseException | None = problem
    while deeper is not None:
        if isinstance(deeper, OSError) and deeper.strerror:
            return f"it can't be reached: {deeper.strerror}"
        deeper = deeper.__context__
    return "it broke off the connection, or is no web server"
