from __future__ import annotations

import contextlib
import ctypes
import http.server
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from stallscope.training.protocol import signature
from stallscope.training.protocol.vocabulary import MAX_BYTES
from stallscope.training.shim import transport as shim_transport
from stallscope.training.shim.address import host_and_port
from stallscope.training.shim.http_transport import Post
from stallscope.training.shim.transport import Datagrams, room
from tests.analysis.servers import dripping, talking
from tests.handled import handled, reply
from tests.web.certificates import Authority

# A loaded machine may take longer to respond than a training loop may wait.
transport = partial(shim_transport.transport, timeout=60.0)


def listening(family: int, address: object) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_DGRAM)
    listener.settimeout(60)
    listener.bind(address)  # type: ignore[arg-type]
    return listener


def test_a_unix_socket_takes_reports_and_may_come_late_and_again(tmp_path: Path) -> None:
    path = tmp_path / "report.sock"
    sender = transport({"STALLSCOPE_ADDRESS": f"unix://{path}"})
    assert sender(b"0") == "absent"
    for _ in range(2):
        with listening(socket.AF_UNIX, str(path)) as listener:
            assert sender(b"1") is None
            assert listener.recv(10) == b"1"
        assert sender(b"2") == "absent"  # the file is still there
        path.unlink()
    sender.close()


@pytest.mark.parametrize(
    ("family", "host", "written"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")],
)
def test_udp_delivers_reports_and_notices_a_missing_listener(family: int, host: str, written: str) -> None:
    try:
        listener = listening(family, (host, 0))
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = listener.getsockname()[1]
    sender = transport({"STALLSCOPE_ADDRESS": f"udp://{written}:{port}"})
    with listener:
        assert sender(b"1") is None
        assert listener.recv(10) == b"1"
    assert sender(b"2") == "absent"
    with listening(family, (host, port)) as again:
        assert sender(b"3") is None
        assert again.recv(10) == b"3"
    sender.close()


def test_a_connection_that_the_network_took_back_is_made_again() -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as listener:
        sender = Datagrams([(socket.AF_INET, listener.getsockname())])
        assert sender(b"1") is None
        (opened,) = sender._sockets
        assert opened is not None
        # What the kernel does to a socket that is destroyed, as Cilium has it do when a Service's pod goes.
        nowhere = struct.pack("H14x", socket.AF_UNSPEC)
        assert ctypes.CDLL(None).connect(opened.fileno(), nowhere, len(nowhere)) == 0
        assert sender(b"2") is None
        assert [listener.recv(10) for _ in range(2)] == [b"1", b"2"]
        sender.close()


def test_the_first_listener_in_order_gets_the_report(tmp_path: Path) -> None:
    path = str(tmp_path / "report.sock")
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as udp:
        sender = Datagrams([(socket.AF_UNIX, path), (socket.AF_INET, udp.getsockname())])
        assert sender(b"1") is None
        assert udp.recv(10) == b"1"
        with listening(socket.AF_UNIX, path) as unix:
            assert sender(b"2") is None
            assert unix.recv(10) == b"2"
        sender.close()


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Switch to an unprivileged user in the block: root may send everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.mark.usefixtures("unprivileged")
def test_a_socket_that_this_user_may_not_use_is_denied_and_not_absent() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as unused:
        path = Path(folder, "report.sock")
        unused.bind(("127.0.0.1", 0))
        with listening(socket.AF_UNIX, str(path)):
            path.chmod(0)
            sender = Datagrams([(socket.AF_UNIX, str(path)), (socket.AF_INET, unused.getsockname())])
            assert sender(b"1") == "denied"
            sender.close()


def test_a_full_queue_drops_without_waiting(tmp_path: Path) -> None:
    path = str(tmp_path / "report.sock")
    with listening(socket.AF_UNIX, path):
        sender = Datagrams([(socket.AF_UNIX, path)])
        causes = {sender(b"x" * 1000) for _ in range(5000)}
        sender.close()
    assert causes == {None, "queue_full"}


def test_a_missing_listener_is_tried_less_often_and_a_new_one_found_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "report.sock")
    sender = Datagrams([(socket.AF_UNIX, path)])
    intervals = []
    for _ in range(12):
        assert sender(b"1") == "absent"
        intervals.append(sender.interval)
    assert intervals == [0.0] * 8 + [1.0, 2.0, 4.0, 4.0]
    with listening(socket.AF_UNIX, path):
        assert sender(b"1") is None
        assert sender.interval == 0.0
    sender.close()


