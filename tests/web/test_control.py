"""Who may release GPUs and request traces: attacks of other users on a real server, by real sockets."""

from __future__ import annotations

import base64
import contextlib
import grp
import http.client
import json
import os
import pwd
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from stallscope.common.address import Address
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.sampler import Sampler
from stallscope.node.web.application import Application
from stallscope.node.web.control import Control
from stallscope.node.web.http.peer import Peer
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import Response, text
from stallscope.node.web.http.security import Security
from stallscope.node.web.http.server import Server
from tests.waiting import until
from tests.web.certificates import Authority, needs_openssl

STRANGER, TRAINER = 54321, 54322
PATHS = ["/-/release?for=2m", "/-/release", "/-/resume"]
ADDRESSES = ["127.0.0.1", "::1", "::ffff:127.0.0.1"]
REPORT = {"version": 1, "run": "resnet50", "rank": 0, "session": "a1", "sequence": 1, "pid": 0, "start": 1.7e9}
REPORT |= {"sent": 1.7e9 + 5, "state": "running", "activity": "training"}
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
POST = """
import encodings.idna, http.client, json, os, sys  # all of it before Python's own files may be closed to the user
uid, host, port, path, body = json.loads(sys.stdin.read())
os.setuid(uid)
connection = http.client.HTTPConnection(host, port, timeout=60)
connection.request("POST", path, body)
reply = connection.getresponse()
print(json.dumps([reply.status, reply.read().decode()]))
"""
SEND_AND_CLOSE = """
import encodings.idna, json, os, socket, struct, sys
uid, port, abruptly, times = json.loads(sys.stdin.read())
os.setuid(uid)
for _ in range(times):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        if abruptly:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"POST /-/release HTTP/1.1\\r\\nHost: node\\r\\n\\r\\n")
"""


class Node:
    """A server on all addresses of this machine; released is what happened."""

    def __init__(self) -> None:
        self.released: list[float | None] = []
        self.intake = Intake(IntakeSettings(socket=None, udp=None, requests=("trace", "stop")))
        self.control = Control()
        self.application = Application(
            Sampler(),
            post_report=self.intake.post,
            post_request=self.intake.post_request,
            status_page=lambda _refreshing: b"",
            release=self._release,
            control=self.control,
        )
        self.server = Server(Address("", 0), self.application.answer)
        self.server.start()

    def _release(self, seconds: float | None) -> str:
        self.released.append(seconds)
        return "released"

    def post_as(self, uid: int, path: str, body: str = "", host: str = "127.0.0.1") -> tuple[int, str]:
        """Status and body of the answer to a process of that user."""
        reported = json.dumps([uid, host, self.server.address.port, path, body])
        done = subprocess.run([sys.executable, "-c", POST], input=reported, capture_output=True, text=True, check=True)
        status, answer = json.loads(done.stdout)
        return status, answer


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.server.stop()


