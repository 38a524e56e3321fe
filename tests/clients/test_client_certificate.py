"""Client certificates are sent to servers that require one; every problem is described in one line."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.common.address import Address
from stallscope.model.clients.client_certificate import (
    ClientCertificate,
    ClientCertificateError,
    certificate_from_environment,
    client_certificate,
)
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.model.clients.prometheus import Prometheus, PrometheusError
from stallscope.node.web.http.configuration_file import Tls
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.server import Server
from stallscope.node.web.http.tls import TlsAdapter, context_of
from stallscope.tools.cli import main
from stallscope.tools.cli.top import parser
from tests.web.certificates import Authority, needs_openssl

pytestmark = needs_openssl

BODY = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> ClientCertificate:
    return ClientCertificate(*map(str, authority.sign("me")))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> ClientCertificate:
    """A certificate that the server does not trust."""
    folder = tmp_path_factory.mktemp("elsewhere")
    return ClientCertificate(*map(str, Authority(folder, "elsewhere").sign("me")))


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[str]:
    """A server that requires a certificate. With TLS 1.2 it reports a missing one; with TLS 1.3 it may close first."""
    settings = Tls(
        *authority.sign("node"),
        client_authentication="RequireAndVerifyClientCert",
        client_authorities=authority.certificate,
        highest="TLS12",
    )
    tls = TlsAdapter(context_of(settings))
    running = Server(Address("127.0.0.1", 0), lambda _, __: Response(200, TEXT, BODY.encode()), threads=1, tls=tls)
    running.start()
    try:
        yield running.url.rstrip("/")
    finally:
        running.stop()


@pytest.fixture
def server(strict: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make clients trust the server."""
    for variable in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(variable, str(authority.certificate))
    return strict


def from_prometheus(url: str, certificate: ClientCertificate | None) -> str:
    with contextlib.closing(Prometheus(url, timeout=60, certificate=certificate)) as prometheus:
        try:
            return f"series: {len(prometheus.query('up'))}"
        except PrometheusError as problem:
            return str(problem)


def from_exporter(url: str, certificate: ClientCertificate | None) -> str:
    with contextlib.closing(ExporterClient(url, timeout=60, certificate=certificate)) as exporter:
        try:
            return exporter.read()
        except ExporterError as problem:
            return str(problem)


def test_a_server_that_requires_a_certificate_gets_it(server: str, mine: ClientCertificate) -> None:
    assert from_prometheus(server, mine) == "series: 0"
    assert from_exporter(server, mine) == BODY


def test_the_error_of_a_missing_certificate_names_the_flag(server: str) -> None:
    said = (
        "it refuses the connection (handshake failure); if it requires a client certificate, name one with "
        "--client-certificate or STALLSCOPE_CLIENT_CERTIFICATE"
    )
    assert from_prometheus(server, None) == f"{server}: {said}"
    assert from_exporter(server, None) == said


def test_a_refusal_after_the_handshake_has_the_same_error(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Tls(
        *authority.sign("later"),
        client_authentication="RequireAndVerifyClientCert",
        client_authorities=authority.certificate,
    )
    context, over = context_of(settings), threading.Event()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))

    def refuse(listener: socket.socket) -> None:
        taken, _ = listener.accept()
        with context.wrap_socket(taken, server_side=True, do_handshake_on_connect=False) as held:
            with contextlib.suppress(ssl.SSLError):
                held.do_handshake()
            over.wait(60)  # closing a connection may discard the last data

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=refuse, args=(listener,))
        server.start()
        assert main(["trace", "a", "--exporter.url", f"https://127.0.0.1:{listener.getsockname()[1]}"]) == 1
        over.set()
        server.join()
    assert "it refuses the connection (certificate required); if it requires a client" in capsys.readouterr().err


def test_an_untrusted_certificate_is_named(server: str, stranger: ClientCertificate) -> None:
    said = f"it refuses the client certificate of {stranger.certificate} (unknown ca)"
    assert from_prometheus(server, stranger) == f"{server}: {said}"
    assert from_exporter(server, stranger) == said


def test_an_untrusted_server_and_a_server_without_tls_have_different_errors(
    server: str, mine: ClientCertificate, monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    plain = Server(Address("127.0.0.1", 0), lambda _, __: Response(200, TEXT, b""), threads=1)
    plain.start()
    try:
        spoken = plain.url.rstrip("/").replace("http:", "https:")
        assert from_prometheus(spoken, mine) == f"{spoken}: it does not speak TLS; try http://"
    finally:
        plain.stop()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", mine.certificate)
    assert "its certificate is not trusted; name its authority in REQUESTS_CA_BUNDLE" in from_prometheus(server, mine)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.folder / "nothing.crt"))
    assert "nothing.crt" in from_prometheus(server, mine)


