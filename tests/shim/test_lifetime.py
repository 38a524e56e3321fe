"""Real processes, forks and ends, told to a real socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import stallscope
from stallscope.report import Report, parse


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = tmp_path / "report.sock"
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)
        yield listener


def told(exporter: socket.socket) -> list[Report]:
    reports = []
    with contextlib.suppress(BlockingIOError):
        while True:
            reports.append(parse(exporter.recv(65536)))
    return reports


def play(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )


LOOP = "import stallscope\nfor batch in stallscope.track(range(5), 'job'):\n    pass\n"


def test_a_program_that_ends_has_finished(exporter: socket.socket) -> None:
    done = play(LOOP)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    last = told(exporter)[-1]
    assert (last.run, last.state, last.gauges["step"]) == ("job", "finished", 5)


def test_a_program_ended_by_an_exception_has_failed(exporter: socket.socket) -> None:
    done = play(LOOP + "raise ValueError('boom')")
    assert "ValueError: boom" in done.stderr
    assert told(exporter)[-1].state == "failed"


def test_another_exception_hook_still_speaks(exporter: socket.socket) -> None:
    done = play("import sys\nsys.excepthook = lambda *_: print('mine')\n" + LOOP + "1 / 0")
    assert done.stdout == "mine\n"
    assert told(exporter)[-1].state == "failed"


def test_an_exception_that_is_caught_is_no_failure(exporter: socket.socket) -> None:
    play(LOOP + "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass")
    assert told(exporter)[-1].state == "finished"


def test_a_killed_program_says_no_last_word(exporter: socket.socket) -> None:
    done = play(LOOP + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    assert told(exporter)[-1].state in ("starting", "running")


def test_a_run_in_a_child_of_multiprocessing_ends_with_it(exporter: socket.socket) -> None:
    script = """
        import multiprocessing, stallscope
        def train(rank, fail):
            for batch in stallscope.track(range(3), stallscope.Run("job", rank=rank)):
                pass
            if fail:
                raise ValueError("boom")
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=train, args=(rank, rank == 1)) for rank in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    """
    play(script)
    last = {report.rank: report.state for report in told(exporter)}
    assert last == {0: "finished", 1: "failed"}


def test_a_forked_child_is_silent_and_the_parent_goes_on(exporter: socket.socket) -> None:
    run = stallscope.Run("job", interval=0.0)
    before = len(told(exporter))
    assert before == 1
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in stallscope.track([1, 2, 3], run):
                run.report(loss=1.0)
            run.finish()
            status = 0 if run.silent else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert told(exporter) == []
    run.step()
    run.finish()
    assert {report.pid for report in told(exporter)} == {os.getpid()}


def test_a_run_begun_in_a_forked_child_speaks_for_itself(exporter: socket.socket) -> None:
    parent = stallscope.Run("parent")
    told(exporter)
    child = os.fork()
    if child == 0:
        try:
            stallscope.Run("child").finish()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert {(report.run, report.pid) for report in told(exporter)} == {("child", child)}
    parent.finish()


def test_without_an_exporter_a_program_runs_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/none.sock")
    done = play(LOOP + "print('trained')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_disabled_a_program_tells_nothing(exporter: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    assert play(LOOP).returncode == 0
    assert told(exporter) == []
