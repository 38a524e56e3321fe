"""A client for Prometheus's HTTP API; every failure is described in one line.

A slow, absent or broken server costs the caller a limited time and a limited number of bytes.
"""

from __future__ import annotations

import json
import re
import ssl
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from math import ceil, isfinite, isnan
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import requests

from stallscope.common.address import is_this_machine
from stallscope.common.formatting import readable, without_password
from stallscope.common.version import __version__
from stallscope.model.clients.client_certificate import ClientCertificate, tls_trouble
from stallscope.model.clients.http_session import HttpSession, TooLongError

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 16 << 20
_SHOWN = 200
"""Characters of a server's text that are shown."""
_MAX_WARNINGS = 8
"""While a store is down, the warning of each query is worded differently."""
_INVALID_RESPONSE = "not a Prometheus response; check what listens at that address"
_TOO_LARGE = re.compile(r"too many|too large|too long|exceed|limit|maximum|timed out|max[A-Z]", re.ASCII)
"""How Prometheus, Thanos, Mimir and VictoriaMetrics word an error that a smaller query avoids."""
_TOO_LARGE_STATUSES = frozenset({408, 413, 504})
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})
_PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})

_Answer = TypeVar("_Answer")


class PrometheusError(Exception):
    """A query failed; the message is one line with the problem, the server and what to do."""

    def __init__(
        self,
        message: str,
        *,
        passing: bool = False,
        too_large: bool = False,
        unreachable: bool = False,
        status: int | None = None,
    ) -> None:
        """Describe the problem and what may help.

        Args:
            message: one line.
            passing: the same query may succeed later.
            too_large: a query for less time or fewer series may succeed.
            unreachable: nothing listens at the address.
            status: HTTP status of an error response.
        """
        super().__init__(message)
        self.passing = passing
        self.too_large = too_large
        self.unreachable = unreachable
        self.status = status


class _Unusable(requests.RequestException):
    """A response is unusable; the message says why."""


class Series(NamedTuple):
    """One series of an instant query."""

    labels: Mapping[str, str]
    value: float
    """May be NaN or infinite."""


class RangeSeries(NamedTuple):
    """One series over time, 16 bytes a sample; `numpy.frombuffer` takes both arrays without a copy."""

    labels: Mapping[str, str]
    times: array[float]
    """Unix seconds, ascending; only the times that have a sample."""
    values: array[float]
    """One for each time; may be NaN or infinite."""


