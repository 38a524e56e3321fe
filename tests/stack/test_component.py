"""A program of the stack: its exit is reported, a stop reaches all its children, and it never outlives its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stallscope.lab.stack.component import Component, stop_all
from tests.waiting import until

Start = Callable[[str], Component]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts shell scripts as components, and stops what a test leaves."""
    started: list[Component] = []

    def run(script: str) -> Component:
        component = Component("the script", ["/bin/sh", "-c", script], tmp_path / f"{len(started)}.log", {"WORD": "ok"})
        component.start()
        started.append(component)
        return component

    yield run
    stop_all(started, seconds=0)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_in(component: Component) -> int:
    until(lambda: component.log_tail(1).isdigit())
    return int(component.log_tail(1))


def test_a_running_program_has_not_ended(start: Start) -> None:
    component = start("exec sleep 600")
    assert component.running
    assert component.ended is None


def test_a_program_that_was_not_started_neither_runs_nor_has_ended(tmp_path: Path) -> None:
    component = Component("the script", ["true"], tmp_path / "log")
    assert not component.running
    assert component.ended is None
    stop_all([component])


def test_the_end_of_a_program_is_described_by_its_status(start: Start) -> None:
    component = start("exit 3")
    until(lambda: not component.running)
    assert component.ended == "ended with status 3"


def test_the_end_of_a_program_is_described_by_its_signal(start: Start) -> None:
    component = start("kill -SEGV $$")
    until(lambda: not component.running)
    assert component.ended == "was ended by SIGSEGV"


def test_the_log_holds_both_streams_and_the_tail_its_last_lines(start: Start) -> None:
    component = start("seq 1 5; echo $WORD >&2")
    until(lambda: not component.running)
    assert component.log_tail(3) == "4\n5\nok"


def test_a_stop_lets_programs_end_in_their_own_way(start: Start) -> None:
    component = start("trap 'echo clean; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: component.log_tail() == "ready")
    stop_all([component], seconds=60)
    assert component.log_tail(1) == "clean"


def test_a_stop_ends_what_ignores_it(start: Start) -> None:
    component = start("trap '' TERM; echo $$; while :; do sleep 0.05; done")
    pid = pid_in(component)
    stop_all([component], seconds=0.2)
    assert not alive(pid)


def test_a_stop_ends_what_a_program_has_left_behind(start: Start) -> None:
    component = start("sleep 600 & echo $!")
    left_behind = pid_in(component)
    until(lambda: not component.running)
    stop_all([component])
    until(lambda: not alive(left_behind))


def test_a_program_can_be_interrupted_though_its_launcher_blocks_signals(start: Start) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        component = start("exec sleep 600")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    component.signal(signal.SIGTERM)
    until(lambda: component.ended == "was ended by SIGTERM")


def test_a_program_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    launcher = f"""
import pathlib, time
from stallscope.lab.stack.component import Component
Component("the script", ["/bin/sh", "-c", "echo $$; exec sleep 600"], pathlib.Path({str(tmp_path / "log")!r})).start()
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", launcher]) as process:
        component = Component("the script", [], tmp_path / "log")
        pid = pid_in(component)
        assert alive(pid)
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not alive(pid))
