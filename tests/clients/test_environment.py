"""Proxies and passwords of the environment: the Alertmanager and exporter clients, the shim, the script for actions."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from stallscope.model.clients.alertmanager import Alertmanager
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.training.shim.http_transport import Post
from stallscope.training.shim.transport import transport
from tests.handled import handled, reply

ACT = Path(__file__).parents[2] / "alerts/actions/act.py"
PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
VECTOR = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()
NETRC = {
    "an entry for the host": "machine 127.0.0.1 login other password stolen\n",
    "a default entry": "default login other password stolen\n",
    "an entry without a user": "machine 127.0.0.1 password stolen\n",
}


class Recorder:
    """A server, or a proxy, that records each request's first words and credentials."""

    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen.put((f"{self.command} {self.path}", self.headers["Authorization"]))
                is_alerts = self.path.endswith("/alerts")
                reply(self, b"[]" if is_alerts else VECTOR)

            do_GET = do_POST = do_CONNECT = answer  # noqa: N815 - names of the library

        self.handler = Handler

    def requests(self) -> list[str]:
        return [request for request, _ in self.drain()]

    def drain(self) -> list[tuple[str, str | None]]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.seen.get_nowait())
        return found


@pytest.fixture
def server() -> Iterator[tuple[str, Recorder]]:
    recorder = Recorder()
    with handled(recorder.handler) as address:
        yield address, recorder


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Recorder]]:
    """A proxy that records; no variable names it yet."""
    for name in (*PROXY_VARIABLES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    with handled(recorder.handler) as address:
        yield f"http://{address}", recorder


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)


def netrc(folder: Path, text: str) -> None:
    path = folder / ".netrc"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def fetch(client: str, url: str) -> None:
    """Send a request with a client of each kind."""
    if client == "Alertmanager":
        Alertmanager(url, timeout=60).alerts()
    else:
        exporter = ExporterClient(url, timeout=60)
        exporter.read("/metrics")
        exporter.close()


CLIENTS = ("Alertmanager", "exporter")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", NETRC)
def test_the_address_s_credentials_win_over_netrc(
    client: str, case: str, server: tuple[str, Recorder], tmp_path: Path
) -> None:
    netrc(tmp_path, NETRC[case])
    address, recorder = server
    fetch(client, f"http://ops:right@{address}")
    assert [credentials for _, credentials in recorder.drain()] == [basic("ops", "right")]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", NETRC)