class Prometheus:
    """One server. Use it in one thread at a time."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_BYTES,
        certificate: ClientCertificate | None = None,
        api: str = "/api/v1/",
    ) -> None:
        """Store the address; nothing is requested yet.

        Args:
            url: address with an optional path prefix. A user and password in it are sent.
            timeout: time limit of one query in seconds.
            max_bytes: limit of a response's size.
            certificate: sent if the server requires one.
            api: path of the API.
        """
        self.name = without_password(url).rstrip("/")
        self._api = url.rstrip("/") + api
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._warnings: dict[str, None] = {}
        self._certificate = certificate
        self._http = HttpSession()
        session = self._http.session
        session.cert = certificate
        session.headers["User-Agent"] = f"stallscope/{__version__}"
        if is_this_machine(urlsplit(url).hostname or ""):
            session.headers["Accept-Encoding"] = "identity"  # on this machine, compression costs more than it saves

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Evaluate an expression at one time.

        Args:
            expression: PromQL.
            at: Unix time; by default the server's current time.

        Raises:
            PrometheusError: there is no valid response.
        """
        return self._request("query", {"query": expression, **_time_parameter("time", at)}, _vector)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Evaluate an expression over a range; `ranges` handles more than a server returns at once.

        Args:
            expression: PromQL.
            start: first Unix time.
            end: Unix time that no evaluation exceeds.
            step: seconds between two evaluations.

        Raises:
            PrometheusError: there is no valid response.
        """
        times = {**_time_parameter("start", start), **_time_parameter("end", end)}
        return self._request("query_range", {"query": expression, **times, "step": f"{step:.3f}"}, _matrix)

    def samples(self, selector: str, start: float, end: float) -> list[RangeSeries]:
        """Return the raw samples of series with their scrape times, without NaN.

        Args:
            selector: a PromQL selector without a range, such as `stallscope_gpu_up{instance="a"}`.
            start: Unix time; exclusive.
            end: Unix time; inclusive.

        Raises:
            PrometheusError: there is no valid response.
        """
        milliseconds = max(1, round((end - start) * 1000))
        form = {"query": f"{selector}[{milliseconds}ms]", **_time_parameter("time", end)}
        found = (_without_nan(_after(start, each)) for each in self._request("query", form, _matrix))
        return [each for each in found if each.times]

    def label_values(
        self, label: str, selector: str, start: float | None = None, end: float | None = None
    ) -> list[str]:
        """Return the values of a label in the selected series. Prometheus's index is fast, but coarse: hours or a day.

        Args:
            label: name of the label.
            selector: a PromQL selector such as `stallscope_training_rank_info{run="a"}`.
            start: Unix time; by default the server's oldest data.
            end: Unix time; by default the server's current time.

        Raises:
            PrometheusError: there is no valid response.
        """
        times = {**_time_parameter("start", start), **_time_parameter("end", end)}
        return self._request(f"label/{quote(label)}/values", {"match[]": selector, **times}, _strings, method="GET")

    def now(self) -> float:
        """Return the server's Unix time, which dates its data however wrong the local clock is.

        Raises:
            PrometheusError: there is no valid response.
        """
        found = self.query("vector(time())")
        if not found or not isfinite(found[0].value):
            raise PrometheusError(f"{self.name}: {_INVALID_RESPONSE}")
        return found[0].value

    def get(self, path: str) -> Any:
        """Return another part of the API, such as `rules`, `targets` or `status/config`; not every server has them.

        Raises:
            PrometheusError: there is no valid response.
        """
        return self._request(path, {}, lambda data: data, method="GET")

    def document(self, path: str, parameters: Mapping[str, str]) -> Any:
        """Return the JSON document at a path of the API, without Prometheus's envelope.

        Raises:
            PrometheusError: there is no response, or it is an error.
        """
        return self._document("GET", path, parameters)

    def take_warnings(self) -> list[str]:
        """Return the server's warnings since the last call; most say that a response is partial."""
        taken = list(self._warnings)
        self._warnings = {}
        return taken

    def take_notes(self) -> list[str]:
        """Return the warnings as notes that name the server."""
        return [f"{self.name} warns: {warning}" for warning in self.take_warnings()]

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _request(
        self, path: str, form: Mapping[str, str], read: Callable[[Any], _Answer], *, method: str = "POST"
    ) -> _Answer:
        """Send a request and convert the data of the response."""
        if method == "POST":
            form = {**form, "timeout": f"{ceil(self._timeout)}s"}  # Prometheus's durations have no fractions
        document = self._document(method, path, form)
        try:
            if document["status"] != "success":
                raise ValueError
            answer = read(document["data"])
        except (LookupError, TypeError, ValueError):
            raise PrometheusError(f"{self.name}: {_INVALID_RESPONSE}") from None
        for warning in _warnings(document):
            if len(self._warnings) < _MAX_WARNINGS:
                self._warnings[warning] = None
        return answer

    def _document(self, method: str, path: str, form: Mapping[str, str]) -> Any:
        try:
            status, body = self._send(method, path, form)
        except OSError as problem:  # requests' own errors, and unreadable certificate files
            raise PrometheusError(f"{self.name}: {self._reason(problem)}", **_remedies(problem)) from None
        document = _document(body)
        if status != requests.codes.ok:
            words = _refusal(status, document)
            # Splitting a query does not help against "too many requests".
            large = status in _TOO_LARGE_STATUSES or (
                status != requests.codes.too_many_requests and _TOO_LARGE.search(words) is not None
            )
            passing = status in _PASSING_STATUSES
            raise PrometheusError(f"{self.name}: {words}", passing=passing, too_large=large, status=status)
        return document

    def _send(self, method: str, path: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a query by POST where possible, since names of runs may exceed the length limit of an address."""
        response = self._http.request(
            method,
            self._api + path,
            timeout=self._timeout,
            max_bytes=self._max_bytes,
            data=form if method == "POST" else None,
            params=form if method == "GET" else None,
        )
        if response.status in _REDIRECTIONS and "Location" in response.headers:
            target = readable(without_password(response.headers["Location"]), _SHOWN)
            raise _Unusable(f"it redirects to {target}; use that address")
        return response.status, response.body

    def _reason(self, problem: Exception) -> str:
        if isinstance(problem, (_Unusable, TooLongError)):
            return str(problem)
        if isinstance(problem, requests.Timeout):
            return f"no answer within {self._timeout:g} s"
        tls = _tls_error(problem)
        if tls is not None:
            return tls_trouble(tls, self._certificate, "REQUESTS_CA_BUNDLE")
        deeper: BaseException | None = problem
        while deeper is not None:
            if isinstance(deeper, OSError) and deeper.strerror:
                return f"it can't be reached: {deeper.strerror}"
            deeper = deeper.__context__
        if not isinstance(problem, requests.RequestException):
            return f"request failed: {problem}"
        return "it closed the connection without an HTTP response"


def _time_parameter(name: str, moment: float | None) -> dict[str, str]:
    return {} if moment is None else {name: f"{moment:.3f}"}


def _document(body: bytes) -> Any:
    try:
        return json.loads(body, object_hook=_compact)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _compact(found: dict[str, Any]) -> Any:
    """Store a series' samples as two arrays during parsing: lists take ten times the memory."""
    samples = found.get("values")
    if not isinstance(samples, list):
        return found
    times = array("d", [moment for moment, _ in samples])
    return RangeSeries(found["metric"], times, array("d", [float(value) for _, value in samples]))


def _refusal(status: int, document: Any) -> str:
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, str):
        return f"query rejected: {readable(error, _SHOWN)}"
    if status in (requests.codes.unauthorized, requests.codes.forbidden):
        return f"user or password rejected (HTTP {status})"
    if status == requests.codes.not_found:
        return "no query API at this address (HTTP 404); check address and path prefix"
    return f"unexpected HTTP status {status}"


