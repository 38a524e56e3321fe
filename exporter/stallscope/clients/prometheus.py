"""Questions to Prometheus over its HTTP API, with every way in which it may fail told in one line.

A server that is slow, absent or no Prometheus at all costs the caller so many seconds and so many bytes, never more.
"""

from __future__ import annotations

import json
import re
import ssl
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from math import ceil, isnan
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import requests

from stallscope.clients.client_certificate import ClientCertificate, tls_trouble
from stallscope.clients.http_session import HttpSession, TooLongError
from stallscope.common.formatting import readable, without_password
from stallscope.common.version import __version__

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 16 << 20
_SHOWN = 200
"""Characters that are shown of what a server said."""
_MOST_WARNINGS = 8
"""That are kept: of a store that is down, each question says so in words of its own."""
_NONSENSE = "its answer is none that Prometheus gives; see what listens at that address"
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_TOO_LARGE = re.compile(r"too many|too large|too long|exceed|limit|maximum|timed out|max[A-Z]", re.ASCII)
"""In the words of servers that would answer a smaller question: Prometheus, Thanos, Mimir and VictoriaMetrics."""
_TOO_LARGE_STATUSES = frozenset({408, 413, 504})
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})
_PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})

_Answer = TypeVar("_Answer")


class PrometheusError(Exception):
    """Prometheus did not answer a question; the message is one line with what was wrong, where, and what to do."""

    def __init__(
        self, message: str, *, passing: bool = False, too_large: bool = False, unreachable: bool = False
    ) -> None:
        """Say what was wrong, and what may help.

        Args:
            message: one line.
            passing: the same question may be answered later.
            too_large: a smaller question may be answered: of less time, or fewer series.
            unreachable: nothing listens at the address; another one may be meant.
        """
        super().__init__(message)
        self.passing = passing
        self.too_large = too_large
        self.unreachable = unreachable


class _Unusable(requests.RequestException):
    """An answer came that can't be used; in words."""


