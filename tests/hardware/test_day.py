"""`python -m tests.hardware.day`, rehearsed on the stand-in driver."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stallscope.lab.replay.pages import Recording
from tests.hardware.day import signals
from tests.hardware.day.__main__ import main
from tests.hardware.day.costs import spread
from tests.hardware.day.machine import Machine, StepError, StepSkipped
from tests.hardware.day.planted import PROGRAMS, Program
from tests.hardware.day.steps import Day, Options
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def start(out: Path, *arguments: str, seconds: int = 1, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.hardware.day", str(out), "--stand-in", f"--seconds={seconds}", *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps(out: Path) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in json.loads((out / "machine.json").read_text())["steps"]}


def without_torch(folder: Path) -> str:
    """A folder whose module hides PyTorch."""
    (folder / "torch.py").write_text("raise ImportError('hidden')\n")
    return str(folder)


@pytest.mark.slow(25)
def test_a_day_without_pytorch_measures_everything_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = "capture,nvidia-smi,nvml,scrapes,held_idle,fp32,signals"
    process = start(out, f"--only={names}", PYTHONPATH=without_torch(tmp_path), PATH=os.environ["PATH"])
    _, screen = process.communicate(timeout=200)
    machine = json.loads((out / "machine.json").read_text())
    assert process.returncode == 0, screen
    assert machine["stand_in"] is True
    assert machine["torch"] is None
    assert machine["gpu"] == "NVIDIA H100 80GB HBM3"
    ended = steps(out)
    done = ("driver", "exporter", "recording", "capture", "nvml", "scrapes", "signals", "end of the recording")
    assert {ended[name]["status"] for name in done} == {"done"}
    assert ended["fp32"]["status"] == "skipped"
    assert ended["fp32"]["message"].startswith("PyTorch: not installed; ")
    lines = [json.loads(line) for line in (out / "programs.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == {"held_idle", "fp32"}
    assert all(line["skipped"].startswith("PyTorch: ") for line in lines)
    assert json.loads((out / "costs.json").read_text())["nvml"]["nvmlDeviceGetPowerUsage"]["n"] > 1
    assert gzip.decompress((out / "capture.json.gz").read_bytes()).startswith(b"{")
    recording = Recording(out / "pages.rec")
    begin, end = recording.header["start"], recording.header["start"] + max(page.time for page in recording.pages())
    windows = json.loads((out / "signals.json").read_text())
    assert windows
    assert all(begin < window["from"] < window["to"] < end + 2 for window in windows)


@pytest.mark.slow(25)
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make frameworks")
def test_a_planted_program_reports_its_run_and_measures_its_truth(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--only=single_process_loader", "--limit=300", seconds=1)
    _, screen = process.communicate(timeout=280)
    assert process.returncode == 0, screen
    (line,) = map(json.loads, (out / "programs.jsonl").read_text().splitlines())
    assert line["run"] == "single-process-loader"
    assert "input_few_workers" in line["planted"]
    assert line["truth"]["steps"] > 0
    assert line["variant"] == "cpu"
    series = {name for page in Recording(out / "pages.rec").pages() for name in page.samples}
    counted = "stallscope_training_step_seconds_count{"
    assert any(name.startswith(counted) and 'run="single-process-loader"' in name for name in series)


def test_ctrl_c_leaves_the_recording_and_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--only=signals,shim", PYTHONPATH=without_torch(tmp_path))
    until(lambda: (out / "machine.json").exists() and "signals" in steps(out), seconds=100, errors=(ValueError,))
    process.send_signal(signal.SIGINT)
    _, screen = process.communicate(timeout=100)
    assert process.returncode == 1, screen
    ended = steps(out)
    assert ended["signals"]["status"] != "done"
    assert ended["signals"]["message"].endswith("interrupted; run it again with --only signals")
    assert ended["shim"]["status"] == "skipped"
    assert ended["end of the recording"]["status"] == "done"
    recording = Recording(out / "pages.rec")
    assert len(list(recording.pages())) > 0
    assert not recording.is_cut


@pytest.mark.parametrize(
    ("problem", "status", "message"),
    [
        (StepError("gpu: lost; reset it"), "failed", "gpu: lost; reset it"),
        (StepSkipped("torch: missing; install it"), "skipped", "torch: missing; install it"),
        (
            OSError(errno.ENOSPC, "No space left on device", "x"),
            "failed",
            "one: x: No space left on device; free space",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "failed", "one: No space left on device; free space"),
        (ValueError("odd"), "failed", "one: unexpected ValueError: odd; report it"),
    ],
)
def test_a_step_that_fails_is_recorded_and_the_next_one_runs(
    tmp_path: Path, problem: Exception, status: str, message: str
) -> None:
    def fail() -> None:
        raise problem

    machine = Machine(tmp_path / "machine.json", stand_in=True, show=lambda line: None)
    assert machine.step("one", fail) is None
    assert machine.step("two", lambda: 2) == 2
    ended = steps(tmp_path)
    assert ended["one"]["status"] == status
    assert ended["one"]["message"].startswith(message)
    assert ended["two"]["status"] == "done"


def test_a_full_disk_does_not_end_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    shown: list[str] = []
    machine = Machine(tmp_path / "machine.json", stand_in=True, show=shown.append)
    monkeypatch.setattr(Path, "write_text", full)
    assert machine.step("one", lambda: 1) == 1
    assert machine.step("two", lambda: 2) == 2
    assert sum("cannot write: No space left on device" in line for line in shown) == 1


def test_programs_share_the_time_that_the_other_steps_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    day = Day(Options(tmp_path, limit=540), lambda line: None)
    assert 20 < day._program_seconds(PROGRAMS) < 40
    assert day._program_seconds(PROGRAMS * 3) == 12
    assert day._program_seconds(PROGRAMS[:1]) == 40
    monkeypatch.setattr("time.monotonic", lambda: 530.0)
    assert day._program_seconds(PROGRAMS[:1]) == 0


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_each_program_has_a_script_and_causes_of_the_catalogue(program: Program) -> None:
    from stallscope.model.catalogue.causes import CAUSES

    assert program.file.exists()
    assert set(program.right(8)) <= set(CAUSES)


def test_readings_of_nvidia_smi_become_the_mean_of_each_window(tmp_path: Path) -> None:
    from datetime import datetime

    def row(moment: float, watts: str) -> str:
        at = datetime.fromtimestamp(moment).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]  # noqa: DTZ006 - local time
        return f"{at}, {watts}, 1980, 2619, 41, 1024, [N/A]\n"

    file = tmp_path / "nvidia-smi.csv"
    begin = 1_790_000_000.0
    file.write_text(
        "header\n" + row(begin - 1, "900") + "".join(row(begin + number, str(100 + number)) for number in range(3))
    )
    found = signals.from_nvidia_smi(file, [{"load": "a", "from": begin - 0.5, "to": begin + 3}])
    truths = {line["metric"]: line["truth"] for line in found}
    assert truths["stallscope_gpu_power_watts"] == 101
    assert truths["stallscope_gpu_memory_used_bytes"] == 1 << 30
    assert "stallscope_gpu_utilization_ratio" not in truths
    assert {line["source"] for line in found} == {"nvidia-smi"}


def test_a_spread_has_median_percentile_and_number() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "p99": 3.0, "n": 3}
    assert spread([]) == {}


def test_an_unknown_step_and_a_folder_that_cannot_be_written_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--only=nonsense"])
    assert "'nonsense' is no step or program" in capsys.readouterr().err
    file = tmp_path / "file"
    file.touch()
    assert main([str(file)]) == 2
    assert "name another folder" in capsys.readouterr().err
