"""Trial reports through the shim's own ways to a real exporter, which holds nothing of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stallscope.tools.doctor.reports import PART
from stallscope.training.shim import tolerance
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import Served, findings
from tests.free_ports import free_port
from tests.waiting import until

TOKEN = "a token that is long enough"
PATIENT = {"arrival_timeout": 45.0, "page_interval": 0.3}
"""Three of the exporter's pages."""


@dataclass(frozen=True)
class RealExporter:
    url: str
    socket: Path
    udp: str

    def page(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            return str(reply.read().decode())


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealExporter]:
    """One that takes unsigned reports through its socket alone."""
    folder = tmp_path_factory.mktemp("exporter")
    (folder / "tokens").touch(0o600)
    (folder / "tokens").write_text(f"{TOKEN}\n")
    port = free_port()
    found = RealExporter(f"http://127.0.0.1:{port}", folder / "report.sock", f"udp://127.0.0.1:{port}")
    command = [
        *(sys.executable, "-m", "stallscope", "exporter", f"--web.listen-address=127.0.0.1:{port}"),
        *(f"--report.unix-socket={found.socket}", f"--report.udp-address=127.0.0.1:{port}"),
        *(f"--report.token-file={folder / 'tokens'}", "--collector.disable-defaults", "--sampling.interval=100ms"),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STALLSCOPE_")}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=kept) as process:
        try:
            until(lambda: counts(found))
            yield found
        finally:
            process.terminate()


def counts(exporter: RealExporter) -> bool:
    with contextlib.suppress(OSError):
        return "stallscope_exporter_reports_total" in exporter.page()
    return False


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_logged", set())


def tried(make_subject: MakeSubject, exporter: str | None = None, **environment: str) -> tuple[str, str]:
    named = {} if exporter is None else {"exporter_url": exporter}
    (found,) = next(iter(findings(PART, make_subject(environment=environment, **PATIENT, **named)).values()))
    return found.status, found.message


@pytest.mark.parametrize("way", ["unix", "udp", "http"])
def test_a_report_that_is_taken_is_ok_by_every_way_and_leaves_no_run(
    way: str, exporter: RealExporter, make_subject: MakeSubject
) -> None:
    address = {"unix": f"unix://{exporter.socket}", "udp": exporter.udp, "http": exporter.url}[way]
    token = {} if way == "unix" else {"STALLSCOPE_TOKEN": TOKEN}
    status, message = tried(make_subject, exporter.url, STALLSCOPE_ADDRESS=address, **token)
    assert (status, "accepted a test report" in message) == ("ok", True)
    assert "\nstallscope_exporter_runs 0\n" in exporter.page()
    assert "stallscope-doctor" not in exporter.page()


def test_a_report_that_is_refused_fails_with_the_exporter_s_reason(
    exporter: RealExporter, make_subject: MakeSubject
) -> None:
    status, message = tried(make_subject, exporter.url, STALLSCOPE_ADDRESS=exporter.udp)
    assert (status, "(unsigned)" in message) == ("failed", True)
    status, message = tried(make_subject, exporter.url, STALLSCOPE_ADDRESS=exporter.url)
    assert (status, "the report is not signed" in message) == ("failed", True)


def test_a_report_that_reaches_another_exporter_fails(
    exporter: RealExporter, served: Served, make_subject: MakeSubject
) -> None:
    served.texts["/metrics"] = 'stallscope_exporter_reports_total{transport="unix"} 5\n'
    subject = make_subject(
        exporter_url=served.url, arrival_timeout=0.4, environment={"STALLSCOPE_ADDRESS": f"unix://{exporter.socket}"}
    )
    (found,) = findings(PART, subject)["trial"]
    assert (found.status, "counted none" in found.message) == ("failed", True)


def test_an_arrival_that_the_page_does_not_show_is_a_warning(exporter: RealExporter, make_subject: MakeSubject) -> None:
    status, message = tried(make_subject, STALLSCOPE_ADDRESS=f"unix://{exporter.socket}")
    assert (status, "its arrival is unknown" in message) == ("warning", True)


@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"STALLSCOPE_ADDRESS": "unix:///nowhere/report.sock"}, "failed", "(absent)"),
        ({"STALLSCOPE_ADDRESS": "tcp://localhost"}, "failed", "expected unix:///path"),
        ({"STALLSCOPE_ADDRESS": "tcp://localhost", "STALLSCOPE_STRICT": "1"}, "failed", "expected unix:///path"),
        ({"STALLSCOPE_ADDRESS": "unix:///s", "STALLSCOPE_TOKEN_FILE": "/nowhere"}, "failed", "holds no token"),
        ({"STALLSCOPE_DISABLE": "1"}, "skipped", "STALLSCOPE_DISABLE"),
    ],
)
def test_an_environment_that_cannot_work_is_reported(
    environment: dict[str, str], status: str, words: str, make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "STALLSCOPE_STRICT" in environment:
        monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    found = tried(make_subject, **environment)
    assert (found[0], words in found[1]) == (status, True), found