def reachable(host: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, contextlib.suppress(OSError):
        probe.bind((host, 0))
        return True
    return False


@as_root
@pytest.mark.parametrize("host", ADDRESSES)
def test_root_may_release_and_another_user_may_not(node: Node, host: str) -> None:
    if not reachable(host):
        pytest.skip("this machine has no such address")
    for path in PATHS:
        status, answer = node.post_as(STRANGER, path, host=host)
        assert (status, node.released) == (403, [])
        assert answer == (
            "requests to release GPUs are taken from root, this exporter's user and the members of "
            f"--web.control-group; user {STRANGER} is not one of them\n"
        )
    assert node.post_as(0, PATHS[0], host=host)[0] == 202
    assert node.released == [120.0]


@as_root
@pytest.mark.parametrize("abruptly", [True, False])
def test_a_connection_that_is_closed_at_once_is_nobodys(node: Node, abruptly: bool) -> None:
    """The kernel lists a socket that its process has closed as root's."""
    times = 100
    reported = json.dumps([STRANGER, node.server.address.port, abruptly, times])
    subprocess.run([sys.executable, "-c", SEND_AND_CLOSE], input=reported, text=True, check=True)
    with socket.create_connection(("127.0.0.1", node.server.address.port)) as last:
        last.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: node\r\n\r\n")
        assert last.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert node.released == []


@as_root
@pytest.mark.parametrize("action", ["trace", "stop"])
def test_the_user_who_trains_may_send_requests_to_the_own_run_alone(action: str, node: Node) -> None:
    for run, uid in (("resnet50", TRAINER), ("others", STRANGER), ("network", None)):
        report = json.dumps({**REPORT, "run": run}).encode()
        node.intake.registry.accept(report, "unix" if uid else "http", uid=uid)
    statuses = {
        (uid, run): node.post_as(uid, f"/api/v1/{action}", json.dumps({"run": run, "steps": 1}))[0]
        for uid in (0, TRAINER, STRANGER)
        for run in ("resnet50", "others", "network")
    }
    assert {each for each, status in statuses.items() if status == 202} == {
        *((0, run) for run in ("resnet50", "others", "network")),
        (TRAINER, "resnet50"),
        (STRANGER, "others"),
    }
    assert set(statuses.values()) == {202, 403}
    status, answer = node.post_as(STRANGER, "/api/v1/trace", '{"run": "resnet50", "steps": 1}')
    assert (status, json.loads(answer)["error"]) == (403, "not_owner")
    assert "request traces as the owner of the training" in json.loads(answer)["message"]


@as_root
def test_a_user_who_trains_under_anothers_name_requests_no_traces_of_both(node: Node) -> None:
    """Their processes look for requests under the name that they were given, not the one that is shown."""
    node.intake.registry.accept(json.dumps(REPORT).encode(), "unix", uid=STRANGER)
    node.intake.registry.accept(json.dumps({**REPORT, "session": "b1"}).encode(), "unix", uid=TRAINER)
    for uid in (STRANGER, TRAINER):
        for run in ("resnet50", f"resnet50-{TRAINER}"):
            status, answer = node.post_as(uid, "/api/v1/trace", json.dumps({"run": run, "steps": 1}))
            assert (status, json.loads(answer)["error"]) == (403, "not_owner")
    assert node.post_as(0, "/api/v1/trace", '{"run": "resnet50", "steps": 1}')[0] == 202


@as_root
def test_members_of_the_control_group_may_release_and_request_traces(node: Node) -> None:
    member = pwd.getpwnam("daemon")
    node.intake.registry.accept(json.dumps(REPORT).encode(), "unix", uid=TRAINER)
    request = '{"run": "resnet50", "steps": 1}'
    assert node.post_as(member.pw_uid, "/-/release")[0] == 403
    assert node.post_as(member.pw_uid, "/api/v1/trace", request)[0] == 403
    node.control.group = grp.getgrgid(member.pw_gid).gr_name
    assert node.post_as(member.pw_uid, "/-/release")[0] == 202
    assert node.post_as(member.pw_uid, "/api/v1/trace", request)[0] == 202
    assert node.post_as(STRANGER, "/-/release")[0] == 403
    assert node.released == [None]


def test_a_member_by_the_groups_list_counts_and_a_user_without_a_name_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = pwd.getpwnam("daemon")
    operators = grp.struct_group(("operators", "x", 4711, ["unknown-user", "daemon"]))
    monkeypatch.setattr(grp, "getgrnam", {"operators": operators}.__getitem__)
    assert Control("operators").includes(daemon.pw_uid)
    assert not Control("operators").includes(STRANGER)
    assert not Control("another").includes(daemon.pw_uid)
    assert not Control("").includes(daemon.pw_uid)


@pytest.mark.parametrize("path", ["/-/release", "/-/resume", "/api/v1/trace", "/api/v1/stop"])
@pytest.mark.parametrize("client", ["192.0.2.7", "127.0.0.1"])
def test_who_is_not_seen_by_the_kernel_needs_a_user_of_the_web_configuration(
    node: Node, path: str, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.application.allow_remote_reports = True
    node.intake.post(json.dumps(REPORT).encode())
    headers = {"x-forwarded-for": "192.0.2.7"} if client == "127.0.0.1" else {}
    request = Request("POST", path, headers, b'{"run": "resnet50", "steps": 1}')
    refused = node.application.answer(request, client)
    assert refused.status == 403
    assert b"need a user or a client certificate of --web.config.file" in refused.body
    assert "need a user or a client certificate" in caplog.text
    assert node.application.answer(request._replace(proven=True), client).status == 202


@pytest.mark.parametrize("user", ["alice:right", ""])
def test_a_password_proves_a_client_but_a_spared_request_does_not(tmp_path: Path, user: str) -> None:
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users: {{alice: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}}}\n")
    seen: list[bool] = []

    def answer(request: Request, _client: str) -> Response:
        seen.append(request.proven)
        return text(200, "")

    guarded = Security(file).guard(answer, lambda _request: not user)
    headers = {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}
    guarded(Request("POST", "/-/release", headers, b""), "192.0.2.7")
    assert seen == [bool(user)]


@needs_openssl
@pytest.mark.parametrize(
    ("kind", "shown", "status"),
    [
        ("VerifyClientCertIfGiven", True, 202),
        ("VerifyClientCertIfGiven", False, 403),
    ],
)
def test_a_verified_certificate_proves_a_client(
    tmp_path: Path, node: Node, kind: str, shown: bool, status: int
) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    own = authority.sign("client")
    file = tmp_path / "web.yml"
    file.write_text(
        f"tls_server_config: {{cert_file: node.crt, key_file: node.key, client_auth_type: {kind}"
        f", client_ca_file: {authority.certificate}}}\n"
    )
    security = Security(file)
    node.application.allow_remote_reports = True
    # As from another machine.
    guarded = security.guard(lambda request, _client: node.application.answer(request, "192.0.2.7"))
    server = Server(Address("127.0.0.1", 0), guarded, tls=security.tls)
    server.start()
    context = authority.trusting(own if shown else None)
    connection = http.client.HTTPSConnection("127.0.0.1", server.address.port, timeout=60, context=context)
    try:
        connection.request("POST", "/-/release")
        assert connection.getresponse().status == status
    finally:
        connection.close()
        server.stop()


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the client's and the server's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        yield client, server


def test_the_user_of_a_connection_is_known_until_it_is_closed() -> None:
    with connected() as (client, server):
        assert Peer(server).uid() == os.getuid()
        client.close()
        until(lambda: Peer(server).uid() is None)


@pytest.mark.parametrize(
    ("state", "uid", "inode", "expected"),
    [("01", 1002, 77, 1002), ("01", 0, 0, None), ("06", 0, 77, None), ("04", 1002, 77, None)],
    ids=["established", "closed by its process", "waiting for its end", "half closed"],
)
def test_only_a_socket_that_is_open_and_established_has_a_user(
    tmp_path: Path, state: str, uid: int, inode: int, expected: int | None
) -> None:
    with connected() as (client, server):
        ends = []
        for host, port in (client.getsockname(), client.getpeername()):
            (number,) = struct.unpack("=I", socket.inet_aton(host))
            ends.append(f"{number:08X}:{port:04X}")
        (tmp_path / "tcp").write_text(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
            f"   0: {ends[1]} {ends[0]} 01 00000000:00000000 00:00000000 00000000     0        0 55 1 0 20 4 30 10 -1\n"
            f"   1: {ends[0]} {ends[1]} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20\n"
        )
        assert Peer(server, tmp_path).uid() == expected


def test_without_the_kernels_tables_the_user_is_unknown(tmp_path: Path) -> None:
    with connected() as (_client, server):
        assert Peer(server, tmp_path).uid() is None
