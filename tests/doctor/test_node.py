"""Trees with the modes and files of a node."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stallscope.tools.doctor.node import PART
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import findings, statuses

STRANGER = 54_321
"""Neither user nor group of anything here."""
LISTENING = f"""\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:4BC8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {STRANGER}        0 4711 1 0 100 0 0 10 0
   1: 0100007F:4BC9 0100007F:B26F 01 00000000:00000000 00:00000000 00000000 {STRANGER}        0 4712 1 0 100 0 0 10 0
"""
"""The stranger listens on port 19400, and has an established connection on port 19401."""
HERE = "http://localhost:19400"


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"problem": "", "reason": "", "hung": False, "nvml": "", "gpus": []}
    monkeypatch.setattr("stallscope.tools.doctor.drivers._probe", lambda _: {"nvidia": silent, "amd": silent})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node of Kubernetes with a GPU and an exporter that runs as a stranger."""
    tmp_path.chmod(0o755)
    process = tmp_path / "proc/77"
    process.mkdir(parents=True)
    (process / "cmdline").write_text("python3\0/usr/bin/stallscope\0exporter\0--log.level=info\0")
    ids = "\t".join([str(STRANGER)] * 4)
    (process / "status").write_text(f"Name:\tstallscope\nUid:\t{ids}\nGid:\t{ids}\nGroups:\t{STRANGER} 77777\n")
    (process / "mounts").write_text("proc /proc proc rw,relatime 0 0\n")
    (process / "net").mkdir()
    (process / "net/tcp").write_text(LISTENING)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch(0o666)
        (tmp_path / "dev" / name).chmod(0o666)
    kubelet = tmp_path / "var/lib/kubelet/pod-resources/kubelet.sock"
    kubelet.parent.mkdir(parents=True)
    kubelet.touch()
    kubelet.chmod(0o666)
    for folder in (each for each in tmp_path.rglob("*") if each.is_dir()):
        folder.chmod(0o755)  # whatever the umask
    return tmp_path


def test_all_is_ok_where_modes_allow_it(root: Path, make_subject: MakeSubject) -> None:
    found = statuses(findings(PART, make_subject(exporter_url=HERE)))
    assert (found["device files"], found["pod resources"]) == ({"ok"}, {"ok"})
    # Users other than root cannot read the environment of other users' processes.
    assert found["processes"] == {"warning"}


def test_a_device_file_that_is_closed_to_the_exporter_fails(root: Path, make_subject: MakeSubject) -> None:
    (root / "dev/nvidia0").chmod(0o660)
    (found,) = findings(PART, make_subject(exporter_url=HERE))["device files"]
    assert found.status == "failed"
    assert "/dev/nvidia0 (-rw-rw----" in found.message


def test_a_group_of_the_exporter_opens_what_is_closed_to_others(root: Path, make_subject: MakeSubject) -> None:
    status = root / "proc/77/status"
    (root / "dev/nvidia0").chmod(0o660)
    status.write_text(status.read_text().replace("77777", str((root / "dev/nvidia0").stat().st_gid)))
    assert statuses(findings(PART, make_subject(exporter_url=HERE)))["device files"] == {"ok"}


def test_hidden_processes_fail(root: Path, make_subject: MakeSubject) -> None:
    mounts = root / "proc/77/mounts"
    mounts.write_text("proc /proc proc rw,hidepid=invisible,gid=4 0 0\n")
    assert statuses(findings(PART, make_subject(exporter_url=HERE)))["processes"] == {"failed"}
    mounts.write_text(f"proc /proc proc rw,hidepid=invisible,gid={STRANGER} 0 0\n")
    assert statuses(findings(PART, make_subject(exporter_url=HERE)))["processes"] == {"warning"}


@pytest.mark.parametrize("fault", ["folder", "absent"])
def test_a_kubelet_that_cannot_be_queried_fails(fault: str, root: Path, make_subject: MakeSubject) -> None:
    folder = root / "var/lib/kubelet/pod-resources"
    if fault == "folder":
        folder.chmod(0o700)
    else:
        (folder / "kubelet.sock").unlink()
    assert statuses(findings(PART, make_subject(exporter_url=HERE)))["pod resources"] == {"failed"}


def test_permissions_are_not_judged_without_an_exporter(make_subject: MakeSubject) -> None:
    found = statuses(findings(PART, make_subject()))
    assert {check: found[check] for check in ("device files", "processes", "pod resources")} == {
        "device files": {"skipped"},
        "processes": {"skipped"},
        "pod resources": {"skipped"},
    }


def test_without_a_socket_at_the_usual_place_reports_go_over_udp(make_subject: MakeSubject) -> None:
    (found,) = findings(PART, make_subject())["report socket"]
    assert (found.status, "over UDP" in found.message) == ("warning", True)


def test_a_report_socket_is_judged_by_who_listens_and_who_may_write(make_subject: MakeSubject, tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    subject = make_subject(environment={"STALLSCOPE_ADDRESS": f"unix://{path}"}, root=Path("/"))

    def judged() -> tuple[str, str]:
        (found,) = findings(PART, subject)["report socket"]
        return found.status, found.message

    assert judged() == ("failed", f"there is no report socket at {path}, so reports are lost")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        path.chmod(0o666)
        assert judged()[0] == "ok"
        path.chmod(0o600)
        status, message = judged()
        assert (status, "not open to all users" in message) == ("warning", True)
    path.chmod(0o666)
    assert judged() == ("failed", f"no process listens at {path}")
    path.unlink()
    path.touch()
    assert judged() == ("failed", f"{path} is not a socket")
