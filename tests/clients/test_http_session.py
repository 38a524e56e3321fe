"""Credentials and proxies of requests: the address decides, and loopback addresses are requested directly."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.common.address import is_this_machine
from stallscope.model.clients.alertmanager import Alertmanager
from stallscope.model.clients.prometheus import Prometheus, PrometheusError
from tests.free_ports import free_port
from tests.handled import handled, reply

NETRC_ENTRIES = ("machine 127.0.0.1 login other password wrong", "default login other password wrong")
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


class Received(NamedTuple):
    path: str
    authorization: str


class Server(NamedTuple):
    port: int
    received: list[Received]


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server that responds as Prometheus and Alertmanager do, also to a client that uses it as a proxy."""
    received: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer({"status": "success", "data": {"resultType": "vector", "result": []}})

        def do_GET(self) -> None:
            self._answer([])

        def _answer(self, document: object) -> None:
            received.append(Received(self.path, self.headers.get("Authorization", "")))
            reply(self, json.dumps(document).encode())

    with handled(Handler) as address:
        yield Server(int(address.rpartition(":")[2]), received)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*PROXIES, "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)


def query(url: str) -> None:
    client = Prometheus(url, timeout=30)
    try:
        client.query("up")
    finally:
        client.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "entry", ["machine 127.0.0.1 login other password wrong", "default login other password wrong"]
)
@pytest.mark.parametrize("place", ["home", "variable"])
def test_credentials_of_the_address_win_over_those_of_netrc(
    server: Server, entry: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text(entry)
    (tmp_path / ".netrc").chmod(0o600)
    if place == "variable":
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    query(f"http://ops:right@127.0.0.1:{server.port}")
    assert [each.authorization for each in server.received] == [basic("ops", "right")]


@pytest.mark.parametrize(
    "entry", ["machine 127.0.0.1 login other password wrong", "default login other password wrong"]
)
def test_no_password_of_netrc_is_sent_to_an_address_without_credentials(
    server: Server, entry: str, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text(entry)
    (tmp_path / ".netrc").chmod(0o600)
    query(f"http://127.0.0.1:{server.port}")
    Alertmanager(f"http://127.0.0.1:{server.port}", timeout=30).alerts()
    assert [each.authorization for each in server.received] == ["", ""]


@pytest.mark.parametrize(
    ("written", "user", "password"),
    [("ops:p%40ss%2Fw", "ops", "p@ss/w"), ("ops", "ops", ""), (":only", "", "only"), ("%C3%BC:%E2%82%AC", "ü", "€")],
)
def test_credentials_are_sent_as_the_address_names_them(server: Server, written: str, user: str, password: str) -> None:
    query(f"http://{written}@127.0.0.1:{server.port}")
    assert server.received[0].authorization == basic(user, password)


@pytest.mark.parametrize("variable", PROXIES)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_on_this_machine_is_requested_without_a_proxy(
    server: Server, variable: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens at the proxy's address: a request to it fails.
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    query(f"http://{host}:{server.port}")
    Alertmanager(f"http://{host}:{server.port}", timeout=30).alerts()
    assert len(server.received) == 2


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_another_machine_is_requested_through_the_proxy_of_the_environment(
    server: Server, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{server.port}")
    query("http://prometheus.example:9090")
    assert [each.path for each in server.received] == ["http://prometheus.example:9090/api/v1/query"]


def test_no_proxy_names_machines_that_are_requested_directly(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("NO_PROXY", "prometheus.invalid")
    with pytest.raises(PrometheusError):
        query("http://prometheus.invalid:9090")
    assert server.received == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("prometheus.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", True),
        ("", False),
        ("localhost.example", False),
        ("128.0.0.1", False),
        ("fe80::1%eth0", False),
        ("prometheus", False),
    ],
)
def test_hosts_that_are_this_machine(host: str, expected: bool) -> None:
    assert is_this_machine(host) is expected
