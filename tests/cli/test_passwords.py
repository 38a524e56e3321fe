"""A password in an address: sent to the server, and in no error, log message or output of any command."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.common.formatting import without_password
from stallscope.model.clients.prometheus import Prometheus, PrometheusError
from stallscope.node.configuration import ConfigurationError, load
from stallscope.tools.cli import main, trace
from stallscope.tools.doctor.alerts import _received
from stallscope.tools.doctor.server import Server
from stallscope.training.shim import gpu_counters, transport
from tests.analysis.servers import answering
from tests.free_ports import free_port

SECRET = "s3cret"
NOWHERE = "127.0.0.1:1"
ADDRESSES = (
    f"http://ada:{SECRET}@{NOWHERE}",
    f"https://ada:{SECRET}@{NOWHERE}/prefix",
    f"http://ada:{SECRET}/more@{NOWHERE}",
    f"http://ada:{SECRET}@more@{NOWHERE}",
    f"http://ada:{SECRET} more@{NOWHERE}",
    f"http://ada:{SECRET}://more@{NOWHERE}",
    f"http://ada:{SECRET}#more@{NOWHERE}",
    f"http://ada:{SECRET}?more@{NOWHERE}",
    f"http://ada:{SECRET}[@{NOWHERE}",
    f"http://ada:{SECRET}@",
    f"http://:{SECRET}@{NOWHERE}",
    f"http://{SECRET}@{NOWHERE}",
    f"ftp://ada:{SECRET}@{NOWHERE}",
    f"http://ada:{SECRET}@{NOWHERE}:0",
    f"http://ada:{SECRET}@{NOWHERE}:port",
    f"ada:{SECRET}@{NOWHERE}",
    f"//ada:{SECRET}@{NOWHERE}",
)
COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "report": lambda address, folder: ["report", "--run=r", f"--prometheus.url={address}", f"--out={folder}/r.html"],
    "frames": lambda address, folder: ["frames", "--run=r", f"--prometheus.url={address}", f"--out={folder}"],
    "compare": lambda address, folder: ["compare", "r", "s", f"--prometheus.url={address}"],
    "why": lambda address, folder: ["why", "r", f"--prometheus.url={address}"],
    "doctor, Prometheus": lambda address, folder: ["doctor", "prometheus", f"--prometheus.url={address}"],
    "doctor, exporter": lambda address, folder: ["doctor", "exporter", f"--exporter.url={address}"],
    "top, exporter": lambda address, folder: ["top", "--once", f"--exporter.url={address}"],
    "trace": lambda address, folder: ["trace", "r", f"--exporter.url={address}"],
    "trace as JSON": lambda address, folder: ["trace", "r", "--json", f"--exporter.url={address}"],
    "an argument too many": lambda address, folder: ["frames", "--run=r", address],
    "an unknown flag": lambda address, folder: ["frames", "--run=r", f"--server={address}"],
    "an unknown flag of the exporter": lambda address, folder: ["exporter", f"--prometheus.server={address}"],
    "an argument too many of the exporter": lambda address, folder: ["exporter", address],
}


def problem_of(act: Callable[..., object], *arguments: object) -> str:
    """The message with which that fails; empty where it does not."""
    try:
        act(*arguments)
    except (ConfigurationError, OSError, ValueError) as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore what the exporter's command does to signals: programs that later tests start would inherit it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_the_password(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STALLSCOPE_PROMETHEUS_URL", raising=False)
    for address in ADDRESSES:
        try:
            status: object = main(COMMANDS[command](address, str(tmp_path)))
        except SystemExit as ended:
            status = ended.code
        shown = "".join(capsys.readouterr())
        assert status, (address, shown)
        assert shown
        assert SECRET not in shown, address


def test_no_variable_of_the_environment_shows_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ADDRESSES:
        monkeypatch.setenv("STALLSCOPE_PROMETHEUS_URL", address)
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(main(["report", "--run=r", f"--out={tmp_path}/r.html"]))
        shown = "".join(capsys.readouterr())
        assert ended.value.code, shown
        assert SECRET not in shown, address


@pytest.mark.parametrize("help_of", ["report", "exporter", "doctor"])
def test_help_does_not_show_the_password_of_the_environment(
    help_of: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STALLSCOPE_PROMETHEUS_URL", "STALLSCOPE_EXPORTER_PROMETHEUS_URL"):
        monkeypatch.setenv(name, ADDRESSES[0])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main([help_of, "--help"]))
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "usage" in shown.lower()
    assert SECRET not in shown


@pytest.mark.parametrize("place", ["flag", "variable", "file"])
def test_an_exporter_that_refuses_an_address_does_not_show_its_password(place: str, tmp_path: Path) -> None:
    file = tmp_path / "exporter.yml"
    refused = 0
    for address in ADDRESSES:
        file.write_text(json.dumps({"prometheus": {"url": address}}))
        arguments = {"flag": [f"--prometheus.url={address}"], "file": [f"--config.file={file}"]}.get(place, [])
        environment = {"STALLSCOPE_EXPORTER_PROMETHEUS_URL": address} if place == "variable" else {}
        said = problem_of(load, arguments, environment, {})
        refused += bool(said)
        assert SECRET not in said, address
    assert refused >= 8


def test_a_server_that_does_not_answer_is_named_without_the_password() -> None:
    for address in ADDRESSES[:2]:
        server = Prometheus(address)
        with pytest.raises(PrometheusError) as refused:
            server.query("up")
        assert SECRET not in str(refused.value), address
        assert SECRET not in server.name


def test_a_traced_exporter_gets_the_password_and_the_output_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"first_step": 5, "steps": 1, "ranks": [0], "unreachable": []}).encode()
    with answering(body=body) as (url, seen):
        address = url.replace("://", f"://ada:{SECRET}@")
        assert trace.main(["r", "--json", "--exporter.url", address]) == 0
        assert trace.main(["r", "--json", "--exporter.url", url]) == 0
    with_password, without = (headers for _path, headers, _body in seen)
    assert with_password["Authorization"] == "Basic " + base64.b64encode(f"ada:{SECRET}".encode()).decode()
    assert "Authorization" not in without
    assert SECRET not in "".join(capsys.readouterr())


def test_doctor_names_alertmanagers_without_their_passwords() -> None:
    address = f"http://ada:{SECRET}@127.0.0.1:{free_port()}/api/v2/alerts"
    server = Server(Prometheus("http://127.0.0.1:1"), "http://127.0.0.1:1", 1.0, 0.0, None)
    finding = _received(server, address, firing=True)
    assert "127.0.0.1" in str(finding)
    assert SECRET not in str(finding)


def test_a_program_that_reports_to_such_an_address_logs_it_without_the_password(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STALLSCOPE_STRICT", raising=False)
    for address in (*ADDRESSES, f"udp://ada:{SECRET}@{NOWHERE}", f"unix://ada:{SECRET}@socket"):
        transport.transport({"STALLSCOPE_ADDRESS": address}).close()
        assert SECRET not in caplog.text, address
        assert SECRET not in problem_of(gpu_counters.Exporter, address), address
    assert "STALLSCOPE_ADDRESS is 'http://127.0.0.1:1'; expected" in caplog.text


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://ada:pass@prometheus:9090/prefix", "http://prometheus:9090/prefix"),
        ("http://prometheus:9090/prefix/", "http://prometheus:9090/prefix/"),
        ("ada:pass@node1:19400", "node1:19400"),
        ("node1:19400", "node1:19400"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_user_and_password_only(address: str, shown: str) -> None:
    assert without_password(address) == shown