def _warnings(document: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a response; VictoriaMetrics has a flag instead."""
    found = document.get("warnings")
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    # Some versions include hints about the query itself.
    warnings = [readable(each, _SHOWN) for each in texts if not each.startswith("PromQL info")]
    return [*warnings, *(["not all of its stores responded"] if document.get("isPartial") is True else [])]


def _vector(data: Any) -> list[Series]:
    if data["resultType"] != "vector":
        raise ValueError
    return [Series(_labels(each["metric"]), float(each["value"][1])) for each in data["result"]]


def _matrix(data: Any) -> list[RangeSeries]:
    if data["resultType"] != "matrix":
        raise ValueError
    for each in data["result"]:
        if not isinstance(each, RangeSeries):
            raise TypeError
        _labels(each.labels)
    return list(data["result"])


def _labels(found: Any) -> Mapping[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise TypeError
    return found


def _strings(data: Any) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise TypeError
    return data


def _after(start: float, series: RangeSeries) -> RangeSeries:
    """Drop a sample at the start time: some servers include it, and adjacent ranges would overlap."""
    if not series.times or series.times[0] > start:
        return series
    first = bisect_right(series.times, start)
    return RangeSeries(series.labels, series.times[first:], series.values[first:])


def _without_nan(series: RangeSeries) -> RangeSeries:
    """Drop NaN samples: some servers return the staleness marker as a sample."""
    if not any(map(isnan, series.values)):
        return series
    kept = [(moment, value) for moment, value in zip(series.times, series.values, strict=True) if not isnan(value)]
    times, values = (array("d", each) for each in zip(*kept, strict=True)) if kept else (array("d"), array("d"))
    return RangeSeries(series.labels, times, values)


def _remedies(problem: Exception) -> dict[str, bool]:
    """Return what may help after a failed request, as arguments of PrometheusError."""
    slow = isinstance(problem, requests.Timeout)
    return {
        "too_large": slow or isinstance(problem, TooLongError),
        "passing": isinstance(problem, requests.RequestException)
        and not isinstance(problem, (_Unusable, TooLongError, requests.exceptions.SSLError, ValueError)),
        "unreachable": isinstance(problem, requests.ConnectionError)
        and not isinstance(problem, requests.exceptions.SSLError),
    }


def _tls_error(problem: BaseException) -> ssl.SSLError | None:
    """Return the TLS error behind an error of the libraries, which wrap it several times; None if there is none."""
    inner: object = problem
    while isinstance(inner, BaseException) and not isinstance(inner, ssl.SSLError):
        inner = getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)
    return inner if isinstance(inner, ssl.SSLError) else None
