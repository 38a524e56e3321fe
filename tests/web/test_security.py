"""A web configuration file in force on a real server: users, headers, and what changes under way."""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import os
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bcrypt
import pytest

from stallscope.common.address import Address
from stallscope.node.web.http.configuration_file import RateLimit
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.security import Security, _RateLimiter
from stallscope.node.web.http.server import Server
from tests.web.certificates import Authority, needs_openssl

HASHED = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users: {{alice: {HASHED}}}\n"
TLS = "tls_server_config: {cert_file: node.crt, key_file: node.key}\n"


def answer(request: Request, _client: str) -> Response:
    if request.path == "/framed":
        return Response(200, TEXT, b"framed", ("X-Frame-Options: sameorigin",))
    return Response(200, TEXT, request.path.encode())


class Served:
    """A server under the file's rules."""

    def __init__(self, folder: Path, text: str) -> None:
        self.file = folder / "web.yml"
        self.file.write_text(text)
        self.security = Security(self.file, look_seconds=0.0)
        guarded = self.security.guard(answer, lambda request: request.path == "/spared")
        self.server = Server(Address("127.0.0.1", 0), guarded, tls=self.security.tls)
        self.server.start()

    def change(self, text: str) -> None:
        """Replace the file as Kubernetes and editors do: at once, and never half of it."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    def get(
        self, path: str = "/metrics", user: str = "", context: ssl.SSLContext | None = None
    ) -> http.client.HTTPResponse:
        port = self.server.address.port
        if context is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        headers = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            reply.read()
            return reply


Serve = Callable[[str], Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(text: str) -> Served:
            served = Served(tmp_path, text)
            stack.callback(served.server.stop)
            return served

        yield start


@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy", "/-/ready"])
def test_users_must_authenticate_everywhere_health_included_as_in_the_toolkit(path: str, serve: Serve) -> None:
    served = serve(USERS)
    assert served.get(path, "alice:right").status == 200
    refused = served.get(path)
    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"] == "Basic"


def test_what_says_otherwise_who_sends_it_needs_no_user(serve: Serve) -> None:
    assert serve(USERS).get("/spared").status == 200


def test_unknown_users_and_wrong_passwords_are_refused_and_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(USERS)
    assert [served.get(user=user).status for user in ("mallory:right", "alice:wrong", "alice:")] == [401] * 3
    (line,) = caplog.messages
    assert re.fullmatch(r"refused a client at 127\.0\.0\.1: \S+ has no user with that password", line)


def test_a_client_that_names_no_user_is_logged_too(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(USERS)
    assert [served.get().status for _ in range(3)] == [401] * 3
    (line,) = caplog.messages
    assert re.fullmatch(r"refused a client at 127\.0\.0\.1: the request names no user, and \S+ requires one", line)


def test_a_storm_of_guesses_keeps_no_known_user_waiting(serve: Serve) -> None:
    dear = bcrypt.hashpw(b"right", bcrypt.gensalt(9)).decode()
    served = serve(f"basic_auth_users: {{alice: {dear}}}\n")
    assert served.get(user="alice:right").status == 200
    with ThreadPoolExecutor(12) as pool:
        guesses = [pool.submit(served.get, "/metrics", f"alice:{number}") for number in range(60)]
        assert {served.get(user="alice:right").status for _ in range(10)} == {200}
        assert {guess.result().status for guess in guesses} <= {401, 429}


def test_headers_are_added_but_never_twice(serve: Serve) -> None:
    served = serve(
        "http_server_config: {headers: {X-Frame-Options: deny, X-Content-Type-Options: nosniff, X-XSS-Protection: '0'}}"
    )
    plain = served.get()
    assert plain.headers.get_all("X-Frame-Options") == ["deny"]
    assert plain.headers.get_all("X-Content-Type-Options") == ["nosniff"]
    assert plain.headers.get_all("X-XSS-Protection") == ["0"]
    assert served.get("/framed").headers.get_all("X-Frame-Options") == ["sameorigin"]


def test_a_refusal_has_the_headers_too(serve: Serve) -> None:
    refused = serve(USERS + "http_server_config: {headers: {X-Frame-Options: deny}}").get()
    assert (refused.status, refused.headers["X-Frame-Options"]) == (401, "deny")


def test_users_who_come_and_go_count_from_the_next_request_on(serve: Serve) -> None:
    served = serve(USERS)
    assert served.get(user="alice:right").status == 200
    served.change(USERS.replace("alice", "bob"))
    assert served.get(user="alice:right").status == 401
    assert served.get(user="bob:right").status == 200


def test_a_broken_file_keeps_what_is_in_force_and_a_mended_one_counts(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(USERS)
    served.change("basic_auth_users: {bob: secret}\n")
    assert [served.get(user="alice:right").status for _ in range(3)] == [200] * 3
    served.file.unlink()
    assert served.get(user="alice:right").status == 200
    first, second = caplog.messages
    assert "the previous one stays in force" in first
    assert "bcrypt hash" in first
    assert "can't be read" in second
    served.change(USERS.replace("alice", "bob"))
    assert served.get(user="bob:right").status == 200


def test_a_file_that_is_emptied_before_it_is_written_grants_no_access(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(USERS)
    served.change("")
    assert [served.get().status, served.get(user="alice:right").status] == [401, 200]
    assert "basic_auth_users: missing, and set in the configuration in force; set it again, or" in caplog.messages[0]
    served.change(USERS.replace("alice", "bob"))
    assert served.get(user="bob:right").status == 200


def test_a_look_finds_nothing_before_its_time_but_a_reload_does(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("")
    security = Security(file, look_seconds=3600.0)
    guarded = security.guard(answer)
    file.write_text(USERS)
    request = Request("GET", "/", {}, b"")
    assert guarded(request, "127.0.0.1").status == 200
    security.read_if_changed()
    assert guarded(request, "127.0.0.1").status == 401


@needs_openssl
def test_a_renewed_certificate_is_shown_to_the_next_connection(serve: Serve, tmp_path: Path) -> None:
    old = Authority(tmp_path, "old")
    old.sign("node")
    served = serve(TLS)
    assert served.get(context=old.trusting()).status == 200
    new = Authority(tmp_path, "new")
    new.sign("node")
    assert served.get(context=new.trusting()).status == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        served.get(context=old.trusting())


@needs_openssl
def test_a_certificate_outside_its_validity_is_logged_when_it_is_read(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    authority.sign("node", days=-1)
    served = serve(TLS)
    (line,) = caplog.messages
    assert line.startswith(f"clients will refuse this exporter: {tmp_path / 'node.crt'} counts from 20")
    authority.sign("node")
    served.security.read_if_changed()
    assert len(caplog.messages) == 1


@needs_openssl
def test_a_certificate_whose_key_has_not_come_yet_keeps_the_old_pair(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    served = serve(TLS)
    (other,) = (tmp_path / "other.crt",)
    authority.sign("other")
    shutil.copy(other, tmp_path / "node.crt")
    assert served.get(context=authority.trusting()).status == 200
    assert "the previous one stays in force" in caplog.text
    caplog.set_level(logging.INFO)
    shutil.copy(tmp_path / "other.key", tmp_path / "node.key")
    assert served.get(context=authority.trusting()).status == 200
    assert "web configuration reloaded" in caplog.text


@needs_openssl
def test_a_secret_that_kubernetes_swaps_behind_a_link_is_noticed(serve: Serve, tmp_path: Path) -> None:
    authorities = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        authorities.append(Authority(tmp_path / name))
        authorities[-1].sign("node")
    (tmp_path / "data").symlink_to("first")
    for kind in ("crt", "key"):
        (tmp_path / f"node.{kind}").symlink_to(f"data/node.{kind}")
    served = serve(TLS)
    assert served.get(context=authorities[0].trusting()).status == 200
    (tmp_path / "swap").symlink_to("second")
    os.replace(tmp_path / "swap", tmp_path / "data")  # noqa: PTH105 - as the kubelet does it
    assert served.get(context=authorities[1].trusting()).status == 200


@needs_openssl
def test_tls_is_not_dropped_under_way(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    served = serve(TLS)
    served.change(USERS)
    assert served.get(context=authority.trusting()).status == 200
    assert "tls_server_config: missing, and set in the configuration in force" in caplog.text


STRICT = f"""\
tls_server_config:
  cert_file: node.crt
  key_file: node.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: authority.crt
  client_allowed_sans:
  - localhost
  - node1.example.org
  min_version: TLS13
  curve_preferences: [CurveP256]
