"""Queries to a real Prometheus, and to servers that are slow, absent or something else."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import shutil
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.model.clients.expressions import any_of
from stallscope.model.clients.prometheus import Prometheus, PrometheusError, Series
from stallscope.model.view.verdicts import RunName, VerdictWatch
from tests.analysis.servers import DRIPS, HANDSHAKE, answering, prometheus, talking
from tests.free_ports import free_port

NAMES = ("resnet50", 'quote"', "back\\slash", "dot.star*", "{brace}|pipe", "🐌 \u05d0", "new\nline", "k" * 2000)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    rules = [("value", {"name": name}, float(number)) for number, name in enumerate(NAMES)]
    with prometheus(tmp_path_factory.mktemp("prometheus"), rules) as url:
        client = Prometheus(url, timeout=60)
        yield client
        client.close()


def answer(client: Prometheus, expression: str = "up") -> list[Series]:
    try:
        return client.query(expression)
    finally:
        client.close()


def refusal(url: str, **settings: Any) -> str:
    with pytest.raises(PrometheusError) as refused:
        answer(Prometheus(url, **{"timeout": 60.0, **settings}))
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_time_limit_may_have_fractions_although_prometheus_accepts_none(real: Prometheus) -> None:
    found = answer(Prometheus(real.name, timeout=59.5), "value")
    assert len(found) == len(NAMES)


@pytest.mark.parametrize("clock", ["NaN", "+Inf"])
def test_a_server_whose_clock_is_no_time_is_refused(clock: str) -> None:
    result = {"resultType": "vector", "result": [{"metric": {}, "value": [0, clock]}]}
    with answering(200, json.dumps({"status": "success", "data": result}).encode()) as (url, _):
        client = Prometheus(url)
        with pytest.raises(PrometheusError, match="not a Prometheus response"):
            client.now()
        client.close()


def test_control_characters_of_a_server_are_escaped() -> None:
    with answering(400, json.dumps({"error": "\x1b[2J\nno"}).encode()) as (url, _):
        assert refusal(url) == f"{url}: query rejected: \\x1b[2J\\nno"


def test_warnings_are_kept_until_they_are_taken() -> None:
    answer = {"status": "success", "data": {"resultType": "vector", "result": []}, "isPartial": True}
    answer["warnings"] = ["store b:\n timed out", "PromQL info: metric might not be a counter"]
    with answering(200, json.dumps(answer).encode()) as (url, _):
        client = Prometheus(url)
        for _ in range(2):
            assert client.query("up") == []
        client.close()
    assert client.take_warnings() == ["store b:\\n timed out", "not all of its stores responded"]
    assert client.take_warnings() == []


def test_a_query_returns_series_with_labels_and_value(real: Prometheus) -> None:
    assert real.query('value{name="resnet50"} + 41') == [Series({"name": "resnet50"}, 41.0)]
    assert real.query("absent_series") == []


def test_names_with_special_characters_select_exactly_their_series(real: Prometheus) -> None:
    for number, name in enumerate(NAMES):
        assert [each.value for each in real.query(f"value{{name=~{any_of([name])}}}")] == [float(number)]
    assert len(real.query(f"value{{name=~{any_of(NAMES)}}}")) == len(NAMES)


def test_an_error_quotes_the_message_of_prometheus(real: Prometheus) -> None:
    with pytest.raises(PrometheusError, match=r"query rejected: .*parse error"):
        real.query("sum(")


def test_a_result_that_is_not_a_vector_is_rejected(real: Prometheus) -> None:
    with pytest.raises(PrometheusError, match="not a Prometheus response"):
        real.query("1")


def test_an_unreachable_server_is_reported_with_address_and_reason() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert refusal(url) == f"{url}: it can't be reached: Connection refused"


def test_an_unknown_host_is_reported() -> None:
    message = refusal("http://no-such-machine.invalid:9090")
    assert message.startswith("http://no-such-machine.invalid:9090: it can't be reached: ")


def never(_connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def half(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    connection.shutdown(socket.SHUT_WR)
    over.wait()


def gibberish(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"220 mail.example ESMTP\r\n")
    over.wait()


@pytest.mark.parametrize("say", [never, *DRIPS.values()], ids=["nothing at all", *DRIPS])
def test_a_slow_server_takes_no_longer_than_the_time_limit(say: Any) -> None:
    with talking(say) as url:
        assert refusal(url, timeout=0.3) == f"{url}: no answer within 0.3 s"


def test_a_slow_handshake_takes_no_longer_than_the_time_limit() -> None:
    with talking(HANDSHAKE) as url:
        secure = url.replace("http:", "https:")
        assert refusal(secure, timeout=0.3) == f"{secure}: no answer within 0.3 s"


def test_a_kept_connection_has_the_same_limit() -> None:
    whole = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'

    def say(connection: socket.socket, over: threading.Event) -> None:
        received = b""  # head and body may arrive separately
        while not received.endswith(b"query=up&timeout=60s"):
            received += connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(whole), whole))
        DRIPS["a header without end"](connection, over)

    with talking(say) as url:
        server = Prometheus(url, timeout=60)
        with contextlib.closing(server):
            assert server.query("up") == []
            server._timeout = 0.3
            with pytest.raises(PrometheusError, match=r"no answer within 0\.3 s"):
                server.query("up")


@pytest.mark.parametrize("drip", DRIPS)
def test_a_dripping_server_does_not_block_the_verdicts_of_the_status_page(drip: str) -> None:
    with talking(DRIPS[drip]) as url:
        server = Prometheus(url, timeout=0.2)
        with contextlib.closing(server):
            watch = VerdictWatch(server)
            watch.look([RunName("resnet50", "")], [])
            watch.poll()
            assert watch.look([], []).problem == f"{url}: no answer within 0.2 s"


@pytest.mark.parametrize("say", [half, gibberish])
def test_a_broken_response_is_reported(say: Any) -> None:
    with talking(say) as url:
        assert refusal(url) == f"{url}: it closed the connection without an HTTP response"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Grafana</html>",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"status": "success"}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"a": 1}, "value": [1, "1"]}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": [], "value": [1, "1"]}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "many"]}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": []}]}}',
        b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}',
    ],
)
@pytest.mark.usefixtures("nothing_collected")
def test_an_invalid_response_is_reported(body: bytes) -> None:
    with answering(body=body) as (url, _seen):
        expected = "not a Prometheus response; check what listens at that address"
        assert refusal(url) == f"{url}: {expected}"


def test_an_endless_response_is_aborted() -> None:
    with answering(body=b" " * 300_000) as (url, _seen):
        assert refusal(url, max_bytes=100_000) == f"{url}: its response is longer than 100000 bytes"


def test_a_compressed_response_is_limited_by_its_decompressed_size() -> None:
    packed = gzip.compress(b" " * 5_000_000)
    with answering(body=packed, headers={"Content-Encoding": "gzip"}) as (url, _seen):
        assert "is longer than 100000 bytes" in refusal(url, max_bytes=100_000)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"", "user or password rejected (HTTP 401)"),
        (403, b"no", "user or password rejected (HTTP 403)"),
        (404, b"", "no query API at this address (HTTP 404); check address and path prefix"),
        (500, b"", "unexpected HTTP status 500"),
        (503, b'{"status": "error", "error": "too busy"}', "query rejected: too busy"),
        (400, b'{"error": "' + b"x" * 5000 + b'"}', f"query rejected: {'x' * 199}…"),
        (400, b'{"error": ["a"]}', "unexpected HTTP status 400"),
    ],
)
def test_error_responses_are_reported_with_what_to_do(status: int, body: bytes, words: str) -> None:
    with answering(status, body) as (url, _seen):
        assert refusal(url) == f"{url}: {words}"


def test_redirects_are_reported_and_not_followed() -> None:
    with answering(302, headers={"Location": "https://user:secret@elsewhere.example/login"}) as (url, _seen):
        assert refusal(url) == f"{url}: it redirects to https://elsewhere.example/login; use that address"


def test_a_password_is_sent_and_never_shown() -> None:
    vector = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()
    with answering(body=vector) as (url, seen):
        answer(Prometheus(url.replace("://", "://ada:secret@") + "/prefix/"), "up{a='b'}")
    ((path, headers, body),) = seen
    assert path == "/prefix/api/v1/query"
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"ada:secret").decode()
    assert urllib.parse.parse_qs(body.decode()) == {"query": ["up{a='b'}"], "timeout": ["5s"]}
    assert "secret" not in refusal("http://ada:secret@127.0.0.1:1")


@pytest.mark.parametrize(
    ("status", "body", "passing", "too_large"),
    [
        (400, b'{"error": "parse error: unexpected <eof>"}', False, False),
        (400, b'{"error": "exceeded maximum resolution of 11,000 points per timeseries. Try a smaller"}', False, True),
        (422, b'{"error": "query processing would load too many samples into memory in query"}', False, True),
        (422, b'{"error": "found duplicate series for the match group"}', False, False),
        (422, b'{"error": "the query exceeded the maximum number of chunks (limit: 2000000)"}', False, True),
        (413, b"", False, True),
        (429, b'{"error": "too many outstanding requests"}', True, False),
        (500, b"", True, False),
        (503, b'{"error": "query timed out in expression evaluation"}', True, True),
        (504, b"", True, True),
        (401, b"", False, False),
    ],
)
def test_an_error_says_whether_a_smaller_or_a_later_query_may_succeed(
    status: int, body: bytes, passing: bool, too_large: bool
) -> None:
    with answering(status, body) as (url, _seen), pytest.raises(PrometheusError) as refused:
        answer(Prometheus(url))
    assert (refused.value.passing, refused.value.too_large) == (passing, too_large)


@pytest.mark.parametrize(
    ("say", "timeout", "passing", "too_large"),
    [(never, 0.3, True, True), (half, 60, True, False), (gibberish, 60, True, False)],
)
def test_a_missing_response_says_so_too(say: Any, timeout: float, passing: bool, too_large: bool) -> None:
    with talking(say) as url, pytest.raises(PrometheusError) as broken:
        answer(Prometheus(url, timeout=timeout))
    assert (broken.value.passing, broken.value.too_large) == (passing, too_large)


def test_a_range_has_only_the_steps_with_a_value(real: Prometheus) -> None:
    now = real.now()
    (series,) = real.query_range("vector(time()) > " + f"{now - 10:.3f}", now - 60, now, 5)
    assert series.labels == {}
    assert list(series.times) == list(series.values)
    assert 1 <= len(series.times) <= 2
    assert real.query_range("absent_series", now - 60, now, 5) == []


def test_samples_have_their_scrape_times(real: Prometheus) -> None:
    now = real.now()
    found = real.samples('value{name="dot.star*"}', now - 60, now)
    (series,) = found
    assert series.labels == {"__name__": "value", "name": "dot.star*"}
    assert set(series.values) == {float(NAMES.index("dot.star*"))}
    # A sample at the border belongs to the range before it.
    first = series.times[0]
    assert all(each.times[0] > first for each in real.samples('value{name="dot.star*"}', first, now))
    assert real.samples('value{name="dot.star*"}', first - 60, first)[0].times[-1] == first


def test_staleness_markers_are_not_samples() -> None:
    values = b'[[1, "1"], [2, "NaN"], [3, "3"]]'
    body = b'{"status": "success", "data": {"resultType": "matrix", "result": ['
    body += b'{"metric": {"a": "b"}, "values": ' + values + b'}, {"metric": {}, "values": [[2, "NaN"]]}]}}'
    with answering(body=body) as (url, _seen):
        client = Prometheus(url)
        ((labels, times, numbers),) = client.samples("up", 0, 9)
        client.close()
    assert (labels, list(times), list(numbers)) == ({"a": "b"}, [1, 3], [1, 3])


def test_label_values_are_those_of_the_selectors_series(real: Prometheus) -> None:
    assert set(real.label_values("name", "value")) == set(NAMES)
    assert real.label_values("name", f"value{{name=~{any_of([NAMES[1]])}}}") == [NAMES[1]]
    assert real.label_values("name", "absent_series", 0, 1) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}}]}}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [1]}]}}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "x"]]}]}}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": 1, "values": [[1, "1"]]}]}}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"values": [[1, "1"]]}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": []}}',
    ],
)
def test_an_invalid_range_response_is_reported(body: bytes) -> None:
    with answering(body=body) as (url, _seen):
        client = Prometheus(url)
        with pytest.raises(PrometheusError, match="not a Prometheus response"):
            client.query_range("up", 0, 1, 1)
        client.close()


def test_values_may_be_nan_or_infinite(real: Prometheus) -> None:
    (series,) = real.query('value{name="resnet50"} / 0')
    assert series.value != series.value


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
