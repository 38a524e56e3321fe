"""The units are valid and confined, install below a folder, and the exporter runs with their settings and limits."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.node.configuration import load
from stallscope.tools.cli.exporter import _STUCK_STATUS
from tests.free_ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)  # the script builds and installs packages
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
EXPORTER = FOLDER / "stallscope-exporter.service"
MOST_EXPOSED = 3.0
# Set the restriction of MemoryDenyWriteExecute= (PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN), then run the program.
LOCKED = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    raise SystemExit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""

# A stand-in for the interpreter: it creates virtual environments whose interpreter does nothing.
EMPTY_ENVIRONMENT = """#!/bin/sh
[ "$1" != -c ] || exec echo /usr/bin/python3
for folder; do :; done
mkdir -p "$folder/bin" && printf '#!/bin/sh\\n' > "$folder/bin/python" && chmod 755 "$folder/bin/python"
"""


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name}, a part of systemd, is not on this machine")
    return found


def settings(unit: Path) -> dict[str, list[str]]:
    """Return every setting of a unit with its values in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root folder after the script has installed into it."""
    folder = tmp_path_factory.mktemp("root")
    environment = {**os.environ, "DESTDIR": str(folder), "PYTHON": sys.executable}
    subprocess.run(["sh", str(FOLDER / "install.sh")], env=environment, check=True, capture_output=True, timeout=840)
    return folder


def installed_units(root: Path) -> list[str]:
    """Return the installed units, with the program's path below the root folder."""
    paths = sorted((root / "usr/lib/systemd/system").glob("*.service"))
    for path in paths:
        path.write_text(path.read_text().replace("=/opt/stallscope", f"={root}/opt/stallscope"))
    assert [path.name for path in paths] == [path.name for path in UNITS]
    return [str(path) for path in paths]