rate_limit:
  interval: 100ms
  burst: 100
basic_auth_users:
  alice: {HASHED}
"""


@needs_openssl
def test_no_beginning_of_the_file_in_force_lets_anyone_in(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    served = serve(STRICT)
    assert served.security.tls is not None
    context = served.security.tls.context
    for length in range(len(STRICT)):
        served.file.write_text(STRICT[:length])
        served.security.read_if_changed()
        assert served.security.tls.context is context, STRICT[:length]
        assert not served.security.is_current
    assert caplog.records
    client = authority.trusting(authority.sign("client"))
    assert served.get(context=client).status == 401
    assert served.get(user="alice:right", context=client).status == 200
    for stranger in (authority.trusting(), authority.trusting(Authority(tmp_path, "x", "DNS:localhost").sign("s"))):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served.get(user="alice:right", context=stranger)
    served.file.write_text(STRICT.replace("alice", "carol"))
    served.security.read_if_changed()
    assert served.security.is_current
    assert served.get(user="carol:right", context=client).status == 200


@pytest.mark.parametrize(
    ("removed", "name"),
    [
        ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.crt\n", "client_auth_type"),
        ("  client_ca_file: authority.crt\n", "client_ca_file"),
        ("  - localhost\n  - node1.example.org\n", "client_allowed_sans"),
        ("  client_allowed_sans:\n  - localhost\n  - node1.example.org\n", "client_allowed_sans"),
        ("  min_version: TLS13\n", "min_version"),
        ("  curve_preferences: [CurveP256]\n", "curve_preferences"),
        ("rate_limit:\n  interval: 100ms\n  burst: 100\n", "rate_limit"),
        (STRICT[STRICT.index("basic_auth_users") :], "basic_auth_users"),
    ],
    ids=("kind", "authorities", "names", "list of names", "version", "curves", "rate", "users"),
)
@needs_openssl
def test_a_setting_that_keeps_clients_out_is_removed_by_a_restart_alone(
    removed: str, name: str, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Authority(tmp_path).sign("node")
    text = STRICT
    if name == "client_auth_type":
        text = text.replace("  client_allowed_sans:\n  - localhost\n  - node1.example.org\n", "")
    served = serve(text)
    for _ in range(3):
        served.change(text.replace(removed, ""))
        served.security.read_if_changed()
        assert not served.security.is_current
    (line,) = caplog.messages
    assert name in line
    assert line.endswith(
        "missing, and set in the configuration in force; set it again, or restart the exporter to do without"
    )
    Security(served.file)  # as the restarted exporter reads it


@needs_openssl
@pytest.mark.parametrize("what", ["vanishes", "is a folder", "is another's", "is too long"])
def test_a_file_that_can_not_be_read_any_more_leaves_client_certificates_required(
    what: str, serve: Serve, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    served = serve(STRICT)
    served.file.unlink()
    if what == "is a folder":
        served.file.mkdir()
    elif what == "is another's":
        served.file.symlink_to("/proc/1/mem")
    elif what == "is too long":
        served.file.write_text("#" * 100_000)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        served.get(user="alice:right", context=authority.trusting())
    assert served.get(user="alice:right", context=authority.trusting(authority.sign("client"))).status == 200
    assert not served.security.is_current


@needs_openssl
def test_authorities_that_are_half_written_leave_those_in_force(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    client = authority.trusting(authority.sign("client"))
    served = serve(STRICT)
    whole = authority.certificate.read_text()
    for length in (0, 10, len(whole) // 2):
        authority.certificate.write_text(whole[:length])
        assert served.get(user="alice:right", context=client).status == 200
        assert not served.security.is_current


def test_a_rate_limit_refuses_what_exceeds_it_and_goes_on_after_a_reload() -> None:
    now = [100.0]
    limiter = _RateLimiter(RateLimit(interval=10.0, burst=2), lambda: now[0])
    assert [limiter.is_allowed() for _ in range(3)] == [True, True, False]
    now[0] += 9.0
    assert not limiter.is_allowed()
    now[0] += 1.0
    assert [limiter.is_allowed() for _ in range(2)] == [True, False]
    now[0] += 1000.0
    assert [limiter.is_allowed() for _ in range(3)] == [True, True, False]


def test_a_reload_does_not_fill_the_bucket_of_the_rate_limit(serve: Serve) -> None:
    served = serve("rate_limit: {interval: 24h, burst: 2}\n")
    assert [served.get().status for _ in range(2)] == [200, 200]
    served.change("rate_limit: {interval: 24h, burst: 2}\n# again\n")
    served.security.read_if_changed()
    assert served.get().status == 429
    served.change("rate_limit: {interval: 24h, burst: 3}\n")
    assert served.get().status == 200


@needs_openssl
def test_tls_is_not_turned_on_under_way(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = serve("")
    Authority(tmp_path).sign("node")
    served.change(TLS)
    assert served.get().status == 200
    assert "tls_server_config: new; restart the exporter to turn TLS on" in caplog.text


@needs_openssl
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_in_with_certificate_user_and_password(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    certificate, key = authority.sign("client")
    strict = "client_auth_type: RequireAndVerifyClientCert, client_ca_file: authority.crt"
    served = serve(TLS.replace("}", f", {strict}}}") + USERS)
    command = ["curl", "--silent", "--show-error", "--fail", "--cacert", str(authority.certificate)]
    command += ["--cert", str(certificate), "--key", str(key), "--user", "alice:right", f"{served.server.url}metrics"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == b"/metrics"


def test_many_threads_may_look_while_the_file_changes(serve: Serve) -> None:
    served = serve(USERS)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            served.change(USERS + "# again\n")
            served.change(USERS)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(lambda _: served.get(user="alice:right").status, range(100)))
    finally:
        stop.set()
        changing.join()
    assert statuses <= {200, 429}
    assert served.get(user="alice:right").status == 200
