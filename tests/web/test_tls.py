"""TLS with certificates of an authority of the tests' own: handshakes, versions, and clients' certificates."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.common.address import Address
from stallscope.node.configuration import ConfigurationError
from stallscope.node.web.http import server as server_module
from stallscope.node.web.http.configuration_file import CIPHER_SUITES, CURVES, Tls
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.server import Server
from stallscope.node.web.http.tls import TlsAdapter, context_of, outside_its_time_at
from stallscope.training.protocol.vocabulary import MAX_BYTES
from tests.waiting import until
from tests.web.certificates import Authority, needs_openssl

pytestmark = needs_openssl

BODY = b"x" * 60_000
Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def node(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("node")


@pytest.fixture
def serve(node: tuple[Path, Path]) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Server:
            server = Server(
                Address("127.0.0.1", 0),
                lambda request, _client: Response(200, TEXT, request.body or BODY),
                threads=1,
                tls=TlsAdapter(context_of(Tls(*node)._replace(**options))),
            )
            stack.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture
def server(serve: Serve) -> Server:
    return serve()


def fetch(server: Server, context: ssl.SSLContext, body: bytes | None = None, times: int = 1) -> bytes:
    connection = http.client.HTTPSConnection("127.0.0.1", server.address.port, timeout=60, context=context)
    try:
        for _ in range(times):
            connection.request("POST" if body else "GET", "/", body)
            answer = connection.getresponse().read()
        return answer
    finally:
        connection.close()


def test_answers_who_trusts_the_certificate_again_and_again(server: Server, authority: Authority) -> None:
    assert server.url.startswith("https://")
    assert fetch(server, authority.trusting(), times=3) == BODY


def test_takes_a_body_of_several_records(server: Server, authority: Authority) -> None:
    body = bytes(range(256)) * (MAX_BYTES // 256)
    assert fetch(server, authority.trusting(), body) == body


def test_a_client_that_speaks_plain_http_gets_an_explanation_and_blocks_no_other(
    server: Server, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
        reported = connection.recv(1000)
    assert reported.startswith(b"HTTP/1.1 400 ")
    assert reported.endswith(b"plain HTTP came where TLS is served; use https://\n")
    assert caplog.messages == [
        "refused a client at 127.0.0.1: plain HTTP came where TLS is served; use https://",
    ]
    assert fetch(server, authority.trusting()) == BODY


def test_clients_that_break_off_block_no_other(server: Server, authority: Authority) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as hasty:
            hasty.sendall(b"\x16\x03\x01")
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert fetch(server, authority.trusting()) == BODY


def test_clients_that_never_shake_hands_block_no_other(server: Server, authority: Authority) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(6):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.address.port), timeout=60))
            if number % 2:
                silent.sendall(b"\x16\x03\x01\x02\x00")
        assert fetch(server, authority.trusting()) == BODY


def test_a_client_that_never_shakes_hands_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as silent:
        silent.sendall(b"\x16\x03\x01\x02\x00")
        with contextlib.suppress(ConnectionError):
            assert silent.recv(100) == b""


def test_old_protocol_versions_are_refused(server: Server, authority: Authority) -> None:
    context = authority.trusting()
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_an_answer_that_is_taken_late_comes_whole(server: Server, authority: Authority) -> None:
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(60)
        plain.connect(("127.0.0.1", server.address.port))
        context = authority.trusting()
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(
                b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 299 + b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            )
            taken = bytearray()
            while piece := client.recv(65_536):
                taken += piece
    assert taken.count(BODY) == 300


def test_the_configured_versions_and_suites_are_used(serve: Serve, authority: Authority) -> None:
    suite = CIPHER_SUITES["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
    server = serve(highest="TLS12", cipher_suites=(suite,), curve=CURVES["CurveP384"])
    with (
        socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as plain,
        authority.trusting().wrap_socket(plain, server_hostname="localhost") as client,
    ):
        assert client.version() == "TLSv1.2"
        assert (client.cipher() or ("",))[0] == suite
    newer = authority.trusting()
    newer.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises((ssl.SSLError, ConnectionError)):
        fetch(server, newer)


@pytest.fixture
def careful(serve: Serve, authority: Authority) -> Server:
    return serve(client_authentication="RequireAndVerifyClientCert", client_authorities=authority.certificate)


def test_a_client_with_a_certificate_of_the_authority_is_answered(careful: Server, authority: Authority) -> None:
    assert fetch(careful, authority.trusting(authority.sign("client"))) == BODY


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("none", "peer did not return a certificate"),
        ("expired", "certificate has expired"),
        ("of another authority", "self-signed certificate in certificate chain|unable to get local issuer certificate"),
    ],
)
def test_a_client_with_a_wrong_or_no_certificate_gets_nothing_and_is_logged_once(
    case: str, reason: str, careful: Server, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = None
    if case == "expired":
        client = authority.sign("late", days=-1)
    elif case == "of another authority":
        client = Authority(tmp_path).sign("stranger")
    context = authority.trusting(client)
    for _ in range(3):
        with pytest.raises((ssl.SSLError, OSError)):
            fetch(careful, context)
    (line,) = caplog.messages
    assert line.startswith("refused a client at 127.0.0.1: no TLS: ")
    assert any(words in line for words in reason.split("|"))
    assert fetch(careful, authority.trusting(authority.sign("client"))) == BODY


def test_a_client_may_have_no_certificate_where_that_is_allowed_but_no_wrong_one(
    serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    server = serve(client_authentication="VerifyClientCertIfGiven", client_authorities=authority.certificate)
    assert fetch(server, authority.trusting()) == BODY
    with pytest.raises((ssl.SSLError, OSError)):
        fetch(server, authority.trusting(Authority(tmp_path).sign("stranger")))


@pytest.mark.parametrize("name", ["node1", "10.0.0.1", "2001:db8::1", "ops@example.org", "spiffe://example.org/node1"])
def test_a_client_needs_one_of_the_allowed_names_on_its_first_and_on_a_resumed_connection(
    name: str, serve: Serve, tmp_path: Path, authority: Authority
) -> None:
    names = "DNS:node1,IP:10.0.0.1,IP:2001:db8::1,email:ops@example.org,URI:spiffe://example.org/node1"
    client = Authority(tmp_path, "client", names)
    settings: dict[str, Any] = {
        "client_authentication": "RequireAndVerifyClientCert",
        "client_authorities": client.certificate,
    }
    context = authority.trusting((client.certificate, client.key))
    assert fetch(serve(**settings, allowed_names=frozenset({name, "another"})), context, times=3) == BODY
    for refused in (frozenset({"another", name.upper() + "x"}), frozenset[str]()):
        server = serve(**settings, allowed_names=refused)
        session = None
        for _ in range(2):
            with (
                socket.create_connection(("127.0.0.1", server.address.port), timeout=60) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
                contextlib.suppress(ssl.SSLError, ConnectionError),
            ):
                secure.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
                assert secure.recv(100) == b""
            session = secure.session


def test_a_curve_that_this_python_does_not_know_is_refused(node: tuple[Path, Path]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"does not support .* this curve .*; change cipher_suites or curve_pref"
    ):
        context_of(Tls(*node, curve="brainpoolP256r9"))


@pytest.mark.parametrize(
    ("days", "outside"), [(2, False), (-1, True), (40_000, False)], ids=["now", "expired", "beyond 2050"]
)
def test_a_certificates_time_is_read(authority: Authority, days: int, outside: bool) -> None:
    certificate, _key = authority.sign("timed", days=days)
    assert bool(outside_its_time_at(certificate, time.time() + 60)) is outside
    for never in (0.0, 6e9):
        assert "set the clock right" in outside_its_time_at(certificate, never)


def test_a_client_that_finds_the_certificate_expired_is_logged(
    serve: Serve, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.sign("old", days=-1)
    server = serve(certificate=certificate, key=key)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        fetch(server, authority.trusting())
    until(lambda: "certificate expired" in caplog.text, lambda: caplog.text)
