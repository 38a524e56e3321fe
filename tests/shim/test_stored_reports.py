"""Reports that are stored for the summary, and the process that is the last to end."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stallscope
from stallscope.tools.cli import _run_summary
from stallscope.training.protocol.report import parse
from stallscope.training.shim import stored_reports
from stallscope.training.shim.slow_steps import WARM_UP

HOLD = """
import os, sys
from stallscope.training.shim import stored_reports
stored_reports.hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def stored(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(stored_reports.VARIABLE, str(tmp_path))
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/absent.sock")
    return tmp_path


def test_a_run_stores_its_newest_report_and_the_one_after_its_first_steps(folder: Path) -> None:
    with stallscope.Run("job", interval=0.0) as run:
        for _ in range(WARM_UP + 5):
            run.step()
    (newest,), (warmed_up,) = stored(folder, stored_reports.NEWEST), stored(folder, stored_reports.WARMED_UP)
    last, first = (parse(path.read_bytes().partition(b"\n")[0]) for path in (newest, warmed_up))
    assert (last.state, last.gauges["step"]) == ("finished", WARM_UP + 5)
    assert (first.state, first.gauges["step"]) == ("running", WARM_UP)


def test_the_end_of_the_first_steps_is_stored_though_no_report_is_due(folder: Path) -> None:
    run = stallscope.Run("job", interval=3600.0)
    for _ in range(WARM_UP - 1):
        run.step()
    assert not stored(folder, stored_reports.WARMED_UP)
    run.step()
    assert stored(folder, stored_reports.WARMED_UP)
    run.finish()


def test_without_a_summary_or_with_a_folder_that_is_gone_nothing_is_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stored_reports.VARIABLE, str(folder / "gone"))
    with stallscope.Run("job") as run:
        run.step()
    monkeypatch.delenv(stored_reports.VARIABLE)
    with stallscope.Run("job") as run:
        run.step()
    assert list(folder.iterdir()) == []


def test_a_folder_that_vanishes_or_fills_up_does_not_reach_the_training(folder: Path) -> None:
    store = stored_reports.StoredReports(str(folder / "gone"), "a")
    store.store(b"{}", is_warm=True)
    (folder / f"b{stored_reports.NEWEST}").symlink_to(folder / "elsewhere")
    stored_reports.StoredReports(str(folder), "b").store(b"{}", is_warm=False)
    assert not (folder / "elsewhere").exists()


def test_only_the_last_process_can_lock_the_folder(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert stored_reports.lock_alone(str(folder)) == -1
        other.communicate()
    descriptor = stored_reports.lock_alone(str(folder))
    assert descriptor >= 0
    os.close(descriptor)


def test_leftovers_of_dead_processes_are_deleted_and_others_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    prefix = f"stallscope-summary-{os.getuid()}-"
    for name, process in (("dead", dead.pid), ("alive", os.getpid())):
        (tmp_path / f"{prefix}{name}").mkdir()
        (tmp_path / f"{prefix}{name}" / f"{stored_reports.STARTED}{process}").touch()
    (tmp_path / f"{prefix}new").mkdir()
    (tmp_path / "stallscope-other").mkdir()
    _run_summary._remove_leftovers(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {f"{prefix}alive", f"{prefix}new", "stallscope-other"}


def test_a_leftover_with_a_living_rank_stays(tmp_path: Path) -> None:
    held = tmp_path / f"stallscope-summary-{os.getuid()}-held"
    held.mkdir()
    (held / f"{stored_reports.STARTED}{2**22 + 1}").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        _run_summary._remove_leftovers(str(tmp_path))
        assert held.exists()
        other.communicate()
    _run_summary._remove_leftovers(str(tmp_path))
    assert not held.exists()


def test_ranks_of_one_launcher_share_a_folder_that_is_private(tmp_path: Path) -> None:
    first, is_new = _run_summary._folder(str(tmp_path), "train.py")
    assert is_new
    assert first.stat().st_mode & 0o777 == 0o700
    assert _run_summary._folder(str(tmp_path), "train.py") == (first, False)
    assert _run_summary._folder(str(tmp_path), "other.py")[0] != first
    assert _run_summary._folder(str(tmp_path), "")[0] != first
    first.chmod(0o777)  # of another user, or opened by one
    assert _run_summary._folder(str(tmp_path), "train.py")[0] != first


def test_a_command_within_a_command_leaves_the_summary_to_the_outer_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _run_summary.SummaryOptions()
    assert _run_summary.prepare(options, "x.py") == str(folder)
    options.choose("off")
    assert _run_summary.prepare(options, "x.py") == ""
    assert stored_reports.VARIABLE not in os.environ
    monkeypatch.setenv(stored_reports.VARIABLE, "")


def test_the_settings_hold_what_the_summary_needs(tmp_path: Path) -> None:
    options = _run_summary.SummaryOptions()
    options.require("lost > 20%")
    _run_summary._settle(tmp_path, options, "x.py")
    settings = json.loads((tmp_path / stored_reports.SETTINGS).read_text())
    assert (settings["python"], settings["fail_on"], settings["program"]) == (sys.executable, ["lost > 20%"], "x.py")


def test_the_lock_is_not_inherited_by_a_fork(folder: Path) -> None:
    stored_reports.hold(str(folder))
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        with (folder / "lock").open("r+b") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(3)
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
