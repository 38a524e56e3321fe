"""The exporter of a recording: its page, its status page and its verdicts as they were, second by second.

`stallscope top` reads it as it reads an exporter, and as a Prometheus that has verdicts: queries are evaluated at the
time in the recording that the page is from.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qs

from stallscope.common.address import Address
from stallscope.lab.replay.pages import Recording
from stallscope.lab.replay.verdicts import is_unix_time
from stallscope.lab.stack.ports import ADDRESS, Port
from stallscope.model.catalogue.metrics import FAMILIES, Family, MetricType
from stallscope.model.clients.exposition import labels_of
from stallscope.model.clients.prometheus import Prometheus, PrometheusError, RangeSeries, Series
from stallscope.model.view.explanation_watch import ExplanationWatch
from stallscope.model.view.observer import node_of
from stallscope.model.view.verdicts import VerdictWatch
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.sampling.sampler import CollectorStatus
from stallscope.node.web import runbooks
from stallscope.node.web.application import (
    RELEASE_PATH,
    REPORT_PATH,
    RESUME_PATH,
    STACKS_PATH,
    STOP_PATH,
    TRACE_PATH,
    Application,
)
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import Response
from stallscope.node.web.http.server import Server
from stallscope.node.web.status.exporter_state import ExporterState, SnapshotSamples
from stallscope.node.web.status.history import History
from stallscope.node.web.status.page import StatusPage

_METRICS = "/metrics"
_QUERY = "/api/v1/query"
_JSON = "application/json"
_CONTROLS = (REPORT_PATH, TRACE_PATH, STACKS_PATH, STOP_PATH, RELEASE_PATH, RESUME_PATH)
_SUMMARIES = (MetricType.HISTOGRAM, MetricType.SUMMARY)


class Playback:
    """Plays a recording in its own time from one moment to its end, again and again."""

    ready = True

    def __init__(
        self,
        recording: Recording,
        begin: float,
        seconds: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Start to play.

        Args:
            recording: an opened file without damage.
            begin: seconds since the start of the recording, before its end.
            seconds: length of the recording.
            monotonic: clock of the playback.
            now: the Unix time.
        """
        self._recording, self._begin, self._seconds = recording, begin, seconds
        self._monotonic, self._now = monotonic, now
        self._origin = monotonic()
        self._lock = threading.Lock()
        self._rewind()

    def _rewind(self) -> None:
        self._pages = self._recording.pages()
        self._values: Mapping[str, str] = {}
        self._next = self._read()
        self._shown = 0.0

    def _read(self) -> tuple[float, Mapping[str, str]] | None:
        page = next(self._pages, None)
        # The next page changes the mapping of this one.
        return page and (page.time, {} if page.error else dict(page.samples))

    @property
    def position(self) -> float:
        """Seconds since the start of the recording."""
        return self._begin + (self._monotonic() - self._origin) % max(self._seconds - self._begin, 1.0)

    def values(self) -> Mapping[str, str]:
        """Return the newest page, with Unix times as if it were from now."""
        with self._lock:
            position = self.position
            if position < self._shown:
                self._rewind()
            self._shown = position
            while self._next is not None and self._next[0] <= position:
                self._values = self._next[1]
                self._next = self._read()
            values = self._values
        shift = self._now() - position - float(self._recording.header["start"])
        return {
            series: repr(float(value) + shift) if is_unix_time(series.partition("{")[0]) else value
            for series, value in values.items()
        }

    def text(self) -> str:
        """Return the newest page in the Prometheus text format, without comments."""
        return "".join(f"{series} {value}\n" for series, value in self.values().items())

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes:  # noqa: ARG002 - no request accepts them
        """Return the newest page."""
        return self.text().encode()


def samples_of(values: Mapping[str, str]) -> tuple[Sample, ...]:
    """Return a page's values as samples of the catalogue; histograms have no buckets."""
    found: list[Sample] = []
    parts: dict[tuple[Family, tuple[str, ...]], dict[str, float]] = {}
    for series, value in values.items():
        name, _, labels = series.removesuffix("}").partition("{")
        stem, _, part = name.rpartition("_")
        if (family := FAMILIES.get(name)) is not None:
            found.append(Sample(family, _label_values(family, labels), float(value)))
        elif part in ("sum", "count") and (family := FAMILIES.get(stem)) is not None and family.type in _SUMMARIES:
            parts.setdefault((family, _label_values(family, labels)), {})[part] = float(value)
    for (family, label_values), each in parts.items():
        distribution = Distribution((), each.get("sum", 0.0), int(each.get("count", 0.0)))
        found.append(Sample(family, label_values, distribution))
    return tuple(found)


