"""TLS with a self-made certificate, configured as for any exporter of the toolkit."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.configuration import ConfigurationError
from stallscope.report import MAX_BYTES
from stallscope.web.address import Address
from stallscope.web.response import TEXT, Response
from stallscope.web.server import Server
from stallscope.web.tls import TlsAdapter, read_web_configuration

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")

BODY = b"x" * 60_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    for name in ("node", "other"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "2", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    secret = ["openssl", "pkey", "-in", "node.key", "-aes256", "-passout", "pass:x", "-out", "secret.key"]
    subprocess.run(secret, cwd=folder, check=True, capture_output=True)
    return folder


def configuration(folder: Path, text: str) -> Path:
    file = folder / "web.yml"
    file.write_text(text)
    return file


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    file = configuration(folder, "tls_server_config:\n  cert_file: node.crt\n  key_file: node.key\n")
    files = read_web_configuration(file)
    assert files is not None
    server = Server(
        Address("127.0.0.1", 0),
        lambda request, _client: Response(200, TEXT, request.body or BODY),
        threads=1,
        tls=TlsAdapter(files),
    )
    server.start()
    yield server
    server.stop()


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "node.crt"))


def ask(server: Server, folder: Path, body: bytes | None = None, times: int = 1) -> bytes:
    connection = http.client.HTTPSConnection("127.0.0.1", server.address.port, timeout=10, context=trusting(folder))
    try:
        for _ in range(times):
            connection.request("POST" if body else "GET", "/", body)
            answer = connection.getresponse().read()
        return answer
    finally:
        connection.close()


def test_answers_who_trusts_the_certificate_again_and_again(server: Server, folder: Path) -> None:
    assert server.url.startswith("https://")
    assert ask(server, folder, times=3) == BODY


def test_takes_a_body_of_several_records(server: Server, folder: Path) -> None:
    body = bytes(range(256)) * (MAX_BYTES // 256)
    assert ask(server, folder, body) == body


def test_a_client_that_speaks_plain_http_gets_nothing_and_stops_nobody(server: Server, folder: Path) -> None:
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert not connection.recv(100).startswith(b"HTTP/1.1 200")
    assert ask(server, folder) == BODY


def test_clients_that_never_shake_hands_hold_up_nobody(server: Server, folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(6):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.address.port), timeout=10))
            if number % 2:
                silent.sendall(b"\x16\x03\x01\x02\x00")
        assert ask(server, folder) == BODY


def test_old_protocol_versions_are_refused(server: Server, folder: Path) -> None:
    context = trusting(folder)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", server.address.port), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_an_empty_file_asks_for_plain_http(folder: Path) -> None:
    assert read_web_configuration(configuration(folder, "# nothing yet\n")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("basic_auth_users: {a: b}", r"web\.yml:1: basic_auth_users is not supported yet"),
        ("http_server_config: {}", "http_server_config is not supported yet"),
        ("tls_server_config:\n  client_auth_type: X", r"web\.yml:2: tls_server_config\.client_auth_type is not supp"),
        ("tls_server_config: {cert_file: node.crt}", "needs key_file"),
        ("tls_server_config: {}", "needs cert_file and key_file"),
        ("tls_server_config: {cert_file: '', key_file: [a]}", "needs cert_file and key_file"),
        ("tls_server_config: yes", "must hold `key: value` pairs"),
        ("- a", "must hold `key: value` pairs"),
        ("tls_server_config: {cert_file: a, cert_file: b}", "cert_file is set twice"),
        ("tls_server_config: {", "is no valid YAML"),
    ],
)
def test_what_the_file_asks_for_in_vain_is_refused_by_name(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_web_configuration(configuration(folder, text))


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("missing.crt", "node.key", r"missing\.crt can't be read: No such file"),
        ("node.crt", "missing.key", r"missing\.key can't be read: No such file"),
        ("node.crt", "other.key", "are no PEM certificate with its unencrypted key"),
        ("web.yml", "node.key", "are no PEM certificate with its unencrypted key"),
        ("node.crt", "secret.key", "are no PEM certificate with its unencrypted key"),
    ],
)
def test_files_that_are_no_certificate_with_its_key_are_refused(
    folder: Path, certificate: str, key: str, message: str
) -> None:
    file = configuration(folder, f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}")
    files = read_web_configuration(file)
    assert files is not None
    with pytest.raises(ConfigurationError, match=message):
        TlsAdapter(files)


def test_a_path_that_none_can_be_is_refused_with_its_line(folder: Path) -> None:
    file = configuration(folder, 'tls_server_config:\n  cert_file: node.crt\n  key_file: "a\\0b"\n')
    with pytest.raises(ConfigurationError, match=r"web\.yml:3: tls_server_config\.key_file is no path"):
        read_web_configuration(file)


def test_an_answer_that_is_taken_late_comes_whole(server: Server, folder: Path) -> None:
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(10)
        plain.connect(("127.0.0.1", server.address.port))
        context = ssl.create_default_context(cafile=folder / "node.crt")
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 299 + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            taken = b""
            while piece := client.recv(65_536):
                taken += piece
    assert taken.count(BODY) == 300


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_file_is_the_toolkits_own_format(folder: Path) -> None:
    file = configuration(folder, "tls_server_config:\n  cert_file: node.crt\n  key_file: node.key\n")
    subprocess.run(["promtool", "check", "web-config", str(file)], check=True, capture_output=True)
    assert read_web_configuration(file) is not None
