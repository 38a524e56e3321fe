"""The exporter's HTTP application: paths, methods and responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from stallscope.node.configuration import parse_release_time
from stallscope.node.sampling.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE
from stallscope.node.web.control import Control
from stallscope.node.web.http.negotiation import accepts_gzip, accepts_openmetrics
from stallscope.node.web.http.refusals import Refusals
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import HTML, JSON, Response, problem, text
from stallscope.training.protocol.vocabulary import MAX_BYTES

HEALTHY_PATH = "/-/healthy"
READY_PATH = "/-/ready"
STATUS_PATH = "/"
REPORT_PATH = "/api/v1/report"
TRACE_PATH = "/api/v1/trace"
STACKS_PATH = "/api/v1/stacks"
STOP_PATH = "/api/v1/stop"
RELEASE_PATH = "/-/release"
RUNBOOKS_PATH = "/runbooks/"
RESUME_PATH = "/-/resume"

_READING = ("GET", "HEAD")
_VARY = "Vary: Accept, Accept-Encoding"
_GZIPPED = (_VARY, "Content-Encoding: gzip")
_PLAIN = (_VARY,)
_OVERSIZED = bytes(MAX_BYTES + 1)
"""Stands for a body too long to be taken, so that the intake counts and words the refusal."""
REFRESH_SECONDS = 10
"""Seconds after which a browser reloads the status page, unless the reader has paused it."""
_PAUSED, _EXPLAINED = "refresh=off", "why=on"
"""Choices of a reader of the status page."""
_PROXIED = frozenset(("forwarded", "x-forwarded-for"))
"""Headers of a proxy, which may run on this machine and forward requests of others."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_STATUS_HEADERS = ("Cache-Control: no-store", f"Content-Security-Policy: {_POLICY}", "Referrer-Policy: no-referrer")

_REQUESTS = {TRACE_PATH: ("trace", "traces"), STACKS_PATH: ("stacks", "stacks"), STOP_PATH: ("stop", "a stop")}
"""Kinds of requests to a run by path, and what they are for."""


class Choices(NamedTuple):
    """The choices of a reader of the status page."""

    refreshing: bool = True
    """True if browsers should reload the page."""
    explained: bool = False
    """True if the page should explain its verdicts."""

    @property
    def query(self) -> str:
        """The query of the page's address."""
        return f"?refresh={'on' if self.refreshing else 'off'}{f'&{_EXPLAINED}' if self.explained else ''}"


class Pages(Protocol):
    """Where pages come from; the sampler is one."""

    @property
    def ready(self) -> bool:
        """True if the first readings are on the page."""

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes:
        """The newest page."""


