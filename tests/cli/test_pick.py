"""`stallscope pick` on the stand-in library: real processes, real locks, real races."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.drivers.device import DriverUnavailable, GpuProcess, Utilization
from stallscope.tools.capacity.claims import Claims
from stallscope.tools.cli import pick as command
from stallscope.tools.cli._picker import Picker, PickFailed
from tests.collectors.gpu.scripted_driver import ScriptedDevice, ScriptedDriver, memory
from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn

GIB = 1 << 30
QUICK = ("--over", "1s")
NOWHERE = "http://127.0.0.1:9"
"""No exporter listens there; the one of the machine that runs the tests has no say."""


class Node:
    """A machine of four GPUs with a lock folder."""

    def __init__(self, folder: Path) -> None:
        self.gpus = NvmlStandIn(folder, gpus=4)
        self.locks = folder / "locks"
        self.locks.mkdir()
        self.locks.chmod(0o1777)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "stallscope", "pick", *QUICK, *words],
            env=os.environ | self.gpus.environment | {"STALLSCOPE_LOCK_FOLDER": str(self.locks)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pick(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(*words, **environment) as process:
            out, complaints = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, complaints)

    def claimed(self) -> list[str]:
        """UUIDs of the GPUs that are claimed."""
        claims = Claims(self.locks)
        with claims.choosing():
            found, complaints = claims.standing()
        claims.close()
        assert complaints == []
        return sorted(claim.uuid for claim in found)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_ten_who_race_for_four_gpus_get_each_another_one_or_none(node: Node) -> None:
    racing = [node.start("--reserve", "1h") for _ in range(10)]
    ends = [(process.communicate(timeout=120), process.returncode) for process in racing]
    found = [out.strip() for (out, _), status in ends if status == 0]
    assert sorted(found) == [NvmlStandIn.uuid(index) for index in range(4)]
    assert [status for _, status in ends].count(1) == 6
    assert all("claimed" in complaints for (_, complaints), status in ends if status)


def test_a_command_runs_on_what_was_picked_and_holds_it_until_it_is_killed(node: Node) -> None:
    script = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], os.getpid(), flush=True); sys.stdin.read()"
    process = node.start("-n", "2", "--", sys.executable, "-c", script)
    uuids, pid = first_line(process).split()
    assert int(pid) == process.pid, "the command has taken the process' place"
    assert sorted(uuids.split(",")) == node.claimed()
    assert len(node.claimed()) == 2
    process.kill()
    process.communicate()
    assert node.claimed() == []


def test_signals_and_exit_status_are_the_commands_own(node: Node) -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(17))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    process = node.start("--", sys.executable, "-c", script)
    assert first_line(process) == "ready"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 17
    assert node.pick("--", "sh", "-c", "kill -PIPE $$").returncode == -signal.SIGPIPE


def test_each_gpu_that_does_not_qualify_is_listed_with_its_reason(node: Node) -> None:
    held, lost, ill, taken = node.gpus.gpu
    held.memory_used = 60 * GIB
    held.run((os.getpid(), 60 * GIB, False))
    lost.state = GpuState.LOST
    ill.remapped_rows[2] = 1
    taken.compute_mode = 2
    finished = node.pick("--memory", "20GiB")
    assert (finished.returncode, finished.stdout) == (1, "")
    said = " ".join(finished.stderr.split())
    assert said.startswith("stallscope pick: no GPU with 20.0 GiB free, at most 50 % busy now")
    assert f"GPU 0: 19.2 GiB of 79.6 GiB free, 20.0 GiB wanted; {_me()}" in said
    assert "GPU 1: down: gpu_lost" in said
    assert "GPU 2: a memory row waits to be remapped" in said
    assert "GPU 3: its compute mode is prohibited" in said
    assert node.claimed() == []


def _me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def test_an_instance_is_picked_by_its_uuid_and_shown_in_the_table(node: Node) -> None:
    for gpu in node.gpus.gpu:
        gpu.cut(("1g.10gb", 10 * GIB), ("2g.20gb", 20 * GIB))
    finished = node.pick("--memory", "15GiB", "--format", "env", "--explain", CUDA_VISIBLE_DEVICES="2")
    assert finished.stdout == f"CUDA_VISIBLE_DEVICES={node.gpus.gpu[2].instance[1].uuid.decode()}\n"
    assert "taken" in next(line for line in finished.stderr.splitlines() if line.startswith("GPU 2 MIG 2g.20gb"))
    assert "MIG is on" in next(line for line in finished.stderr.splitlines() if line.startswith("GPU 2 "))
    assert max(map(len, finished.stderr.splitlines())) <= 80
    assert "has no index" in node.pick("--memory", "5GiB", "--format", "indices").stderr


def test_json_has_everything_and_a_pick_for_no_time_claims_nothing(node: Node) -> None:
    finished = node.pick("--json", "--reserve", "0s", CUDA_VISIBLE_DEVICES="3,1")
    reported: dict[str, Any] = json.loads(finished.stdout)
    assert reported["cuda_visible_devices"] == NvmlStandIn.uuid(1)
    assert [gpu["taken"] for gpu in reported["gpus"]] == [False, True, False, False]
    assert reported["gpus"][0]["against"] == ["CUDA_VISIBLE_DEVICES leaves it out"]
    assert reported["host"]["cores"] > 0
    assert node.claimed() == []


def test_a_program_that_reads_no_uuids_is_given_indices_and_the_order_they_count_in(node: Node) -> None:
    script = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
    finished = node.pick("-n", "2", "--format", "indices", "--", sys.executable, "-c", script)
    assert finished.stdout == "0,1 PCI_BUS_ID\n"


def test_waiting_for_what_can_never_be_is_refused(node: Node) -> None:
    finished = node.pick("-n", "5", "--wait")
    assert finished.returncode == 1
    assert finished.stderr.endswith("  waiting will not help: 4 of these GPUs can ever qualify, 5 wanted\n")


def test_without_a_driver_it_says_what_to_do(node: Node) -> None:
    node.gpus.set_driver(DriverState.NOT_LOADED)
    finished = node.pick("--wait")
    assert finished.returncode == 1
    assert "the NVIDIA driver does not answer" in finished.stderr
    assert "nvidia-smi" in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_with_amd_gpus_only_nvidias_driver_is_not_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> ScriptedDriver:
        raise DriverUnavailable("library_not_found", "there is no libnvidia-ml.so.1")

    flags = ("--lock-folder", str(tmp_path), "--exporter.url", NOWHERE)
    picker = Picker(command.parser().parse_args(flags), running=False, driver=unavailable)
    on_the_bus = {"AMD": 8}
    monkeypatch.setattr("stallscope.tools.cli._picker.pci_gpus", lambda _: on_the_bus)
    with pytest.raises(PickFailed, match=r"are AMD's.*ROCR_VISIBLE_DEVICES"):
        picker.poll()
    on_the_bus["NVIDIA"] = 1  # a workstation whose CPU renders the display
    with pytest.raises(PickFailed, match="nvidia-smi"):
        picker.poll()


def test_a_slurm_job_without_a_gpu_gets_the_option_that_requests_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--lock-folder", str(tmp_path), "--exporter.url", NOWHERE)
    picker = Picker(command.parser().parse_args(flags), running=False, driver=ScriptedDriver, pause=lambda _: None)
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    with pytest.raises(PickFailed, match="--gpus=1"):
        picker.poll()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-n", "0"], "expected an integer from 1 to 1024, got '0'"),
        (["--memory", "20"], "did you mean 20GiB?"),
        (["--memory", "-1GiB"], "--memory"),
        (["--max-utilization", "30"], "did you mean 30%?"),
        (["--over", "10ms"], "expected a duration from 1s to 60s"),
        (["--reserve", "2h"], "expected a duration from 0s to 1h"),
        (["--wait", "--timeout", "2"], "a duration with its unit"),
        (["--timeout", "2s"], "--timeout: requires --wait"),
        (["python", "train.py"], "a command comes after --: stallscope pick [flags] -- python train.py"),
        (["--"], "expected a command"),
        (["--json", "--", "true"], "cannot be combined with a command"),
        (["--format", "env", "--", "true"], "cannot be combined with a command"),
        (["--exporter.url", "not a url"], "is not the address of an exporter"),
        (["--nonsense"], "unknown flag --nonsense"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--lock-folder", str(tmp_path), *words])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("stallscope pick: ")
    assert complaint in said
    assert said.count("\n") == 1


def test_a_command_that_cannot_run_is_an_error_before_any_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--", "no-such-command"]) == 127
    assert "no-such-command: command not found" in capsys.readouterr().err
    assert command.main(["--", __file__]) == 126
    assert f"{__file__}: not executable" in capsys.readouterr().err


def test_an_unsafe_lock_folder_is_an_error_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o777)
    assert command.main(["--lock-folder", str(tmp_path)]) == 1
    assert f"chmod +t {tmp_path}" in capsys.readouterr().err


class TestWaiting:
    """In this process, on scripted GPUs, and on time that passes when it is waited for."""

    @pytest.fixture
    def device(self, monkeypatch: pytest.MonkeyPatch) -> ScriptedDevice:
        scripted = ScriptedDevice(
            memory=memory(80 * GIB, 60 * GIB), processes=[GpuProcess(1, None)], utilization=Utilization(0, 0)
        )
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return scripted

    def picker(
        self,
        device: ScriptedDevice,
        tmp_path: Path,
        pause: Callable[[float], None],
        *words: str,
        driver: Callable[[], ScriptedDriver] | None = None,
    ) -> Picker:
        flags = ("--lock-folder", str(tmp_path), "--exporter.url", NOWHERE, "--wait", *words)
        parsed = command.parser().parse_args(flags)
        return Picker(parsed, running=True, driver=driver or (lambda: ScriptedDriver(device)), pause=pause)

    def test_it_ends_when_there_is_room_and_says_once_what_it_waits_for(
        self, device: ScriptedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 6:
                device.answers["memory"] = memory(80 * GIB, 20 * GIB)

        look = self.picker(device, tmp_path, pause, "--memory", "30GiB").until_found(None)
        assert [gpu.identity.uuid for gpu in look.chosen] == ["GPU-0"]
        assert pauses == [2.0, 10.0] * 3 + [2.0]
        for descriptor in look.descriptors:
            os.close(descriptor)
        said = capsys.readouterr().err
        assert said.count("waiting") == 1
        assert "GPU 0: 20.0 GiB of 80.0 GiB free, 30.0 GiB wanted" in " ".join(said.split())

    def test_it_waits_no_longer_than_requested(self, device: ScriptedDevice, tmp_path: Path) -> None:
        now = 100.0

        def pause(seconds: float) -> None:
            nonlocal now
            now += seconds

        look = self.picker(device, tmp_path, pause).until_found(25, clock=lambda: now)
        assert look.chosen == ()
        # The time may end within a look, but not within a pause.
        assert 125 <= now <= 127

    @pytest.mark.parametrize("quiet", [True, False])
    def test_a_driver_that_goes_meanwhile_is_waited_for(
        self, device: ScriptedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
    ) -> None:
        looks = 0

        def driver() -> ScriptedDriver:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise DriverUnavailable("driver_not_loaded", "the driver is gone")
            if looks == 3:
                device.answers["memory"] = memory(80 * GIB, 20 * GIB)
            return ScriptedDriver(device)

        flags = ("--memory", "30GiB", *(["--quiet"] if quiet else []))
        look = self.picker(device, tmp_path, lambda _: None, *flags, driver=driver).until_found(None)
        assert [gpu.identity.uuid for gpu in look.chosen] == ["GPU-0"]
        for descriptor in look.descriptors:
            os.close(descriptor)
        assert ("waiting: the driver is gone" in capsys.readouterr().err) is not quiet
