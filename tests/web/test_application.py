"""Routes over a real server and a real sampler; the answers are held to the client library's parsers and promtool."""

from __future__ import annotations

import gzip
import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from stallscope.common.address import Address
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE
from stallscope.node.sampling.sampler import Sampler
from stallscope.node.web.application import Application, Choices, is_loopback
from stallscope.node.web.http.refusals import Refusals
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.server import Server
from stallscope.training.protocol.vocabulary import MAX_BYTES

PROMETHEUS_2_42 = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.42.0",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}
REPORT = {"version": 1, "run": "resnet50", "rank": 0, "session": "a1", "sequence": 1, "pid": 0, "start": 1.7e9}
REPORT |= {"sent": 1.7e9 + 5, "state": "running", "activity": "training"}


class Node:
    """Sampler, intake and server together, and a client."""

    def __init__(self) -> None:
        self.sampler = Sampler()
        self.intake = Intake(IntakeSettings(socket=None, udp=None))
        self.sampler.add_collector("reports", self.intake.collect)
        self.released: list[float | None] = []
        self.refusals = Refusals()
        self.application = Application(
            self.sampler,
            post_report=self.intake.post,
            post_request=self.intake.post_request,
            status_page=self._status_page,
            release=self._release,
            telemetry_path="/metrics",
            refusals=self.refusals,
        )
        self.server = Server(Address("127.0.0.1", 0), self.application.answer)
        self.server.start()

    def _status_page(self, choices: Choices) -> bytes:
        explained = b"explained " if choices.explained else b""
        return b"<!DOCTYPE html>" + explained + (b"refreshing" if choices.refreshing else b"paused")

    def _release(self, seconds: float | None) -> str:
        self.released.append(seconds)
        return f"released for {seconds} s"

    def request(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.address.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply, reply.read()
        finally:
            connection.close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.server.stop()


def test_without_an_accept_header_the_page_is_prometheus_text(node: Node) -> None:
    reply, body = node.request("/metrics")
    assert reply.headers["Content-Type"] == TEXT_CONTENT_TYPE
    assert reply.headers["Content-Encoding"] is None
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert "stallscope_build_info" in names


def test_prometheus_gets_gzipped_openmetrics(node: Node) -> None:
    reply, body = node.request("/metrics", headers=PROMETHEUS_2_42)
    assert reply.headers["Content-Type"] == OPENMETRICS_CONTENT_TYPE
    assert reply.headers["Content-Encoding"] == "gzip"
    assert reply.headers["Vary"] == "Accept, Accept-Encoding"
    text = gzip.decompress(body).decode()
    assert text.endswith("# EOF\n")
    families = {family.name for family in openmetrics_parser.text_string_to_metric_families(text)}
    assert "stallscope_build" in families or "stallscope_build_info" in families


@pytest.mark.parametrize("encoding", ["gzip;q=0", "identity", "br"])
def test_a_client_that_refuses_gzip_gets_none(node: Node, encoding: str) -> None:
    reply, body = node.request("/metrics", headers={"Accept-Encoding": encoding})
    assert reply.headers["Content-Encoding"] is None
    assert body.startswith(b"# HELP")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_reports_no_problem(node: Node) -> None:
    node.intake.post(json.dumps(REPORT).encode())
    node.sampler.run_round()
    _reply, body = node.request("/metrics")
    assert b'run="resnet50"' in body
    checked = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


def test_head_is_answered_like_get_without_the_body(node: Node) -> None:
    full, body = node.request("/metrics")
    head, nothing = node.request("/metrics", "HEAD")
    assert nothing == b""
    assert head.headers["Content-Length"] == str(len(body))
    assert head.headers["Content-Type"] == full.headers["Content-Type"]


def test_healthy_is_about_the_process_and_ready_about_the_first_round(node: Node) -> None:
    assert node.request("/-/healthy")[0].status == 200
    assert node.request("/-/ready")[0].status == 503
    node.sampler.run_round()
    assert node.request("/-/ready")[0].status == 200
    assert node.request("/-/ready", "HEAD")[0].status == 200


def test_the_status_page_may_run_nothing_load_nothing_and_send_nothing(node: Node) -> None:
    reply, body = node.request("/")
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert body.startswith(b"<!DOCTYPE html>")
    policy = reply.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "form-action 'none'"} <= set(policy)
    assert not any(rule.startswith("script-src") for rule in policy)


@pytest.mark.parametrize("query", ["", "?", "?refresh=on", "?other=1", "?refresh=offline"])
def test_a_browser_reloads_the_status_page(node: Node, query: str) -> None:
    reply, body = node.request(f"/{query}")
    assert reply.headers["Refresh"] == "10"
    assert body.endswith(b"refreshing")