class Application:
    """Answers requests, from memory alone."""

    def __init__(
        self,
        pages: Pages,
        *,
        post_report: Callable[[bytes, str], tuple[int, bytes]],
        post_request: Callable[[str, bytes, int | None, str], tuple[int, bytes]],
        status_page: Callable[[Choices], bytes],
        release: Callable[[float | None], str],
        telemetry_path: str = "/metrics",
        allow_remote_reports: bool = False,
        signed_reports: bool = False,
        switched_off: Mapping[str, str] | None = None,
        refusals: Refusals | None = None,
        control: Control | None = None,
        runbooks: Mapping[str, bytes] | None = None,
        refresh_seconds: int = REFRESH_SECONDS,
    ) -> None:
        """Tie the paths to what answers them.

        Args:
            pages: gives the metrics.
            post_report: takes a report's body and the client's address; returns status and JSON.
            post_request: takes the kind and the body of a request to a run, the uid whose runs alone it may name, or
                None, and the sender; returns the same.
            status_page: renders the status page as a reader has chosen.
            release: releases GPUs for this many seconds, the configured time for None, acquires them again for 0;
                returns a message.
            telemetry_path: where the metrics are.
            allow_remote_reports: whether other machines may post reports and, with a user or a client certificate,
                send requests to runs and release GPUs; may be changed later.
            signed_reports: true if signatures identify the senders of reports; then other machines may post nothing
                else, since nothing else has one.
            switched_off: paths that are not answered, with the setting that would answer them; may be replaced later.
            refusals: counts refused requests.
            control: the users that may release GPUs and request traces; root and this process's by default.
            runbooks: pages by the name of their file, served below `/runbooks/`.
            refresh_seconds: interval at which browsers reload the status page.
        """
        self.allow_remote_reports = allow_remote_reports
        self.switched_off: Mapping[str, str] = switched_off or {}
        self._signed_reports = signed_reports
        self._refusals = refusals or Refusals()
        self._control = control or Control()
        self._pages = pages
        self._post_report = post_report
        self._post_request = post_request
        self._status_page = status_page
        self._refreshing_headers = (*_STATUS_HEADERS, f"Refresh: {refresh_seconds}")
        self._release = release
        self._telemetry_path = telemetry_path
        self._readable: dict[str, Callable[[Request], Response]] = {
            HEALTHY_PATH: self._answer_healthy,
            READY_PATH: self._answer_ready,
            STATUS_PATH: self._answer_status_page,
            telemetry_path: self._answer_metrics,
        }
        for name, page in (runbooks or {}).items():
            self._readable[RUNBOOKS_PATH + name] = partial(_answer_runbook, page)

    def answer(self, request: Request, client: str) -> Response:
        """Answer one request of the client with that address."""
        path = request.path
        if (setting := self.switched_off.get(path)) is not None:
            return problem(404, "off", f"{path} is switched off here; {setting} switches it on")
        if path == REPORT_PATH:
            return self._answer_report(request, client)
        if path in _REQUESTS:
            return self._answer_request(request, client, *_REQUESTS[path])
        if path in (RELEASE_PATH, RESUME_PATH):
            return self._answer_release(request, client)
        readable = self._readable.get(path)
        if readable is None:
            return text(404, f"nothing here; the metrics are at {self._telemetry_path}")
        if request.method not in _READING:
            return text(405, f"{path} can only be read", "Allow: GET, HEAD")
        if request.oversized:
            return problem(413, "too_large", f"the body is longer than {MAX_BYTES} bytes")
        return readable(request)

    def _answer_metrics(self, request: Request) -> Response:
        headers = request.headers
        openmetrics = accepts_openmetrics(headers.get("accept", ""))
        gzip = accepts_gzip(headers.get("accept-encoding", ""))
        return Response(
            200,
            OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE,
            self._pages.page(openmetrics=openmetrics, gzip=gzip),
            _GZIPPED if gzip else _PLAIN,
        )

    def _answer_healthy(self, _request: Request) -> Response:
        return text(200, "healthy")

    def _answer_ready(self, _request: Request) -> Response:
        if self._pages.ready:
            return text(200, "ready")
        return text(503, "not ready: the first round of readings is under way")

    def _answer_status_page(self, request: Request) -> Response:
        chosen = request.query.split("&")
        choices = Choices(_PAUSED not in chosen, _EXPLAINED in chosen)
        headers = self._refreshing_headers if choices.refreshing else _STATUS_HEADERS
        return Response(200, HTML, self._status_page(choices), headers)

    def _answer_report(self, request: Request, client: str) -> Response:
        if request.method != "POST":
            return problem(405, "method", "a report is sent with POST", "Allow: POST")
        if (refusal := self._refusal(request, client, "reports")) is not None:
            return problem(403, *refusal)
        status, body = self._post_report(_OVERSIZED if request.oversized else request.body, client)
        return Response(status, JSON if body else "", body)

    def _answer_request(self, request: Request, client: str, kind: str, thing: str) -> Response:
        what = f"requests for {thing}"
        if request.method != "POST":
            return problem(405, "method", f"{what} are sent with POST", "Allow: POST")
        if (refusal := self._refusal(request, client, what)) is not None:
            return problem(403, *refusal)
        controls, uid = self._controls(request, client)
        if not controls and uid is None:
            return problem(403, *self._without_control(request, client, what, uid))
        if request.oversized:
            return problem(413, "too_large", f"the body is longer than {MAX_BYTES} bytes")
        sender = client if uid is None else f"user {uid}"
        status, body = self._post_request(kind, request.body, None if controls else uid, sender)
        return Response(status, JSON, body)

    def _answer_release(self, request: Request, client: str) -> Response:
        if request.method != "POST":
            return text(405, f"{request.path} is requested with POST", "Allow: POST")
        if (refusal := self._refusal(request, client, "requests to release GPUs")) is not None:
            return text(403, refusal[1])
        controls, uid = self._controls(request, client)
        if not controls:
            return text(403, self._without_control(request, client, "requests to release GPUs", uid)[1])
        if request.path == RESUME_PATH:
            return text(202, self._release(0.0))
        name, _equals, value = request.query.partition("=")
        if not request.query:
            return text(202, self._release(None))
        if name != "for":
            return text(400, f"{RELEASE_PATH} takes for=DURATION and nothing else, such as {RELEASE_PATH}?for=2m")
        try:
            seconds = parse_release_time(value)
        except ValueError as expected:
            return text(400, f"for can't be {value!r}: expected {expected}")
        return text(202, self._release(seconds))

    def _controls(self, request: Request, client: str) -> tuple[bool, int | None]:
        """Return whether the client may control the exporter, and its user, where it is one of this machine."""
        peer = request.peer
        if request.proven or (peer is not None and peer.has_certificate):
            return True, None
        uid = peer.uid() if peer is not None and _is_direct(request, client) else None
        return uid is not None and self._control.includes(uid), uid

    def _without_control(self, request: Request, client: str, what: str, uid: int | None) -> tuple[str, str]:
        """Count a client that may not control the exporter; returns the reason's word and a sentence."""
        if _is_direct(request, client):
            why = f"{what} are taken from root, this exporter's user and the members of --web.control-group"
        else:
            why = f"{what} through a proxy or from another machine need a user or a client certificate of "
            why += "--web.config.file"
        self._refusals.count("forbidden", client, why)
        return "not_permitted", why if uid is None else f"{why}; user {uid} is not one of them"

    def _refusal(self, request: Request, client: str, what: str) -> tuple[str, str] | None:
        """Why this client may not change anything: the reason's word and a sentence; None where it may."""
        refusal = None
        if not _is_direct(request, client):
            whence = "this one came through a proxy" if is_loopback(client) else "this came from another"
            sentence = f"{what} are taken from this machine alone, and {whence}"
            if not self.allow_remote_reports:
                refusal = "remote", f"{sentence}; start the exporter with --web.allow-remote-reports to take them"
            elif self._signed_reports and request.path != REPORT_PATH:
                refusal = "remote", f"{sentence}; with --report.token-file nothing but signed reports comes from others"
        if "origin" in request.headers:
            # Any web page could post to this machine's own address; only browsers send this header.
            refusal = "browser", f"{what} are not taken from web pages"
        if refusal is not None:
            self._refusals.count("forbidden", client, refusal[1])
        return refusal


def _answer_runbook(page: bytes, _request: Request) -> Response:
    return Response(200, HTML, page, (f"Content-Security-Policy: {_POLICY}", "Cache-Control: max-age=3600"))


def _is_direct(request: Request, client: str) -> bool:
    """Return True for a request that a process of this machine has sent, and no proxy has forwarded."""
    return is_loopback(client) and _PROXIED.isdisjoint(request.headers)


def is_loopback(client: str) -> bool:
    """Return True if a socket's peer address is this machine's own."""
    return client == "::1" or client.removeprefix("::ffff:").startswith("127.")