@pytest.mark.parametrize(
    ("variable", "trusts_prometheus", "trusts_exporter"),
    [("REQUESTS_CA_BUNDLE", True, False), ("CURL_CA_BUNDLE", True, False), ("SSL_CERT_FILE", False, True)],
)
def test_prometheus_and_exporter_are_trusted_by_variables_of_their_own(
    variable: str,
    trusts_prometheus: bool,
    trusts_exporter: bool,
    strict: str,
    mine: ClientCertificate,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(authority.certificate))
    assert (from_prometheus(strict, mine) == "series: 0") == trusts_prometheus
    assert (from_exporter(strict, mine) == BODY) == trusts_exporter


def test_one_file_may_contain_certificate_and_key(mine: ClientCertificate, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(file).read_text() for file in mine))
    assert client_certificate(str(both), None) == (str(both), str(both))
    assert client_certificate(None, None) is None


def test_files_without_a_certificate_are_rejected(
    mine: ClientCertificate, stranger: ClientCertificate, tmp_path: Path
) -> None:
    def refusal(certificate: str | None, key: str | None) -> str:
        with pytest.raises(ClientCertificateError) as refused:
            client_certificate(certificate, key)
        return str(refused.value)

    absent = str(tmp_path / "absent.crt")
    assert refusal(absent, mine.key) == f"{absent} can't be read: No such file or directory"
    assert refusal(mine.certificate, stranger.key) == f"the key in {stranger.key} does not belong to {mine.certificate}"
    assert refusal(mine.certificate, None).startswith(f"{mine.certificate}: expected a client certificate and its key")
    assert refusal(None, mine.key) == f"{mine.key}: a key without a client certificate; name the certificate too"


def test_a_certificate_removed_later_is_an_error(server: str, mine: ClientCertificate, tmp_path: Path) -> None:
    moved = ClientCertificate(str(tmp_path / "gone.crt"), mine.key)
    assert "gone.crt" in from_prometheus(server, moved)
    assert from_exporter(server, moved) == f"{moved.certificate} can't be read: No such file or directory"


def test_programs_use_the_certificate_of_the_environment(
    mine: ClientCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert certificate_from_environment() is None
    monkeypatch.setenv("STALLSCOPE_CLIENT_CERTIFICATE", mine.certificate)
    monkeypatch.setenv("STALLSCOPE_CLIENT_KEY", mine.key)
    assert certificate_from_environment() == mine


def test_the_flag_for_a_certificate_ignores_the_key_of_the_environment(
    mine: ClientCertificate, stranger: ClientCertificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(file).read_text() for file in mine))
    monkeypatch.setenv("STALLSCOPE_CLIENT_CERTIFICATE", stranger.certificate)
    monkeypatch.setenv("STALLSCOPE_CLIENT_KEY", stranger.key)
    command_line = parser()
    assert command_line.parse_args([]).certificate == stranger
    assert command_line.parse_args(["--client-certificate", str(both)]).certificate == (str(both), str(both))


def test_commands_send_the_certificate(
    server: str, mine: ClientCertificate, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--client-certificate", mine.certificate, "--client-key", mine.key]
    assert main(["frames", "--run", "a", "--prometheus.url", server, *flags]) == 1
    assert "not a Prometheus response" in capsys.readouterr().err
    main(["doctor", "exporter", "prometheus", "--json", "--exporter.url", server, "--prometheus.url", server, *flags])
    said = {each["part"]: each["message"] for each in json.loads(capsys.readouterr().out)["results"]}
    assert said == {
        "exporter": f"{server.removeprefix('https://')} is not a Stallscope exporter",
        "prometheus": f"{server}: not a Prometheus response; check what listens at that address",
    }
    assert main(["trace", "a", "--exporter.url", server, *flags]) == 1
    assert "not a Stallscope exporter" in capsys.readouterr().err
    assert main(["trace", "a", "--exporter.url", server]) == 1
    assert "if it requires a client certificate, name one with --client-certificate" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["compare a b", "doctor", "frames --run a", "pick", "report", "top", "trace a"])
def test_commands_reject_an_invalid_certificate(line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*line.split(), "--client-certificate", str(tmp_path / "absent.crt")])
    assert ended.value.code == 2
    said = f"--client-certificate: {tmp_path}/absent.crt can't be read: No such file or directory\n"
    assert capsys.readouterr().err == f"stallscope {line.split()[0]}: {said}"


def test_the_error_names_the_environment_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_CLIENT_CERTIFICATE", "/absent.crt")
    with pytest.raises(SystemExit):
        main(["top"])
    assert "top: STALLSCOPE_CLIENT_CERTIFICATE: /absent.crt can't be read" in capsys.readouterr().err