def test_without_credentials_in_the_address_none_are_sent(
    client: str, case: str, server: tuple[str, Recorder], tmp_path: Path
) -> None:
    netrc(tmp_path, NETRC[case])
    address, recorder = server
    fetch(client, f"http://{address}")
    assert [credentials for _, credentials in recorder.drain()] == [None]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_variable_netrc_names_no_file_for_the_clients(
    client: str, server: tuple[str, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc(tmp_path, NETRC["a default entry"])
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    address, recorder = server
    fetch(client, f"http://{address}")
    assert [credentials for _, credentials in recorder.drain()] == [None]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("written", "user", "password"),
    [("ops:p%40ss%3Aword", "ops", "p@ss:word"), ("ops", "ops", ""), ("%C3%BCser:%E2%82%AC", "üser", "€")],
    ids=["escaped characters", "a user alone", "characters outside Latin-1"],
)
def test_credentials_of_the_address_are_sent_as_they_are_meant(
    client: str, written: str, user: str, password: str, server: tuple[str, Recorder]
) -> None:
    address, recorder = server
    fetch(client, f"http://{written}@{address}")
    assert [credentials for _, credentials in recorder.drain()] == [basic(user, password)]


@pytest.mark.parametrize("variable", PROXY_VARIABLES)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_a_client_uses_no_proxy_for_this_machine(
    variable: str,
    client: str,
    host: str,
    server: tuple[str, Recorder],
    proxy: tuple[str, Recorder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, direct = server
    monkeypatch.setenv(variable, proxy[0])
    monkeypatch.setenv("NO_PROXY", "")
    port = address.rpartition(":")[2]
    fetch(client, f"http://{host}:{port}")
    assert proxy[1].requests() == []
    assert len(direct.requests()) == 1


def test_another_machine_is_requested_through_a_proxy_except_if_it_is_an_exporter(
    proxy: tuple[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy[0])
    monkeypatch.setenv("https_proxy", proxy[0])
    with pytest.raises(ExporterError):
        fetch("exporter", "http://node.invalid:19400")
    assert proxy[1].requests() == []
    fetch("Alertmanager", "http://node.invalid:9093")
    assert proxy[1].requests() == ["GET http://node.invalid:9093/api/v2/alerts"]


@pytest.mark.parametrize(
    "url", ["http://127.9.8.7:9", "http://[::1]:9", "https://localhost:9", "https://127.0.0.1:9", "https://[::1]:9"]
)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_uses_no_proxy_for_any_loopback_address_also_with_tls(
    url: str, client: str, proxy: tuple[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in PROXY_VARIABLES:
        monkeypatch.setenv(variable, proxy[0])
    with pytest.raises(Exception, match=r"can't be reached|closed the connection"):
        fetch(client, url)
    assert proxy[1].requests() == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_shim_reports_without_a_proxy(
    host: str, server: tuple[str, Recorder], proxy: tuple[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in PROXY_VARIABLES:
        monkeypatch.setenv(variable, proxy[0])
    port = server[0].rpartition(":")[2]
    send = transport({**os.environ, "STALLSCOPE_ADDRESS": f"http://{host}:{port}"}, timeout=30)
    assert isinstance(send, Post)
    assert send(b"{}") is None
    assert server[1].requests() == ["POST /api/v1/report"]
    assert proxy[1].requests() == []


def act(folder: Path, settings: Mapping[str, Any]) -> str:
    """Run the script for actions on one alert; return its errors."""
    action = {"name": "end it", "alerts": ["A"], "command": ["true"], "query": "up"}
    (folder / "actions.json").write_text(
        json.dumps({"dry_run": False, "log": str(folder / "log"), "actions": [action], **settings})
    )
    alert = {"status": "firing", "labels": {"alertname": "A", "run": "r"}, "startsAt": "2026-01-01T00:00:00Z"}
    (folder / "notification.json").write_text(json.dumps({"alerts": [alert]}))
    return subprocess.run(
        [sys.executable, str(ACT), str(folder / "actions.json")],
        env={**os.environ, "NOTIFICATION": str(folder / "notification.json")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stderr


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "ops:p%40ss@127.0.0.1"])
def test_the_script_for_actions_queries_this_machine_without_a_proxy(
    variable: str,
    host: str,
    server: tuple[str, Recorder],
    proxy: tuple[str, Recorder],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    netrc(tmp_path, NETRC["a default entry"])
    monkeypatch.setenv(variable, proxy[0])
    port = server[0].rpartition(":")[2]
    assert act(tmp_path, {"prometheus_url": f"http://{host}:{port}"}) == ""
    assert proxy[1].requests() == []
    expected = basic("ops", "p@ss") if "@" in host else None
    assert server[1].drain() == [("POST /api/v1/query", expected)]


def test_the_script_for_actions_uses_the_proxy_for_another_machine(
    proxy: tuple[str, Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("http_proxy", proxy[0])
    act(tmp_path, {"prometheus_url": "http://127.prometheus.invalid:9090"})
    assert proxy[1].requests() == ["POST http://127.prometheus.invalid:9090/api/v1/query"]


def test_the_script_for_actions_shows_no_password(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        errors = act(tmp_path, {"prometheus_url": f"http://ops:secret@127.0.0.1:{closed.getsockname()[1]}"})
    assert "Connection refused" in errors
    assert "secret" not in errors
