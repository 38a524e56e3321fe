"""The exporter client returns a page, or an error of one line."""

from __future__ import annotations

import contextlib

import pytest

from stallscope.model.clients.exporter import ExporterClient, ExporterError
from tests.analysis.servers import DRIPS, HANDSHAKE, talking
from tests.free_ports import free_port
from tests.terminal.servers import exporter, speaking


def problem_of(url: str, **settings: float) -> str:
    client = ExporterClient(url, **{"timeout": 60.0, **settings})  # type: ignore[arg-type]
    with contextlib.closing(client), pytest.raises(ExporterError) as caught:
        client.read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pages_come_over_one_connection() -> None:
    pages = iter([b"one 1\n", 'zwei{a="ü"} 2\n'.encode()])
    with exporter(lambda: (200, next(pages))) as (url, seen):
        client = ExporterClient(url, timeout=60)
        assert client.read() == "one 1\n"
        assert client.read() == 'zwei{a="ü"} 2\n'
        client.close()
    assert seen == ["/metrics", "/metrics"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("node1", "node1:19400"),
        ("node1:9", "node1:9"),
        ("http://node1", "node1:80"),
        ("https://node1", "node1:443"),
        ("http://node1:9/", "node1:9"),
        ("http://node1:9/other/metrics?x=1", "node1:9/other/metrics?x=1"),
        ("http://[::1]:9", "[::1]:9"),
        ("http://alice:secret@node1:9", "node1:9"),
    ],
)
def test_an_address_may_be_short(url: str, name: str) -> None:
    assert ExporterClient(url).name == name


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://node1", "node1:0", "node1:x", "node 1", "nöde", "a\x1b[2J", "http://[x"]
)
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not the address of an exporter; use one such as http://localhost:19400"):
        ExporterClient(url)


def test_a_user_and_a_password_are_sent() -> None:
    with exporter(lambda: (200, b"")) as (url, seen):
        client = ExporterClient(f"http://alice:open%20sesame@{url}/m")
        client.read()
        client.close()
    assert seen == ["/m Basic YWxpY2U6b3BlbiBzZXNhbWU="]


def test_an_unreachable_exporter() -> None:
    said = problem_of(f"127.0.0.1:{free_port()}")
    assert said == "it can't be reached: Connection refused; start it with `stallscope exporter`"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "user or password rejected (HTTP 401)"),
        (404, "no metrics at this address (HTTP 404)"),
        (500, "unexpected HTTP status 500"),
        (302, "it redirects to 'http://elsewhere/'"),
    ],
)
def test_refusals(status: int, words: str) -> None:
    with exporter(lambda: (status, b""), {"Location": "http://elsewhere/"}) as (url, _):
        assert words in problem_of(url)


def test_a_response_that_is_not_text() -> None:
    with exporter(lambda: (200, b"\xff\xfe")) as (url, _):
        assert "not a page of metrics" in problem_of(url)


def test_an_endless_response() -> None:
    with exporter(lambda: (200, b"x" * 5000)) as (url, _):
        assert problem_of(url, max_bytes=4000) == "its page is longer than 4000 bytes"


@pytest.mark.parametrize("start", [[], [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nstall"]])
def test_a_response_that_does_not_end_in_time(start: list[bytes]) -> None:
    with speaking(*start, then_close=False) as url:
        assert problem_of(url, timeout=0.1) == "no answer within 0.1 s"


@pytest.mark.parametrize("drip", DRIPS)
def test_a_response_that_comes_byte_by_byte(drip: str) -> None:
    with talking(DRIPS[drip]) as url:
        assert problem_of(url, timeout=0.2) == "no answer within 0.2 s"


def test_a_handshake_that_comes_byte_by_byte() -> None:
    with talking(HANDSHAKE) as url:
        assert problem_of(url.replace("http:", "https:"), timeout=0.2) == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "said", [b"", b"\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx"]
)
def test_a_server_without_http(said: bytes) -> None:
    with speaking(said) as url:
        assert problem_of(url) in (
            "it closed the connection without an HTTP response",
            "the connection broke in the middle of the page",
            "it can't be reached: Connection reset by peer",
        )


def test_a_connection_closed_by_the_server_is_reopened() -> None:
    with exporter(lambda: (200, b"a 1\n")) as (url, seen):
        client = ExporterClient(url, timeout=60)
        client.read()
        assert client._connection is not None
        client._connection.sock.shutdown(2)
        assert client.read() == "a 1\n"
        client.close()
    assert len(seen) == 2


def test_after_a_failure_the_next_page_comes() -> None:
    answers = iter([(500, b""), (200, b"a 1\n")])
    with exporter(lambda: next(answers)) as (url, _):
        client = ExporterClient(url, timeout=60)
        with pytest.raises(ExporterError):
            client.read()
        assert client.read() == "a 1\n"
        client.close()


def test_a_server_without_tls() -> None:
    with speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert problem_of(f"https://{url}") == "it does not speak TLS; try http://"