@pytest.mark.parametrize("query", ["?refresh=off", "?other=1&refresh=off"])
def test_a_reader_who_paused_the_status_page_is_left_alone(node: Node, query: str) -> None:
    reply, body = node.request(f"/{query}")
    assert reply.headers["Refresh"] is None
    assert body.endswith(b"paused")


@pytest.mark.parametrize(("query", "expected"), [("?why=on&refresh=off", True), ("?why=on", True), ("?why=off", False)])
def test_a_reader_may_have_the_verdicts_explained(node: Node, query: str, expected: bool) -> None:
    assert (b"explained" in node.request(f"/{query}")[1]) is expected


@pytest.mark.parametrize("path", ["/nope", "/metrics/", "/-/", "/api/v1/reports", "/%2e%2e/etc/passwd"])
def test_an_unknown_path_is_a_404_that_names_the_right_one(node: Node, path: str) -> None:
    reply, body = node.request(path)
    assert reply.status == 404
    assert b"/metrics" in body


@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy", "/-/ready"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_what_is_read_only_refuses_other_methods(node: Node, path: str, method: str) -> None:
    reply, _body = node.request(path, method, body=b"x")
    assert reply.status == 405
    assert reply.headers["Allow"] == "GET, HEAD"


def test_a_query_changes_nothing(node: Node) -> None:
    assert node.request("/metrics?name[]=x")[0].status == 200


def test_a_report_is_taken_and_shown(node: Node) -> None:
    reply, body = node.request("/api/v1/report", "POST", body=json.dumps(REPORT).encode())
    assert (reply.status, body) == (204, b"")
    assert len(node.intake.registry.held) == 1


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "not_json"),
        (b"{}", 400, "missing_field"),
        (b"x" * (MAX_BYTES + 1), 413, "too_large"),
        (b"x" * (10 * MAX_BYTES), 413, "too_large"),
    ],
)
def test_a_bad_report_is_refused_with_its_reason_which_is_counted(
    node: Node, body: bytes, status: int, reason: str
) -> None:
    reply, answer = node.request("/api/v1/report", "POST", body=body)
    assert (reply.status, reply.headers["Content-Type"]) == (status, "application/json")
    reported = json.loads(answer)
    assert reported["error"] == reason
    assert reported["message"]
    node.sampler.publish()
    page = node.request("/metrics")[1].decode()
    assert f'stallscope_exporter_reports_rejected_total{{reason="{reason}"}} 1' in page


def test_a_report_is_posted_not_fetched(node: Node) -> None:
    reply, body = node.request("/api/v1/report")
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    assert json.loads(body)["error"] == "method"


def test_a_web_page_may_not_report(node: Node) -> None:
    reply, _ = node.request("/api/v1/report", "POST", {"Origin": "http://evil.example"}, json.dumps(REPORT).encode())
    assert reply.status == 403
    assert not node.intake.registry.held


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for"])
def test_a_proxy_on_this_machine_does_not_speak_for_it(node: Node, header: str) -> None:
    reply, body = node.request("/api/v1/report", "POST", {header: "for=192.0.2.7"}, json.dumps(REPORT).encode())
    assert (reply.status, json.loads(body)["error"]) == (403, "remote")
    assert "came through a proxy" in json.loads(body)["message"]
    assert not node.intake.registry.held