@pytest.mark.nightly
def test_systemd_verifies_every_installed_unit_without_a_warning(root: Path) -> None:
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", *installed_units(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_has_the_exposure_of_the_readme_and_less_than_the_limit(unit: Path) -> None:
    done = subprocess.run(
        [tool("systemd-analyze"), "security", "--no-pager", "--offline=true", f"--threshold={MOST_EXPOSED:.0f}0", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd is older than 250 and scores no files")
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) < MOST_EXPOSED
    assert done.returncode == 0
    (said,) = re.findall(
        rf"^\| `{re.escape(unit.name)}` \| (\d\.\d) \|", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
    # The score differs a little between versions; the README has the score of 252.
    assert float(found[1]) == pytest.approx(float(said), abs=0.5)


def test_the_exporter_has_no_capability_and_only_nvidias_devices() -> None:
    found = settings(EXPORTER)
    assert found["User"] == ["stallscope"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == [""]
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["ProtectSystem"] == ["strict"]
    assert found["DevicePolicy"] == ["closed"]
    assert found["DeviceAllow"] == ["char-nvidia* rw"]


def test_no_setting_hides_measured_data() -> None:
    for unit in UNITS:
        assert not settings(unit).keys() & {
            "PrivateDevices",
            "ProtectProc",
            "ProcSubset",
            "PrivateNetwork",
            "PrivateUsers",
        }


def test_a_hung_driver_leads_to_a_restart_and_an_invalid_setting_does_not() -> None:
    found = settings(EXPORTER)
    assert found["Restart"] == ["on-failure"]
    (prevented,) = found["RestartPreventExitStatus"]
    assert prevented == "2"
    assert str(_STUCK_STATUS) not in prevented.split()
    assert load([f"--config.file={FOLDER / 'exporter.yml'}"], {}, {}).exit_after_hang > 0


def test_the_settings_name_only_folders_that_the_unit_creates() -> None:
    configured = load([f"--config.file={FOLDER / 'exporter.yml'}"], {}, {})
    found = settings(EXPORTER)
    assert configured.report_state_file is not None
    assert configured.report_state_file.parent == Path("/var/lib", *found["StateDirectory"])
    assert configured.report_unix_socket is not None
    assert configured.report_unix_socket.parent == Path("/run", *found["RuntimeDirectory"])
    assert found["RuntimeDirectoryPreserve"] == ["yes"]


@pytest.mark.nightly
def test_user_and_report_folder_are_created_at_boot(root: Path) -> None:
    subprocess.run([tool("systemd-sysusers"), f"--root={root}"], check=True, capture_output=True, timeout=60)
    (account,) = [line.split(":") for line in (root / "etc/passwd").read_text().splitlines() if "stallscope" in line]
    assert account[0] == settings(EXPORTER)["User"][0]
    assert account[-1].endswith("nologin")
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder that is another user's")
    subprocess.run([tool("systemd-tmpfiles"), f"--root={root}", "--create", "stallscope.conf"], check=True, timeout=60)
    folder = (root / "run/stallscope").stat()
    assert (stat.S_IMODE(folder.st_mode), folder.st_uid, folder.st_gid) == (0o755, int(account[2]), int(account[3]))


def test_a_second_installation_keeps_the_settings(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(EMPTY_ENVIRONMENT)
    python.chmod(0o755)
    environment = {**os.environ, "DESTDIR": str(tmp_path / "root"), "PYTHON": str(python)}
    kept = tmp_path / "root/etc/stallscope/exporter.yml"
    for expected in ((FOLDER / "exporter.yml").read_text(), "log: {level: debug}\n"):
        subprocess.run(["sh", str(FOLDER / "install.sh")], env=environment, check=True, timeout=60)
        assert kept.read_text() == expected
        kept.write_text("log: {level: debug}\n")


def test_an_interpreter_in_a_home_folder_is_rejected(tmp_path: Path) -> None:
    assert settings(EXPORTER)["ProtectHome"] == ["yes"]
    python = tmp_path / "python"
    for place, is_rejected in (
        ("/root/.pyenv/bin/python3", True),
        ("/home/ada/python3", True),
        ("/usr/bin/python3", False),
    ):
        python.write_text(EMPTY_ENVIRONMENT.replace("/usr/bin/python3", place))
        python.chmod(0o755)
        environment = {**os.environ, "DESTDIR": str(tmp_path / "root"), "PYTHON": str(python)}
        command = ["sh", str(FOLDER / "install.sh")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert ("in a home folder" in done.stderr) is is_rejected


@pytest.fixture
def exporter(root: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """Start the exporter with the unit's command and umask, and without the right to make memory executable."""
    number = free_port()
    (run, state) = (tmp_path / "run", tmp_path / "state")
    run.mkdir(mode=0o755)
    state.mkdir(mode=0o750)
    (command,) = settings(EXPORTER)["ExecStart"]
    file = tmp_path / "exporter.yml"
    text = (root / "etc/stallscope/exporter.yml").read_text().replace("/var/lib/stallscope", str(state))
    file.write_text(f"{text}web: {{listen-address: '127.0.0.1:{number}'}}\n")
    program, *arguments = command.replace("/etc/stallscope/exporter.yml", str(file)).split()
    words = [sys.executable, "-c", LOCKED, str(root) + program, *arguments]
    words += [f"--report.unix-socket={run}/report.sock", "--report.udp-address="]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd="/", umask=0o077) as process:
        try:
            with contextlib.suppress(AssertionError):
                until(lambda: process.poll() is not None or ready(number))
            if process.poll() == 77:
                pytest.skip("this kernel can't refuse executable memory (PR_SET_MDWE is of Linux 6.3)")
            yield process, number, run
        finally:
            process.terminate()
            _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log


def ready(number: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{number}/-/ready", timeout=30) as answer:
        return bool(answer.status == 200)


@pytest.mark.nightly
def test_every_user_can_report_despite_the_units_umask(exporter: tuple[subprocess.Popen[str], int, Path]) -> None:
    assert settings(EXPORTER)["UMask"] == ["0077"]
    _, _, run = exporter
    assert stat.S_IMODE(run.stat().st_mode) == 0o755
    assert stat.S_IMODE((run / "report.sock").stat().st_mode) == 0o666
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(run / "report.sock"))


@pytest.mark.nightly
def test_a_reload_applies_changed_settings(exporter: tuple[subprocess.Popen[str], int, Path], tmp_path: Path) -> None:
    (reload,) = settings(EXPORTER)["ExecReload"]
    assert reload.split()[1] == "-HUP"
    process, number, _ = exporter
    assert ready(number)
    with (tmp_path / "exporter.yml").open("a") as file:
        file.write("collector: {memory: false}\n")
    process.send_signal(signal.SIGHUP)

    def forgotten() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/metrics", timeout=30) as page:
            return b"stallscope_host_memory_total_bytes " not in page.read()

    until(forgotten)


def test_shellcheck_passes() -> None:
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or tool("shellcheck")
    done = subprocess.run([program, FOLDER / "install.sh"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