@pytest.mark.parametrize("place", ["missing/report.sock", "file/report.sock", "file"])
def test_a_path_where_no_socket_can_be_is_absent(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sender = transport({"STALLSCOPE_ADDRESS": f"unix://{tmp_path}/{place}"})
    assert sender(b"1") == "absent"
    assert isinstance(sender, Datagrams)
    sender.close()


def test_a_socket_of_another_kind_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "stream.sock"))
        stream.listen()
        sender = Datagrams([(socket.AF_UNIX, str(tmp_path / "stream.sock"))])
        assert sender(b"1") == "error"
        sender.close()


def test_a_network_without_a_way_there_is_unreachable() -> None:
    # Another process, whose network has no way anywhere.
    script = """if True:
        from stallscope.training.shim.transport import transport
        print(transport({"STALLSCOPE_ADDRESS": "udp://192.0.2.1:19400"})(b"1"))
    """
    alone = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no network namespace")
    done = subprocess.run([*alone, sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "unreachable\n"


def test_a_host_that_is_not_found_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for address in ("udp://nowhere.example:1", "http://nowhere.example:1"):
        sender = transport({"STALLSCOPE_ADDRESS": address})
        assert sender(b"1") == sender(b"2") == "absent"
    assert len(caplog.records) == 1
    assert "STALLSCOPE_ADDRESS names the host 'nowhere.example', which is not found" in caplog.text


def test_a_datagram_beyond_the_kernel_s_limit_is_too_large() -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as udp:
        sender = Datagrams([(socket.AF_INET, udp.getsockname())])
        assert sender(b"x" * 70_000) == "too_large"
        sender.close()


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "unix:///" + "long" * 30,
        "unix://relative",
        "udp://",
        "udp://host:0",
        "udp://host:x",
        "ftp://host",
        "http://:80",
        "http://host/a b",
        "http://[::1",
        "udp://[::1",
        "http://[::1]80",
        "http://[::1]x",
        "udp://::1",
        "http://[]:80",
        "http://[host]:80",
        "udp://[192.0.2.1]:80",
        "http://host:70000",
        "udp://[::1]:70000",
        "http://host:-1",
        "http://host:+80",
        "udp://host: 80",
        "udp://host:8_0",
        "http://ho st",
        "http://h\x01st",
        "udp://ho[st",
        "udp://host/path",
        "http://host?path",
        "http://a..b",
    ],
)
def test_a_malformed_address_is_warned_of_and_reports_nothing(address: str, caplog: pytest.LogCaptureFixture) -> None:
    sender = transport({"STALLSCOPE_ADDRESS": address})
    assert sender(b"1") == "absent"  # which is not warned of once more
    assert f"STALLSCOPE_ADDRESS is {address!r}" in caplog.text


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("host", ("host", 1)),
        ("host:", ("host", 1)),
        ("host:65535", ("host", 65535)),
        ("192.0.2.1:80", ("192.0.2.1", 80)),
        ("[::1]", ("::1", 1)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("gpu_node-7.example.", ("gpu_node-7.example.", 1)),
    ],
)
def test_a_place_has_a_host_and_a_port(place: str, expected: tuple[str, int]) -> None:
    assert host_and_port(place, 1) == expected


def test_without_an_address_the_node_s_socket_and_the_local_exporter_are_tried() -> None:
    sender = transport({})
    assert isinstance(sender, Datagrams)
    assert [address for _, address in sender._targets] == ["/run/stallscope/report.sock", ("127.0.0.1", 19400)]


class Receiver(http.server.BaseHTTPRequestHandler):
    taken: list[tuple[str, str | None, bytes]] = []  # noqa: RUF012
    answer = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, self.headers["Authorization"], body))
        reply(self, b'{"error":"because"}', status=self.answer)


@contextlib.contextmanager
def opened(context: ssl.SSLContext | None = None) -> Iterator[int]:
    Receiver.taken, Receiver.answer = [], 200
    with handled(Receiver, context) as address:
        yield int(address.partition(":")[2])


@pytest.fixture
def receiver() -> Iterator[int]:
    with opened() as port:
        yield port


def test_a_report_is_posted_signed_and_the_token_stays_here(receiver: int) -> None:
    sender = transport({"STALLSCOPE_ADDRESS": f"http://127.0.0.1:{receiver}/", "STALLSCOPE_TOKEN": "secret"})
    assert sender(b"{}") is None
    ((path, authorization, body),) = Receiver.taken
    assert (path, authorization) == ("/api/v1/report", None)
    assert signature.is_genuine(body, signature.key("secret")[1])
    assert signature.document_of(body) == b"{}"
    assert isinstance(sender, Post)
    assert sender.interval == 5


