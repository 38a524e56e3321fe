"""Requests as clients send them, on a real connection: whole, in pieces, malformed and too large."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.common.address import Address
from stallscope.node.web.http.request import MAX_HEAD_BYTES, Request
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.server import Server
from stallscope.training.protocol.vocabulary import MAX_BYTES

GET = b"GET /metrics?name=x HTTP/1.1\r\nHost: h\r\nAccept: a\r\nACCEPT: b\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Return the requests answered so far."""
    return []


@pytest.fixture(scope="module")
def server(requests: list[Request]) -> Iterator[Server]:
    def answer(request: Request, _client: str) -> Response:
        requests.append(request)
        return Response(413 if request.oversized else 200, TEXT, b"answered")

    made = Server(Address("127.0.0.1", 0), answer)
    made.start()
    yield made
    made.stop()


def responses(server: Server, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        received = bytearray()
        while data := connection.recv(65_536):
            received += data
    return bytes(received)


def test_a_request_has_its_path_query_and_lower_case_headers(server: Server, requests: list[Request]) -> None:
    assert responses(server, GET).startswith(b"HTTP/1.1 200 OK\r\n")
    request = requests[-1]
    assert (request.method, request.path, request.query, request.body) == ("GET", "/metrics", "name=x", b"")
    assert request.headers == {"host": "h", "accept": "a,b", "connection": "close"}


def test_a_request_may_come_byte_by_byte(server: Server) -> None:
    assert responses(server, *(GET[at : at + 1] for at in range(len(GET)))).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_may_come_in_chunks(server: Server, requests: list[Request]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert responses(server, head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
    assert requests[-1].body == b"abcde"


def test_a_client_that_waits_for_a_go_ahead_gets_it(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("version", "header", "answers"),
    [
        (b"1.1", b"", 2),
        (b"1.1", b"Connection: close\r\n", 1),
        (b"1.0", b"", 1),
    ],
)
def test_the_connection_is_kept_as_version_and_header_say(
    version: bytes, header: bytes, answers: int, server: Server
) -> None:
    request = b"GET / HTTP/" + version + b"\r\nHost: h\r\n" + header + b"\r\n"
    assert responses(server, request * 2).count(b"HTTP/1.1 200 OK") == answers


HOST = b" / HTTP/1.1\r\nHost: h\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\n", 400),
        (b"\x16\x03\x01", 400),
        (b"\x00", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET" + HOST + b"no colon\r\n\r\n", 400),
        (b"GET" + HOST + b"Space : b\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"POST" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"POST" + HOST + b"Content-Length: 1, 2\r\n\r\n", 400),
        (b"POST" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST" + HOST + b"Transfer-Encoding: chunked\r\n\r\nnothing\r\n", 400),
        (b"POST" + HOST + b"Content-Length: %d\r\n\r\n" % (MAX_BYTES + 1), 413),
        (b"POST" + HOST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (2 * MAX_BYTES) + bytes(2 * MAX_BYTES), 413),
        (b"GET /" + b"a" * 2 * MAX_HEAD_BYTES, 431),
        (b"GET" + HOST + b"A: " + b"a" * 2 * MAX_HEAD_BYTES, 431),
    ],
)
def test_what_is_no_request_or_breaks_a_limit_is_refused(data: bytes, status: int, server: Server) -> None:
    assert responses(server, data).startswith(b"HTTP/1.1 %d " % status)
    assert responses(server, GET).startswith(b"HTTP/1.1 200 OK\r\n")


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_bring_anything_but_a_response_or_an_end(server: Server, data: bytes) -> None:
    received = responses(server, b"POST" + HOST + data)
    assert not received or received.startswith(b"HTTP/1.1 ")