class Series(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float
    """As Prometheus has it: may be NaN or infinite."""


class RangeSeries(NamedTuple):
    """One series over time, 16 bytes a sample; `numpy.frombuffer` takes both arrays as they are."""

    labels: Mapping[str, str]
    times: array[float]
    """Unix seconds, ascending; where the series has no sample there is no time."""
    values: array[float]
    """As many; as Prometheus has them: may be NaN or infinite."""


class Prometheus:
    """One server. For one thread at a time."""

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
            url: where it answers, with its path prefix, if any; a user and a password in it are sent.
            timeout: seconds that one question may take altogether.
            max_bytes: longest answer that is read.
            certificate: is shown to it, where it wants one.
        """
        self.name = without_password(url).rstrip("/")
        self._api = url.rstrip("/") + "/api/v1/"
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._warnings: dict[str, None] = {}
        self._certificate = certificate
        self._http = HttpSession()
        session = self._http.session
        session.cert = certificate
        session.headers["User-Agent"] = f"stallscope/{__version__}"
        if urlsplit(url).hostname in _HERE:
            session.headers["Accept-Encoding"] = "identity"  # to pack an answer takes longer than to hand it over

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The series that an expression has at a moment.

        Args:
            expression: of PromQL.
            at: Unix time; the server's now where left out.

        Raises:
            PrometheusError: it gave no such answer.
        """
        return self._asked("query", {"query": expression, **_moment("time", at)}, _vector)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """What an expression was from one moment to another. See `ranges` for more than a server answers at once.

        Args:
            expression: of PromQL.
            start: Unix time of the first moment.
            end: Unix time that no moment exceeds.
            step: seconds from one moment to the next.

        Raises:
            PrometheusError: it gave no such answer.
        """
        form = {"query": expression, **_moment("start", start), **_moment("end", end), "step": f"{step:.3f}"}
        return self._asked("query_range", form, _matrix)

    def samples(self, selector: str, start: float, end: float) -> list[RangeSeries]:
        """The samples of series as they were scraped, with the times of their scrapes; none that is NaN.

        Args:
            selector: of PromQL, without a range: `stallscope_gpu_up{instance="a"}`.
            start: Unix time after which they lie.
            end: Unix time of the last that counts.

        Raises:
            PrometheusError: it gave no such answer.
        """
        milliseconds = max(1, round((end - start) * 1000))
        form = {"query": f"{selector}[{milliseconds}ms]", **_moment("time", end)}
        found = (_numbers(_after(start, each)) for each in self._asked("query", form, _matrix))
        return [each for each in found if each.times]

    def label_values(
        self, label: str, selector: str, start: float | None = None, end: float | None = None
    ) -> list[str]:
        """The values that a label has in a selector's series. They come from an index: quick, to the hour or the day.

        Args:
            label: its name.
            selector: of PromQL: `stallscope_training_rank_info{run="a"}`.
            start: Unix time; as far back as the server remembers where left out.
            end: Unix time; the server's now where left out.

        Raises:
            PrometheusError: it gave no such answer.
        """
        parameters = {"match[]": selector, **_moment("start", start), **_moment("end", end)}
        return self._asked(f"label/{quote(label)}/values", parameters, _words, method="GET")

    def now(self) -> float:
        """The server's clock, in Unix seconds: what it has is dated by it, however wrong the clock here is.

        Raises:
            PrometheusError: it gave no such answer.
        """
        found = self.query("vector(time())")
        if not found:
            raise PrometheusError(f"{self.name}: {_NONSENSE}")
        return found[0].value

    def get(self, path: str) -> Any:
        """What another part of its API tells: `rules`, `targets`, `status/config`; not every server has them.

        Raises:
            PrometheusError: it gave no such answer.
        """
        return self._asked(path, {}, lambda data: data, method="GET")

    def take_warnings(self) -> list[str]:
        """What the server said beside its answers since it was asked this last: as a rule, that they are partial."""
        taken = list(self._warnings)
        self._warnings = {}
        return taken

    def take_notes(self) -> list[str]:
        """The same as notes that stand by themselves, with the server's name."""
        return [f"{self.name} warns: {warning}" for warning in self.take_warnings()]

    def close(self) -> None:
        """Let the connection go."""
        self._http.close()

    def _asked(
        self, path: str, form: Mapping[str, str], read: Callable[[Any], _Answer], *, method: str = "POST"
    ) -> _Answer:
        """Ask, and make of the answer's data what is wanted."""
        if method == "POST":
            form = {**form, "timeout": f"{ceil(self._timeout)}s"}  # whose durations know no fractions
        try:
            status, body = self._answer(method, path, form)
        except OSError as problem:  # the library's own errors, and others where a file of certificates can't be read
            raise PrometheusError(f"{self.name}: {self._reason(problem)}", **_remedies(problem)) from None
        document = _document(body)
        if status != requests.codes.ok:
            words = _refusal(status, document)
            # "Too many requests" are not made fewer by asking for halves.
            large = status in _TOO_LARGE_STATUSES or (
                status != requests.codes.too_many_requests and _TOO_LARGE.search(words) is not None
            )
            passing = status in _PASSING_STATUSES
            raise PrometheusError(f"{self.name}: {words}", passing=passing, too_large=large)
        try:
            if document["status"] != "success":
                raise ValueError
            answer = read(document["data"])
        except (LookupError, TypeError, ValueError):
            raise PrometheusError(f"{self.name}: {_NONSENSE}") from None
        for warning in _warned(document):
            if len(self._warnings) < _MOST_WARNINGS:
                self._warnings[warning] = None
        return answer

    def _answer(self, method: str, path: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Ask with POST where it is taken, since names of runs may make a question longer than an address may be."""
        answer = self._http.request(
            method,
            self._api + path,
            timeout=self._timeout,
            max_bytes=self._max_bytes,
            data=form if method == "POST" else None,
            params=form if method == "GET" else None,
        )
        if answer.status in _REDIRECTIONS and "Location" in answer.headers:
            target = readable(without_password(answer.headers["Location"]), _SHOWN)
            raise _Unusable(f"it sends the question on to {target}; use that address")
        return answer.status, answer.body

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
            return f"it can't be asked: {problem}"
        return "it broke off the connection, or is no web server"


def _moment(name: str, moment: float | None) -> dict[str, str]:
    return {} if moment is None else {name: f"{moment:.3f}"}


def _document(body: bytes) -> Any:
    try:
        return json.loads(body, object_hook=_compact)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _compact(found: dict[str, Any]) -> Any:
    """Keep a series' samples as two arrays from the moment that it is read: as lists they are ten times as large."""
    samples = found.get("values")
    if not isinstance(samples, list):
        return found
    times = array("d", [moment for moment, _ in samples])
    return RangeSeries(found["metric"], times, array("d", [float(value) for _, value in samples]))


def _refusal(status: int, document: Any) -> str:
    said = document.get("error") if isinstance(document, dict) else None
    if isinstance(said, str):
        return f"it refuses the question: {readable(said, _SHOWN)}"
    if status in (requests.codes.unauthorized, requests.codes.forbidden):
        return f"it wants another user or password (HTTP {status})"
    if status == requests.codes.not_found:
        return "it has no query interface there (HTTP 404); see address and path prefix"
    return f"it answers with HTTP {status}"


def _warned(document: Mapping[str, Any]) -> list[str]:
    """What stands beside an answer; VictoriaMetrics has no words for it."""
    said = document.get("warnings")
    # Some versions tell hints at the question itself among them.
    words = [each for each in said if isinstance(each, str)] if isinstance(said, list) else []
    told = [readable(each, _SHOWN) for each in words if not each.startswith("PromQL info")]
    return [*told, *(["not all of its stores answered"] if document.get("isPartial") is True else [])]


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


def _words(data: Any) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise TypeError
    return data


def _after(start: float, series: RangeSeries) -> RangeSeries:
    """The series without what lies at its start: some servers count that in, and pieces would overlap."""
    if not series.times or series.times[0] > start:
        return series
    first = bisect_right(series.times, start)
    return RangeSeries(series.labels, series.times[first:], series.values[first:])


def _numbers(series: RangeSeries) -> RangeSeries:
    """The series without what is no number: some servers show the mark at a series' end like a sample."""
    if not any(map(isnan, series.values)):
        return series
    kept = [(moment, value) for moment, value in zip(series.times, series.values, strict=True) if not isnan(value)]
    times, values = (array("d", each) for each in zip(*kept, strict=True)) if kept else (array("d"), array("d"))
    return RangeSeries(series.labels, times, values)


def _remedies(problem: Exception) -> dict[str, bool]:
    """What may help against a question that got no answer."""
    slow = isinstance(problem, requests.Timeout)
    return {
        "too_large": slow or isinstance(problem, TooLongError),
        "passing": isinstance(problem, requests.RequestException)
        and not isinstance(problem, (_Unusable, TooLongError, requests.exceptions.SSLError, ValueError)),
        "unreachable": isinstance(problem, requests.ConnectionError)
        and not isinstance(problem, requests.exceptions.SSLError),
    }


def _tls_error(problem: BaseException) -> ssl.SSLError | None:
    """What TLS broke on, which the libraries wrap several times; None where it did not."""
    inner: object = problem
    while isinstance(inner, BaseException) and not isinstance(inner, ssl.SSLError):
        inner = getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)
    return inner if isinstance(inner, ssl.SSLError) else None
