"""Is the process still there?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.node.intake.processes import Process, Processes


def test_a_living_process_is_found_and_not_gone() -> None:
    process = Processes().find(os.getpid())
    assert process is not None
    assert process.pid == os.getpid()
    assert not Processes().gone(process)


def test_a_process_that_ended_is_gone_even_before_its_parent_takes_note() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = Processes().find(child.pid)
        assert process is not None
        assert not Processes().gone(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped: a zombie
        assert Processes().gone(process)
    assert Processes().gone(process)


def test_a_pid_that_went_to_another_process_is_gone(root: Path, set_process: Callable[..., None]) -> None:
    set_process(7, start=100)
    process = Processes(root).find(7)
    assert process == Process(7, 100)
    set_process(7, start=200)
    assert Processes(root).gone(process)


def test_a_process_that_was_over_when_looked_for_is_gone(root: Path, set_process: Callable[..., None]) -> None:
    process = Processes(root).find(7)
    assert process is not None
    assert Processes(root).gone(process)


def test_a_process_that_was_a_zombie_when_looked_for_is_gone(root: Path, set_process: Callable[..., None]) -> None:
    set_process(7, state="Z")
    process = Processes(root).find(7)
    assert process is not None
    assert Processes(root).gone(process)


def test_where_proc_hides_other_users_processes_none_is_taken_for_gone(root: Path) -> None:
    (root / "proc/1").rmdir()
    assert Processes(root).find(7) is None


@pytest.mark.parametrize("content", ["", "7", "7 (python) S 1 2", "7 (python) S " + "x " * 30])
def test_what_cannot_be_understood_is_neither_found_nor_gone(
    root: Path, set_process: Callable[..., None], content: str
) -> None:
    set_process(7, start=100)
    (root / "proc/7/stat").write_text(content)
    assert Processes(root).find(7) is None
    assert not Processes(root).gone(Process(7, 100))


def test_a_machine_without_boot_id_has_an_empty_one(tmp_path: Path) -> None:
    assert Processes(tmp_path).boot_id() == ""
