"""Who is sent away is counted by reason, on a real server."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest

from stallscope.common.address import Address
from stallscope.node.web.http import server as server_module
from stallscope.node.web.http.refusals import REASONS, Refusals
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.security import Security
from stallscope.node.web.http.server import Server
from tests.waiting import until
from tests.web.certificates import Authority, needs_openssl

USERS = f"basic_auth_users: {{alice: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}}}\n"
TLS = (
    "tls_server_config: {cert_file: node.crt, key_file: node.key, client_ca_file: authority.crt, "
    "client_auth_type: RequireAndVerifyClientCert}\n"
)
ALICE = "Basic YWxpY2U6cmlnaHQ="
MALLORY = "Basic bWFsbG9yeTpndWVzcw=="


TLS_IN_PLAIN = "a TLS handshake came where plain HTTP is served; use http://, or set --web.config.file"


def counts(refusals: Refusals) -> dict[str, float]:
    """Those that are not zero."""
    found = {sample.labels[0]: sample.value for sample in refusals.collect()}
    assert set(found) == set(REASONS)
    return {reason: float(number) for reason, number in found.items() if isinstance(number, int) and number}


def await_count(refusals: Refusals, reason: str, number: int) -> None:
    """A handshake fails on the server's side after the client's."""
    until(lambda: counts(refusals) == {reason: number}, lambda: str(counts(refusals)))


Serve = Callable[[str], tuple[Server, Refusals]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(text: str) -> tuple[Server, Refusals]:
            file = tmp_path / "web.yml"
            file.write_text(text)
            refusals = Refusals()
            security = Security(file, refusals=refusals)
            guarded = security.guard(lambda _request, _client: Response(200, TEXT, b"here"))
            server = Server(Address("127.0.0.1", 0), guarded, tls=security.tls, refusals=refusals)
            server.start()
            stack.callback(server.stop)
            return server, refusals

        yield start


def status(server: Server, authorization: str, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": authorization})
        return connection.getresponse().status


def test_wrong_credentials_are_counted_and_right_ones_are_not(serve: Serve) -> None:
    server, refusals = serve(USERS)
    assert [status(server, each) for each in (ALICE, MALLORY, ALICE, MALLORY)] == [200, 401, 200, 401]
    assert counts(refusals) == {"credentials": 2}


def test_a_request_that_is_too_long_is_one_beyond_limits(serve: Serve) -> None:
    server, refusals = serve(USERS)
    assert status(server, ALICE, "/" + "x" * 100_000) == 431
    assert counts(refusals) == {"limits": 1}


def test_what_is_no_http_is_malformed_and_tls_is_called_so(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server, refusals = serve(USERS)
    for garbage in (b"SSH-2.0-OpenSSH\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as connection:
            connection.sendall(garbage)
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert counts(refusals) == {"malformed": 3}
    assert caplog.messages == [
        "refused a client at 127.0.0.1: this is not an HTTP/1.1 request",
        f"refused a client at 127.0.0.1: {TLS_IN_PLAIN}",
    ]


def test_an_endless_request_is_refused_by_the_limits_and_a_silent_client_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server, refusals = serve(USERS)
    place = ("127.0.0.1", server.address.port)
    whole = f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: {ALICE}\r\n\r\n".encode()
    with socket.create_connection(place, timeout=60) as slow:
        slow.sendall(whole + b"GET / HTTP/1.1\r\nHos")
        assert slow.recv(1000).startswith(b"HTTP/1.1 200 ")  # what came with it is there too
        monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.2)
        slow.sendall(b"t")
        with socket.create_connection(place, timeout=60) as silent:
            assert silent.recv(1) == b""
        end = slow.recv(1000)
        assert end == b"" or end.startswith(b"HTTP/1.1 408 ")
    await_count(refusals, "limits", 1)
    assert caplog.messages == ["refused a client at 127.0.0.1: the request took longer than 10 s to arrive"]


@needs_openssl
def test_clients_without_a_certificate_and_without_tls_are_counted_apart(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    server, refusals = serve(TLS)
    place = ("127.0.0.1", server.address.port)
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        socket.create_connection(place, timeout=60) as connection,
        authority.trusting().wrap_socket(connection, server_hostname="localhost") as stranger,
    ):
        stranger.recv(1)  # in TLS 1.3 the client receives the alert only on its first read
    await_count(refusals, "certificate", 1)

    server, refusals = serve(TLS)
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await_count(refusals, "handshake", 1)