def _label_values(family: Family, labels: str) -> tuple[str, ...]:
    found = labels_of(labels)
    return tuple(found.get(name, "") for name in family.all_labels)


class RecordedExporter:
    """Answers requests from a playback."""

    def __init__(self, playback: Playback, instance: str, prometheus: Prometheus, start: float) -> None:
        """Prepare.

        Args:
            playback: the pages.
            instance: name of the recorded exporter.
            prometheus: a server with the recording and its verdicts.
            start: Unix time of the recording's start in that server.
        """
        self._playback, self._prometheus, self._start = playback, prometheus, start
        self._history = History(time.monotonic)
        self._query_lock = threading.Lock()
        self.name = prometheus.name
        self.watches = verdicts, explanations = VerdictWatch(self), ExplanationWatch(self)
        page = StatusPage(
            self._look,
            host=f"Recording of {instance}",
            telemetry_path=_METRICS,
            history=self._history,
            verdicts=verdicts,
            explanations=explanations,
        )
        self._application = Application(
            playback,
            post_report=lambda _body, _client: (404, b""),
            post_request=lambda _kind, _body, _uid, _sender: (404, b""),
            status_page=page.html,
            release=lambda _seconds: "",
            telemetry_path=_METRICS,
            switched_off=dict.fromkeys(_CONTROLS, "an exporter on a machine with GPUs"),
            runbooks=runbooks.load(),
        )

    def now(self) -> float:
        """Return the Unix time of the present moment of the playback in the server."""
        return self._start + self._playback.position

    def query(self, expression: str, at: float | None = None) -> Sequence[Series]:
        """Evaluate an expression at one time, by default at the present moment of the playback.

        Raises:
            PrometheusError: there is no valid response.
        """
        with self._query_lock:
            return self._prometheus.query(expression, self.now() if at is None else at)

    def query_range(self, expression: str, start: float, end: float, step: float) -> Sequence[RangeSeries]:
        """Evaluate an expression over a range.

        Raises:
            PrometheusError: there is no valid response.
        """
        with self._query_lock:
            return self._prometheus.query_range(expression, start, end, step)

    def answer(self, request: Request, client: str) -> Response:
        """Answer a request."""
        if request.path == _QUERY:
            return self._answer_query(request)
        # The page is plain text, whatever a client accepts.
        return self._application.answer(request._replace(headers={}), client)

    def _answer_query(self, request: Request) -> Response:
        form = parse_qs(request.body.decode("utf-8", "replace") or request.query)
        try:
            series = self.query(form.get("query", [""])[0])
        except PrometheusError as problem:
            document: dict[str, object] = {"status": "error", "errorType": "execution", "error": str(problem)}
            return Response(422, _JSON, json.dumps(document).encode())
        now = time.time()
        result = [{"metric": dict(each.labels), "value": [now, repr(each.value)]} for each in series]
        document = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return Response(200, _JSON, json.dumps(document).encode())

    def _look(self) -> ExporterState:
        samples = samples_of(self._playback.values())
        self._history.note(samples)
        node = node_of(SnapshotSamples(samples))
        statuses = tuple(
            CollectorStatus(each.name, each.up, "", None, each.last_success, int(each.failures))
            for each in node.sources
        )
        return ExporterState(at=time.time(), ready=True, samples=samples, statuses=statuses)


@contextmanager
def recorded_exporter(playback: Playback, instance: str, port: Port, prometheus: str, start: float) -> Iterator[None]:
    """Serve a playback during the block.

    Args:
        playback: the pages.
        instance: name of the recorded exporter.
        port: where to listen.
        prometheus: URL of a server with the recording and its verdicts.
        start: Unix time of the recording's start in that server.

    Raises:
        ListenError: the port is in use.
    """
    exporter = RecordedExporter(playback, instance, Prometheus(prometheus), start)
    server = Server(Address(ADDRESS, port.number), exporter.answer)
    server.start()
    for watch in exporter.watches:
        watch.start()
    try:
        yield
    finally:
        for watch in exporter.watches:
            watch.stop()
        server.stop()