@pytest.mark.parametrize(("answer", "cause"), [(400, "error"), (413, "too_large")])
def test_a_refused_report_says_why(answer: int, cause: str, receiver: int, caplog: pytest.LogCaptureFixture) -> None:
    Receiver.answer = answer
    assert transport({"STALLSCOPE_ADDRESS": f"http://127.0.0.1:{receiver}"})(b"{}") == cause
    assert "because" in caplog.text


def test_posting_without_a_server_is_tried_less_and_less_often() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        sender = transport({"STALLSCOPE_ADDRESS": f"http://127.0.0.1:{unused.getsockname()[1]}"})
        assert [sender(b"{}") for _ in range(6)] == ["absent"] * 6
    assert sender.interval == 80


def test_a_server_that_answers_for_ever_is_left_after_the_timeout() -> None:
    with talking(dripping(b"HTTP/1.1 400 Bad Request\r\nX: ")) as url:
        sender = transport({"STALLSCOPE_ADDRESS": url}, timeout=0.3)
        assert sender(b"{}") == "timeout"  # or this test would never end
    assert sender.interval == 10


def test_a_server_that_never_answers_is_left_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert transport({"STALLSCOPE_ADDRESS": address}, timeout=0.1)(b"{}") == "timeout"


@pytest.fixture
def known_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name for this machine, whatever the resolver knows."""
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, port, **options: look_up("127.0.0.1", port, **options))
    return "node.example"


def test_a_host_is_looked_up_once(monkeypatch: pytest.MonkeyPatch, receiver: int, known_name: str) -> None:
    sender = transport({"STALLSCOPE_ADDRESS": f"http://{known_name}:{receiver}"})
    monkeypatch.delattr(socket, "getaddrinfo")
    assert sender(b"{}") is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "STALLSCOPE_CA_FILE"])
def test_a_report_travels_over_tls(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_name: str
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", f"/CN={known_name}", "-addext", f"subjectAltName=DNS:{known_name}"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    monkeypatch.setenv(variable, str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with opened(context) as port:
        assert transport({**os.environ, "STALLSCOPE_ADDRESS": f"https://{known_name}:{port}"})(b"{}") is None
    assert [body for _, _, body in Receiver.taken] == [b"{}"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("trusted", [False, True])
def test_an_exporter_that_can_not_prove_who_it_is_gets_no_report(
    trusted: bool, tmp_path: Path, known_name: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("node", days=-1 if trusted else 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    environment = {"STALLSCOPE_CA_FILE": str(authority.certificate)} if trusted else {}
    with opened(context) as port:
        assert transport({**environment, "STALLSCOPE_ADDRESS": f"https://localhost:{port}"})(b"{}") == "error"
    assert Receiver.taken == []


def test_a_missing_file_of_authorities_is_logged_and_nothing_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = str(tmp_path / "authority.crt")
    sender = transport({"STALLSCOPE_ADDRESS": "https://127.0.0.1:1", "STALLSCOPE_CA_FILE": missing})
    assert sender(b"1") == "absent"
    assert f"STALLSCOPE_CA_FILE names {missing!r}, which can't be used" in caplog.text


def test_a_signed_report_fits_one_datagram_as_an_unsigned_one_does(tmp_path: Path) -> None:
    path = str(tmp_path / "report.sock")
    sender = transport({"STALLSCOPE_ADDRESS": f"unix://{path}", "STALLSCOPE_TOKEN": "secret"})
    assert room(sender) < MAX_BYTES == room(Datagrams([]))
    with listening(socket.AF_UNIX, path) as listener:
        assert sender(b"x" * room(sender)) is None
        assert len(listener.recv(2 * MAX_BYTES)) == MAX_BYTES
    sender.close()


def test_without_a_token_nothing_that_signs_is_loaded() -> None:
    script = "import sys; from stallscope.training.shim.transport import transport; transport({}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    own = {"stallscope.training.protocol.signature", "stallscope.training.shim.signing"}
    assert not {"hashlib", "hmac", *own} & set(loaded)


def test_a_descriptor_goes_with_the_next_report_that_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "report.sock"
    sender = Datagrams([(socket.AF_UNIX, str(path))])
    with open(os.devnull) as file:
        sender.passed = file.fileno()
        assert sender(b"no listener") == "absent"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(path))
            assert [sender(b"first"), sender(b"second")] == [None, None]
            found = [socket.recv_fds(listener, 100, 4)[:2] for _ in range(2)]
            assert [(data, len(files)) for data, files in found] == [(b"first", 1), (b"second", 0)]
            os.close(found[0][1][0])
            sender.passed = 100_000  # closed by the program
            assert sender(b"third") is None
            assert socket.recv_fds(listener, 100, 4)[:2] == (b"third", [])
    sender.close()
