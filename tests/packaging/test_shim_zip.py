"""The shim as one file: complete, light, and reporting to a real exporter's receivers."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from exporter.tools.shim_zip import write
from stallscope.common.address import Address
from stallscope.common.version import __version__
from stallscope.node.intake.receivers import UdpReceiver
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.web.application import Application
from stallscope.node.web.http.server import Server
from stallscope.training.protocol.report import Report
from tests.waiting import until

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
JOB = """
import sys
sys.path.insert(0, sys.argv[1])
import stallscope
from stallscope.training.shim.transport import transport

transport.__kwdefaults__["timeout"] = 60.0  # a second may be short for a machine with much to do
for batch in stallscope.track(range(5), run="vendored", samples_per_step=4):
    with stallscope.current().phase("forward"):
        pass
    stallscope.current().report(loss=0.5, accuracy=batch)
assert stallscope.__file__.startswith(sys.argv[1])
"""


@cache
def interpreter(version: str) -> str | None:
    """Return the path of a Python of that version on this machine, or None."""
    if sys.version_info[:2] == tuple(int(part) for part in version.split(".")):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for candidate in candidates:
        # pyenv also puts shims on the path for versions that are not selected.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, timeout=120).returncode == 0:
            return str(candidate)
    return None


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, in a folder of its own."""
    path = tmp_path_factory.mktemp("program") / "stallscope_shim.zip"
    write(path)
    return path


def python(*arguments: str, version: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that knows no package but the standard library's."""
    chosen = interpreter(version) if version else sys.executable
    if chosen is None:
        pytest.skip(f"there is no Python {version} on this machine")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STALLSCOPE_", "PYTHON"))}
    command = [chosen, "-S", "-W", "error", *arguments]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=120)


class Receivers:
    """The three receivers of an exporter's reports, on real sockets."""

    def __init__(self, folder: Path) -> None:
        self.intake = Intake(IntakeSettings(socket=folder / "report.sock", udp=("127.0.0.1", 0)))
        application = Application(
            self,
            post_report=self.intake.post,
            post_request=self.intake.post_request,
            status_page=lambda _refreshing: b"",
            release=lambda _seconds: "",
        )
        self.server = Server(Address("127.0.0.1", 0), application.answer)
        self.intake.start()
        self.server.start()
        (udp,) = (each for each in self.intake.receivers if isinstance(each, UdpReceiver))
        self.addresses = {
            "unix": f"unix://{folder}/report.sock",
            "udp": f"udp://127.0.0.1:{udp.port}",
            "http": f"http://127.0.0.1:{self.server.address.port}",
        }

    ready = True

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes:
        return b""

    def close(self) -> None:
        self.server.stop()
        self.intake.stop(timeout=60)

    def newest(self) -> Report:
        """Wait for the final report and return it."""
        until(lambda: any(held.report.state == "finished" for held in self.intake.registry.held))
        (held,) = self.intake.registry.held
        return held.report


@pytest.fixture
def receivers(tmp_path: Path) -> Iterator[Receivers]:
    receivers = Receivers(tmp_path)
    yield receivers
    receivers.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("receiver", ["unix", "udp", "http"])
def test_a_program_with_the_file_alone_reports_to_an_exporter(
    version: str, receiver: str, archive: Path, receivers: Receivers
) -> None:
    ended = python("-c", JOB, str(archive), version=version, STALLSCOPE_ADDRESS=receivers.addresses[receiver])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    report = receivers.newest()
    assert (report.run, report.state) == ("vendored", "finished")
    assert report.step_seconds is not None
    assert report.step_seconds.count >= 4
    assert report.phases["forward"].occurrences == 5
    assert (report.gauges["loss"], report.values["accuracy"]) == (0.5, 4)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_is_quick_to_import(version: str, archive: Path) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import stallscope; stallscope.track; print(*sys.modules)"
    ended = python("-c", program, str(archive), version=version)
    assert ended.returncode == 0, ended.stderr
    heavy = {
        "asyncio",
        "dataclasses",
        "email",
        "http.client",
        "json",
        "logging",
        "re",
        "ssl",
        "typing",
        "urllib.request",
    }
    assert not heavy & set(ended.stdout.split())


def test_the_file_has_its_version(archive: Path) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import stallscope; print(stallscope.__version__)"
    assert python("-c", program, str(archive)).stdout.strip() == __version__


def test_the_file_imports_nothing_that_it_lacks(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        texts = {name: opened.read(name).decode() for name in opened.namelist()}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in texts}
    imported = {
        node.module
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "stallscope"
    }
    assert "stallscope.training.shim.run" in imported
    assert imported <= modules


def test_equal_modules_give_equal_bytes(archive: Path, tmp_path: Path) -> None:
    write(tmp_path / "second.zip")
    assert (tmp_path / "second.zip").read_bytes() == archive.read_bytes()


def test_a_program_that_may_be_traced_reports_as_well(archive: Path, receivers: Receivers, tmp_path: Path) -> None:
    environment = {"STALLSCOPE_ADDRESS": receivers.addresses["unix"], "STALLSCOPE_TRACE_DIR": str(tmp_path / "traces")}
    ended = python("-c", JOB, str(archive), **environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert receivers.newest().state == "finished"
