"""The shim's core as one file: complete, light, and held to the shim's own tests and to real doors."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from stallscope.common.address import Address
from stallscope.common.version import __version__
from stallscope.intake.doors import UdpDoor
from stallscope.intake.service import Intake, IntakeSettings
from stallscope.protocol.report import Report
from stallscope.web.application import Application
from stallscope.web.http.server import Server

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
JOB = """
import sys
sys.path.insert(0, sys.argv[1])
import stallscope_shim as stallscope

stallscope._HTTP_TIMEOUT = 60.0  # a second may be short for a machine with much to do
for batch in stallscope.track(range(5), run="vendored", samples_per_step=4):
    with stallscope.current().phase("forward"):
        pass
    stallscope.current().report(loss=0.5, accuracy=batch)
assert not [name for name in sys.modules if name.partition(".")[0] == "stallscope"]
"""


@cache
def interpreter(version: str) -> str | None:
    """A Python of that version on this machine, None where there is none."""
    if sys.version_info[:2] == tuple(int(part) for part in version.split(".")):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for candidate in candidates:
        # What pyenv puts on the path is there for versions, too, that it isn't told to use.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, timeout=120).returncode == 0:
            return str(candidate)
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the single file."""
    folder = tmp_path_factory.mktemp("program")
    text: str = runpy.run_path(str(ROOT / "exporter/tools/vendor.py"))["build"]()
    (folder / "stallscope_shim.py").write_text(text)
    return folder


def python(*arguments: str, version: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that knows no package but the standard library's."""
    chosen = interpreter(version) if version else sys.executable
    if chosen is None:
        pytest.skip(f"there is no Python {version} on this machine")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STALLSCOPE_", "PYTHON"))}
    command = [chosen, "-S", "-W", "error", *arguments]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=120)


class Doors:
    """What an exporter takes reports through: all three doors, really open."""

    def __init__(self, folder: Path) -> None:
        self.intake = Intake(IntakeSettings(socket=folder / "report.sock", udp=("127.0.0.1", 0)))
        application = Application(
            self,
            post_report=self.intake.post,
            post_trace=self.intake.traces.post,
            status_page=lambda _refreshing: b"",
            release=lambda _seconds: "",
        )
        self.server = Server(Address("127.0.0.1", 0), application.answer)
        self.intake.start()
        self.server.start()
        (udp,) = (door for door in self.intake.doors if isinstance(door, UdpDoor))
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
        """The report that tells of the end."""
        until(lambda: any(held.report.state == "finished" for held in self.intake.registry.held))
        (held,) = self.intake.registry.held
        return held.report


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    doors = Doors(tmp_path)
    yield doors
    doors.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("door", ["unix", "udp", "http"])
def test_a_program_with_the_file_alone_reports_to_an_exporter(
    version: str, door: str, folder: Path, doors: Doors
) -> None:
    ended = python("-c", JOB, str(folder), version=version, STALLSCOPE_ADDRESS=doors.addresses[door])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    report = doors.newest()
    assert (report.run, report.state) == ("vendored", "finished")
    assert report.step_seconds is not None
    assert report.step_seconds.count >= 4
    assert report.phases["forward"].occurrences == 5
    assert (report.gauges["loss"], report.values["accuracy"]) == (0.5, 4)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_is_quick_to_import(version: str, folder: Path) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import stallscope_shim; print(*sys.modules)"
    ended = python("-c", program, str(folder), version=version)
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


def test_the_file_says_what_it_is(folder: Path) -> None:
    text = (folder / "stallscope_shim.py").read_text()
    assert f"Version {__version__}, Apache License 2.0" in text
    assert f'__version__ = "{__version__}"' in text
    assert "import stallscope." not in text
    assert all(
        line.strip().startswith("from stallscope.shim.tracing.trace ")
        for line in text.splitlines()
        if "from stallscope" in line
    )


def test_no_name_is_lost_on_the_way(folder: Path) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--select=F63,F7,F82,E9"]
    checked = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f'{name}'", "f'{_own_name}'"),
        ("f'name {name} {{name}} name'", "f'name {_own_name} {{name}} name'"),
        ("f'{{{name}}}'", "f'{{{_own_name}}}'"),
        ("""f'"name":{name(other.name)}'""", """f'"name":{_own_name(other.name)}'"""),
        ("""f'{found["name"]}'""", """f'{found["name"]}'"""),
        ("f'{surname} {names}'", "f'{surname} {names}'"),
    ],
)
def test_names_are_told_apart_in_an_f_string_s_fields_alone(text: str, expected: str) -> None:
    in_fields = runpy.run_path(str(ROOT / "exporter/tools/vendor.py"))["_in_fields"]
    assert in_fields(text, {"name": "_own_name"}) == expected


def test_traces_are_told_to_be_missing_and_the_run_goes_on(folder: Path, doors: Doors) -> None:
    environment = {"STALLSCOPE_ADDRESS": doors.addresses["unix"], "STALLSCOPE_TRACE_DIR": "/tmp/never"}
    ended = python("-c", JOB, str(folder), **environment)
    assert ended.returncode == 0
    assert "tracing failed: ModuleNotFoundError" in ended.stderr
    assert doors.newest().state == "finished"


@pytest.mark.slow
def test_the_file_passes_the_shim_s_own_tests(folder: Path) -> None:
    tests = [f"tests/shim/test_{name}.py" for name in ("run", "loader", "bad_input")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.packaging.single_file_plugin",
    ]
    environment = {**os.environ, "SINGLE_FILE": str(folder / "stallscope_shim.py"), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=290)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
