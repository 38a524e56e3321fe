"""The machine: a driver's stand-in that is asked for real, and trees with the modes and files of a node."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stallscope.doctor import node
from stallscope.doctor.checkup import Finding
from stallscope.doctor.node import PART
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import findings, statuses
from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn

STRANGER = 54_321
"""Neither user nor group of anything here."""


@pytest.fixture
def drivers(make_subject: MakeSubject, nvml_stand_in: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> NvmlStandIn:
    for name, value in nvml_stand_in.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(node, "_CALL_LIMIT", 1.0)
    return nvml_stand_in


def asked(make_subject: MakeSubject) -> list[Finding]:
    return findings(PART, make_subject())["drivers"]


def on_the_bus(root: Path, gpus: int) -> None:
    for number in range(gpus):
        device = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")


def test_a_driver_that_answers_is_told_with_its_versions(drivers: NvmlStandIn, make_subject: MakeSubject) -> None:
    found = asked(make_subject)
    assert {each.status for each in found} == {"ok"}
    assert "NVML" in found[0].message
    assert "8 GPUs" in found[1].message


def test_gpus_that_are_lost_or_hang_fail_and_the_others_are_counted(
    drivers: NvmlStandIn, make_subject: MakeSubject, tmp_path: Path
) -> None:
    on_the_bus(tmp_path, 9)
    drivers.gpu[3].state = GpuState.LOST
    drivers.gpu[5].hang_function = b"nvmlDeviceGetPowerUsage"
    found = asked(make_subject)
    lost, hung = (each.message for each in found if each.status == "failed")
    assert "1 of the GPUs do not say what they are" in lost
    assert hung.startswith("GPU 5 (GPU-")
    assert [each.message for each in found if each.status == "warning"] == [
        "the PCI bus has 9 GPUs of NVIDIA, and its driver shows 7"
    ]


def test_a_driver_that_hangs_fails_and_holds_nobody_up(drivers: NvmlStandIn, make_subject: MakeSubject) -> None:
    drivers.control.hang_function = b"nvmlDeviceGetCount_v2"
    (found,) = asked(make_subject)
    assert found.status == "failed"
    assert "driver hangs" in found.message


def test_a_driver_that_is_not_loaded_fails_where_there_are_gpus_and_only_there(
    drivers: NvmlStandIn, make_subject: MakeSubject, tmp_path: Path
) -> None:
    drivers.set_driver(DriverState.NOT_LOADED)
    assert [each.status for each in asked(make_subject)] == ["skipped"]
    on_the_bus(tmp_path, 2)
    (found,) = asked(make_subject)
    assert found.status == "failed"
    assert "2 GPUs of NVIDIA" in found.message


class TestWhoMayWhat:
    """The same checks without asking a driver."""

    @pytest.fixture(autouse=True)
    def no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        silent = {"problem": "", "hung": False, "nvml": "", "gpus": []}
        monkeypatch.setattr(node, "_answers", lambda: {"nvidia": silent, "amd": silent})

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A node of Kubernetes with a GPU and an exporter that runs as a stranger."""
        tmp_path.chmod(0o755)
        process = tmp_path / "proc/77"
        process.mkdir(parents=True)
        (process / "cmdline").write_text("python3\0/usr/bin/stallscope\0exporter\0--log.level=info\0")
        ids = "\t".join([str(STRANGER)] * 4)
        (process / "status").write_text(f"Name:\tstallscope\nUid:\t{ids}\nGid:\t{ids}\nGroups:\t{STRANGER} 77777\n")
        (process / "mounts").write_text("proc /proc proc rw,relatime 0 0\n")
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

    def test_all_is_ok_where_modes_allow_it(self, root: Path, make_subject: MakeSubject) -> None:
        found = statuses(findings(PART, make_subject()))
        assert (found["device files"], found["pod resources"]) == ({"ok"}, {"ok"})
        # Whoever is not root does not see the environment of others.
        assert found["processes"] == {"warning"}

    def test_a_device_file_that_is_closed_to_the_exporter_fails(self, root: Path, make_subject: MakeSubject) -> None:
        (root / "dev/nvidia0").chmod(0o660)
        (found,) = findings(PART, make_subject())["device files"]
        assert found.status == "failed"
        assert "/dev/nvidia0 (-rw-rw----" in found.message

    def test_a_group_of_the_exporter_opens_what_is_closed_to_others(
        self, root: Path, make_subject: MakeSubject
    ) -> None:
        status = root / "proc/77/status"
        (root / "dev/nvidia0").chmod(0o660)
        status.write_text(status.read_text().replace("77777", str((root / "dev/nvidia0").stat().st_gid)))
        assert statuses(findings(PART, make_subject()))["device files"] == {"ok"}

    def test_hidden_processes_fail(self, root: Path, make_subject: MakeSubject) -> None:
        mounts = root / "proc/77/mounts"
        mounts.write_text("proc /proc proc rw,hidepid=invisible,gid=4 0 0\n")
        assert statuses(findings(PART, make_subject()))["processes"] == {"failed"}
        mounts.write_text(f"proc /proc proc rw,hidepid=invisible,gid={STRANGER} 0 0\n")
        assert statuses(findings(PART, make_subject()))["processes"] == {"warning"}

    @pytest.mark.parametrize("fault", ["folder", "absent"])
    def test_a_kubelet_that_can_not_be_asked_fails(self, fault: str, root: Path, make_subject: MakeSubject) -> None:
        folder = root / "var/lib/kubelet/pod-resources"
        if fault == "folder":
            folder.chmod(0o700)
        else:
            (folder / "kubelet.sock").unlink()
        assert statuses(findings(PART, make_subject()))["pod resources"] == {"failed"}

    def test_without_an_exporter_nobody_s_rights_are_judged(self, make_subject: MakeSubject) -> None:
        found = statuses(findings(PART, make_subject()))
        assert {check: found[check] for check in ("device files", "processes", "pod resources")} == {
            "device files": {"skipped"},
            "processes": {"skipped"},
            "pod resources": {"skipped"},
        }

    def test_without_a_socket_at_the_usual_place_reports_go_over_udp(self, make_subject: MakeSubject) -> None:
        (found,) = findings(PART, make_subject())["report socket"]
        assert (found.status, "over UDP" in found.message) == ("warning", True)

    def test_a_report_socket_is_judged_by_who_listens_and_who_may_write(
        self, make_subject: MakeSubject, tmp_path: Path
    ) -> None:
        path = tmp_path / "r.sock"
        subject = make_subject(environment={"STALLSCOPE_ADDRESS": f"unix://{path}"}, root=Path("/"))

        def judged() -> tuple[str, str]:
            (found,) = findings(PART, subject)["report socket"]
            return found.status, found.message

        assert judged() == ("failed", f"there is no socket for reports at {path}: they go nowhere")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
            listening.bind(str(path))
            path.chmod(0o666)
            assert judged()[0] == "ok"
            path.chmod(0o600)
            status, message = judged()
            assert (status, "not open to all users" in message) == ("warning", True)
        path.chmod(0o666)
        assert judged() == ("failed", f"nobody listens at {path}")
        path.unlink()
        path.touch()
        assert judged() == ("failed", f"{path} is no socket")
