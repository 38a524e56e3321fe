"""`stallscope record` on the stand-in library, in processes of their own, and its replay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.drivers.nvidia.capture import Capture, parse, read, text
from stallscope.node.drivers.nvidia.library import NvmlFailure
from stallscope.node.drivers.nvidia.replay import ReplayLibrary
from stallscope.tools.cli import record as command
from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn
from tests.waiting import until

_DEADLINE = 60.0


@pytest.fixture
def node(tmp_path: Path) -> NvmlStandIn:
    return NvmlStandIn(tmp_path, gpus=2)


def start(node: NvmlStandIn | None, *flags: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stallscope", "record", "--stand-in", *flags],
        env=os.environ | (node.environment if node is not None else {}),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(node: NvmlStandIn | None, *flags: str, folder: Path) -> tuple[int, str]:
    """The exit status, and what was said."""
    process = start(node, *flags, folder=folder)
    _, said = process.communicate(timeout=_DEADLINE)
    return process.returncode, said


def await_calls(node: NvmlStandIn, number: int) -> None:
    """Wait until power was queried `number` times; each poll queries it once per GPU."""
    until(lambda: node.calls("nvmlDeviceGetPowerUsage") >= number, seconds=_DEADLINE)


@pytest.fixture
def capture(node: NvmlStandIn, tmp_path: Path) -> Capture:
    """Two rounds of two healthy GPUs."""
    status, said = run(node, "--duration", "1s", "--output", "c", folder=tmp_path)
    assert status == 0, said
    return read(tmp_path / "c")


def series(page: str, name: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(f"{name}{{")]


def test_a_recording_replays_to_the_page_it_was_made_with(node: NvmlStandIn, tmp_path: Path) -> None:
    status, said = run(node, "--duration", "2s", folder=tmp_path)
    assert status == 0
    assert "differs from the recorded" not in said
    (file,) = tmp_path.glob("*.capture.jsonl")
    assert file.name.startswith("stand-in__nvidia-h100-80gb-hbm3__")
    capture = read(file)
    page, unanswered = command.replay(capture)
    assert not unanswered
    assert len(capture.rounds) == 3
    assert [line[-2:] for line in series(page, "stallscope_gpu_up")] == [" 1", " 1"]
    assert page == command.replay(capture)[0]


def test_the_header_says_what_answered(capture: Capture) -> None:
    header = capture.header
    assert header.models == ["NVIDIA H100 80GB HBM3"] * 2
    assert header.driver[0].isdigit()
    assert header.cuda.count(".") == 1
    assert not header.hardware
    assert "stand-in" in header.note


def test_identifiers_are_masked_unless_they_are_to_be_kept(node: NvmlStandIn, tmp_path: Path) -> None:
    node.gpu[1].run((os.getpid(), 5 << 30, False))
    assert run(node, "--duration", "1s", "--output", "masked", folder=tmp_path)[0] == 0
    assert run(node, "--duration", "1s", "--output", "kept", "--keep-identifiers", folder=tmp_path)[0] == 0
    mark = NvmlStandIn.uuid(1)
    masked, kept = (tmp_path / "masked").read_text(), (tmp_path / "kept").read_text()
    assert mark in kept
    assert mark not in masked
    assert read(tmp_path / "masked").header.masked
    assert not read(tmp_path / "kept").header.masked
    page, unanswered = command.replay(read(tmp_path / "masked"))
    assert not unanswered
    assert 'uuid="GPU-00000000-0000-0000-0000-000000000001"' in page


def test_a_gpu_that_is_lost_midway_is_lost_in_the_replay_from_then_on(node: NvmlStandIn, tmp_path: Path) -> None:
    process = start(node, "--duration", "3000s", "--output", "c", folder=tmp_path)
    await_calls(node, 3)  # of two GPUs, so that the first round is over
    node.gpu[1].state = GpuState.LOST
    await_calls(node, node.calls("nvmlDeviceGetPowerUsage") + 4)  # so that another one is over
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=_DEADLINE)[1]
    assert process.returncode == 0, said
    capture = read(tmp_path / "c")
    page, unanswered = command.replay(capture)
    assert not unanswered
    up = series(page, "stallscope_gpu_up")
    assert [line[-2:] for line in up] == [" 1", " 0"]
    assert ['reason="gpu_lost"' in line for line in series(page, "stallscope_gpu_lost_info")] == [True]
    before, _ = command.replay(Capture(capture.header, capture.rounds[:1], capture.calls))
    assert [line[-2:] for line in series(before, "stallscope_gpu_up")] == [" 1", " 1"]


def test_a_file_that_is_there_stays_unless_forced(node: NvmlStandIn, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    status, said = run(node, "--duration", "1s", "--output", "mine", folder=tmp_path)
    assert status == 1
    assert "--force" in said
    assert (tmp_path / "mine").read_text() == "mine"
    assert node.calls() == 0
    assert run(node, "--duration", "1s", "--output", "mine", "--force", folder=tmp_path)[0] == 0
    assert read(tmp_path / "mine").calls


def test_a_missing_folder_is_refused_before_anything_is_recorded(node: NvmlStandIn, tmp_path: Path) -> None:
    status, said = run(node, "--output", "nowhere/c", folder=tmp_path)
    assert (status, node.calls()) == (1, 0)
    assert "nowhere: not a directory" in said


def test_without_a_driver_it_says_why_and_what_to_do(node: NvmlStandIn, tmp_path: Path) -> None:
    node.set_driver(DriverState.NOT_LOADED)
    for machine in (node, None):
        status, said = run(machine, "--duration", "1s", folder=tmp_path)
        assert status == 1
        assert "the NVIDIA driver does not answer" in said
        assert "nvidia-smi" in said
        assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize("duration", ["0s", "-3", "soon", "5h", "90000"])
def test_a_senseless_duration_is_refused_in_one_line(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main([f"--duration={duration}"])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert duration in said


def test_what_is_recorded_of_a_replay_is_the_replay(capture: Capture) -> None:
    again = command.record(ReplayLibrary(capture), duration=0.2, interval=0.1)
    assert command.replay(again.capture) == (again.page, [])
    assert not again.hung
    assert again.capture.header.models == capture.header.models


def test_the_same_rounds_give_the_same_page_through_the_file(capture: Capture) -> None:
    again = command.record(ReplayLibrary(capture), duration=0.2, interval=0.1)
    assert command.replay(parse(text(again.capture).splitlines())) == (again.page, [])


def test_a_call_that_hangs_ends_the_recording_with_its_name(capture: Capture) -> None:
    go_on = threading.Event()

    class Hanging(ReplayLibrary):
        def call(self, name: str, *arguments: Any) -> Any:
            if name == "nvmlDeviceGetPowerUsage" and arguments[0].token == "device 1":
                go_on.wait(60)
                raise NvmlFailure(999, "released")
            return super().call(name, *arguments)

    recorded = command.record(Hanging(capture), duration=60.0, hang_seconds=0.2)
    assert recorded.hung == "nvmlDeviceGetPowerUsage(device 1)"
    assert "nvmlDeviceGetPowerUsage" in {call.name for call in recorded.capture.calls}
    go_on.set()


def test_ctrl_c_ends_the_recording_early_and_keeps_it(node: NvmlStandIn, tmp_path: Path) -> None:
    process = start(node, "--duration", "3000s", "--output", "c", folder=tmp_path)
    await_calls(node, 3)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=_DEADLINE)[1]
    assert process.returncode == 0, said
    assert len(read(tmp_path / "c").rounds) > 1
    assert "Traceback" not in said
