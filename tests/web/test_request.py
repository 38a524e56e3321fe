from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.web.http.request import MAX_HEAD_BYTES, Malformed, Request, take_request

GET = b"GET /metrics?name=x HTTP/1.1\r\nHost: h\r\nAccept: a\r\nACCEPT: b\r\n\r\n"


def take(data: bytes, max_body: int = 100) -> Request | None:
    return take_request(bytearray(data), max_body)


def test_a_whole_request_is_taken_with_its_path_and_lower_case_headers() -> None:
    request = take(GET)
    headers = {"host": "h", "accept": "a,b"}
    assert request == Request("GET", "/metrics", headers, b"", keep_alive=True, query="name=x")


@pytest.mark.parametrize("length", range(len(GET)))
def test_a_part_of_a_request_waits_for_the_rest(length: int) -> None:
    received = bytearray(GET[:length])
    assert take_request(received, 100) is None
    received += GET[length:]
    request = take_request(received, 100)
    assert request is not None
    assert request.path == "/metrics"
    assert not received


def test_pipelined_requests_come_out_one_after_another() -> None:
    received = bytearray(b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + GET)
    first, second, third = (take_request(received, 100) for _ in range(3))
    assert first is not None
    assert second is not None
    assert (first.path, first.body, second.path, third) == ("/a", b"abc", "/metrics", None)


@pytest.mark.parametrize(
    ("version", "header", "keep_alive"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", True),
    ],
)
def test_the_connection_stays_as_version_and_header_say(version: bytes, header: bytes, keep_alive: bool) -> None:
    request = take(b"GET / HTTP/" + version + b"\r\n" + header + b"\r\n")
    assert request is not None
    assert request.keep_alive is keep_alive


def test_a_body_over_the_limit_is_told_before_it_arrives() -> None:
    request = take(b"POST /a HTTP/1.1\r\nContent-Length: 101\r\n\r\n")
    assert request is not None
    assert request.oversized
    assert not request.keep_alive


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\n", 400),
        (b"\x16\x03\x01", 400),  # what can't become a request is not waited for
        (b"\x00", 400),
        (b"GOSSIP-PROTOCOL", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nSpace : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET /" + b"a" * MAX_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * MAX_HEAD_BYTES, 431),
    ],
)
def test_what_is_no_request_or_breaks_a_limit_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(Malformed) as refusal:
        take(data)
    assert refusal.value.status == status


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_bytes_bring_anything_but_a_request_a_wait_or_a_refusal(data: bytes) -> None:
    try:
        request = take(b"POST / HTTP/1.1\r\n" + data)
    except Malformed:
        return
    assert request is None or request.method == "POST"