def test_another_machine_may_report_only_where_that_is_allowed(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    request = Request("POST", "/api/v1/report", {}, json.dumps(REPORT).encode())
    refused = node.application.answer(request, "192.0.2.7")
    assert refused.status == 403
    assert "--web.allow-remote-reports" in json.loads(refused.body)["message"]
    assert not node.intake.registry.held
    assert f"refused a client at 192.0.2.7: {json.loads(refused.body)['message']}" in caplog.messages
    assert ("forbidden", 1) in ((*each.labels, each.value) for each in node.refusals.collect())
    node.application.allow_remote_reports = True
    assert node.application.answer(request, "192.0.2.7").status == 204


def test_traces_are_requested_with_post_by_clients_that_may_report(node: Node) -> None:
    node.intake.step_requests.allowed = ("trace",)
    node.intake.post(json.dumps(REPORT).encode())
    body = b'{"run": "resnet50", "steps": 2}'
    assert node.request("/api/v1/trace")[0].status == 405
    assert node.request("/api/v1/trace", "POST", {"Origin": "http://evil.example"}, body)[0].status == 403
    request = Request("POST", "/api/v1/trace", {}, body)
    assert node.application.answer(request, "192.0.2.7").status == 403
    reply, answer = node.request("/api/v1/trace", "POST", body=body)
    assert (reply.status, json.loads(answer)["steps"]) == (202, 2)
    assert node.request("/api/v1/report", "POST", body=json.dumps({**REPORT, "sequence": 2}).encode())[0].status == 200


@pytest.mark.parametrize(
    ("path", "seconds"),
    [("/-/release?for=2m", 120.0), ("/-/release?for=1h30m", 5400.0), ("/-/release", None), ("/-/resume", 0.0)],
)
def test_gpus_are_released_and_taken_up_again_on_request(node: Node, path: str, seconds: float | None) -> None:
    reply, body = node.request(path, "POST")
    assert (reply.status, reply.headers["Content-Type"]) == (202, "text/plain; charset=utf-8")
    assert body.decode() == f"released for {seconds} s\n"
    assert node.released == [seconds]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("for=2", "did you mean 2s?"),
        ("for=", "a duration with its unit"),
        ("for=0s", "from 1s to 1d"),
        ("for=2d", "from 1s to 1d"),
        ("for=1m&for=2m", "a duration with its unit"),
        ("seconds=3", "takes for=DURATION and nothing else"),
        ("for", "a duration with its unit"),
    ],
)
def test_a_wrong_time_releases_nothing_and_says_what_is_expected(node: Node, query: str, expected: str) -> None:
    reply, body = node.request(f"/-/release?{query}", "POST")
    assert reply.status == 400
    assert expected in body.decode()
    assert not node.released


@pytest.mark.parametrize("path", ["/-/release?for=2m", "/-/resume"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_looking_at_the_way_to_release_releases_nothing(node: Node, path: str, method: str) -> None:
    reply, _body = node.request(path, method)
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    assert not node.released


@pytest.mark.parametrize("path", ["/-/release", "/-/resume"])
def test_gpus_are_released_only_for_those_who_may_report(node: Node, path: str) -> None:
    assert node.request(path, "POST", {"Origin": "http://evil.example"})[0].status == 403
    request = Request("POST", path, {}, b"")
    refused = node.application.answer(request, "192.0.2.7")
    assert refused.status == 403
    assert b"--web.allow-remote-reports" in refused.body
    assert not node.released
    node.application.allow_remote_reports = True
    assert node.application.answer(request._replace(proven=True), "192.0.2.7").status == 202


def test_with_signed_reports_another_machine_may_send_nothing_else(node: Node) -> None:
    application = Application(
        node.sampler,
        post_report=node.intake.post,
        post_request=node.intake.post_request,
        status_page=node._status_page,
        release=node._release,
        allow_remote_reports=True,
        signed_reports=True,
    )
    statuses = {
        path: application.answer(Request("POST", path, {}, json.dumps(REPORT).encode()), "192.0.2.7")
        for path in ("/api/v1/report", "/api/v1/trace", "/api/v1/stop", "/-/release", "/-/resume")
    }
    assert [answer.status for answer in statuses.values()] == [204, 403, 403, 403, 403]
    assert b"nothing but signed reports" in statuses["/-/release"].body
    assert not node.released


@pytest.mark.parametrize("path", ["/", "/api/v1/report", "/api/v1/trace", "/api/v1/stop", "/-/release", "/-/resume"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_switched_off_is_not_there_and_says_what_would_bring_it(node: Node, path: str, method: str) -> None:
    node.application.switched_off = {path: "--web.enable-it"}
    reply, body = node.request(path, method, body=json.dumps(REPORT).encode() if method == "POST" else None)
    assert reply.status == 404
    assert json.loads(body) == {
        "error": "off",
        "message": f"{path} is switched off here; --web.enable-it switches it on",
    }
    assert node.request("/metrics")[0].status == node.request("/-/healthy")[0].status == 200
    assert not node.released
    assert not node.intake.registry.held


@pytest.mark.parametrize(
    ("client", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("2001:db8::127", False),
        ("", False),
    ],
)
def test_loopback_is_this_machine_alone(client: str, loopback: bool) -> None:
    assert is_loopback(client) is loopback


def test_the_page_is_where_the_telemetry_path_says(tmp_path: Path) -> None:
    sampler = Sampler()
    application = Application(
        sampler,
        post_report=lambda _body, _client: (204, b""),
        post_request=lambda *_: (202, b""),
        status_page=lambda _refreshing: b"",
        release=lambda _seconds: "",
        telemetry_path="/telemetry",
    )
    request = Request("GET", "/telemetry", {}, b"")
    assert application.answer(request, "127.0.0.1").status == 200
    assert application.answer(request._replace(path="/metrics"), "127.0.0.1").status == 404
