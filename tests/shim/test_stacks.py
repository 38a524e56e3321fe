"""Stacks of a standstill: real processes, and an exporter that receives them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.intake.stacks import Left
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.stack_request import StackRequest
from stallscope.training.protocol.stacks import Frame
from stallscope.training.shim import requested_stacks
from tests.waiting import until

KEY = ("job", 0)
BEGINNING = """
import ctypes, faulthandler, os, signal, sys, threading, time
import stallscope
from stallscope.training.shim import stacks

stacks.STANDSTILL_SECONDS = stacks.OTHER_SECONDS = 0.2
stacks._NATIVE_SECONDS = 0.2
stacks._FACTOR = 0.0
stacks.EVERY = 0.0

def deadlock(library):
    lock = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)

def threads():
    deadline = time.monotonic() + 30
    while len(found := os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel removes an ended thread a moment later
    return len(found)
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/report.sock")
    return tmp_path / "report.sock"


@pytest.fixture
def intake(path: Path) -> Iterator[Intake]:
    intake = Intake(IntakeSettings(socket=path, udp=None))
    intake.start()
    yield intake
    intake.stop()


def written(folder: Path, program: str) -> Path:
    file = folder / "train.py"
    file.write_text(BEGINNING + textwrap.dedent(program))
    return file


@contextmanager
def hanging(folder: Path, program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(written(folder, program))])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def play(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    file = written(folder, program)
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)


def left(intake: Intake, wanted: Callable[[Left], bool] = lambda _left: True) -> Left:
    def found() -> Left | None:
        intake.stacks.refresh()
        there = intake.stacks.of(KEY)
        return there if there is not None and wanted(there) else None

    return until(found, "no stack arrived")


@pytest.mark.parametrize(
    ("waits", "line"),
    [
        ("time.sleep(1000)", "time.sleep(1000)"),
        ("while True: pass", "while True: pass"),
        ("threading.Lock().acquire() and threading.Event().wait()", "threading.Event().wait()"),
        ("deadlock(ctypes.CDLL(None))", "library.pthread_mutex_lock(lock)"),
        ("deadlock(ctypes.PyDLL(None))", "library.pthread_mutex_lock(lock)"),
    ],
    ids=["sleep", "python", "lock", "native", "native-with-gil"],
)
def test_the_line_of_a_standstill_reaches_the_exporter(intake: Intake, tmp_path: Path, waits: str, line: str) -> None:
    program = f"""
    def step():
        {waits}

    run = stallscope.Run("job")
    run.step()
    step()
    """

    def own(left: Left) -> list[Frame]:
        return [frame for frame in left.capture.stacks[0] if frame.file == str(tmp_path / "train.py")]

    def is_there(left: Left) -> bool:  # an earlier stack is of a process that stalled before it came there
        return line in (tmp_path / "train.py").read_text().splitlines()[own(left)[0].line - 1]

    with hanging(tmp_path, program):
        found = left(intake, is_there)
    assert found.capture.standstill
    assert [frame.function for frame in own(found)][-2:] == ["step", "<module>"]


def test_a_long_pause_in_python_leaves_a_stack_and_harms_nothing(intake: Intake, tmp_path: Path) -> None:
    done = play(
        tmp_path,
        """
        import copy
        run = stallscope.Run("job")
        run.step()
        written, end = b"", time.monotonic() + 60.0
        while b"Standstill" not in written and time.monotonic() < end:
            copy.deepcopy([{"a": [n]} for n in range(50)])
            written = os.pread(stacks._watch._memory.descriptor, 1 << 16, 0)
        print(written.count(b"Standstill"), written.count(b"Timeout"))
        run.finish()
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 0\n", "")


def test_the_stack_is_gone_when_the_rank_reports_again(intake: Intake, tmp_path: Path) -> None:
    program = """
    run = stallscope.Run("job")
    run.step()
    sys.stdin.readline()
    stacks.STANDSTILL_SECONDS = stacks.OTHER_SECONDS = 100.0
    while True:
        run.step()
        time.sleep(0.05)
    """
    process = subprocess.Popen([sys.executable, str(written(tmp_path, program))], stdin=subprocess.PIPE)
    try:
        assert left(intake).capture.standstill
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        until(lambda: intake.stacks.of(KEY) is None, "the stack stayed")
    finally:
        process.kill()
        process.wait()


def test_armed_it_takes_no_python_thread_and_after_the_run_no_thread_at_all(intake: Intake, tmp_path: Path) -> None:
    done = play(
        tmp_path,
        """
        run = stallscope.Run("job")
        run.step()
        print(threading.active_count(), stacks._watch is not None)
        run.finish()
        print(threads(), stacks._watch, signal.getsignal(signal.SIGURG) is signal.SIG_DFL)
        """,
    )
    assert (done.stdout, done.stderr) == ("1 True\n1 None True\n", "")


def test_forked_children_end_and_the_parent_is_still_watched(intake: Intake, tmp_path: Path) -> None:
    program = """
    run = stallscope.Run("job")
    stacks.STANDSTILL_SECONDS = stacks.OTHER_SECONDS = 0.4
    run.step()
    child = os.fork()
    if child == 0:
        time.sleep(0.6)
        faulthandler.cancel_dump_traceback_later()
        sys.exit(0 if stacks._watch is None and threads() == 1 else 1)
    if os.waitpid(child, 0)[1] == 0:
        deadlock(ctypes.PyDLL(None))
    """
    with hanging(tmp_path, program):
        capture = left(intake, lambda left: "deadlock" in [frame.function for frame in left.capture.stacks[0]]).capture
    assert capture.standstill


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_program_s_own_timer_of_faulthandler_keeps_working(intake: Intake, tmp_path: Path, when: str) -> None:
    own = "faulthandler.dump_traceback_later(1.0, exit=True)\n"
    program = f"""
    {own if when == "before" else ""}
    run = stallscope.Run("job")
    {own if when == "during" else ""}
    for _ in range(6):
        run.step()
        time.sleep(0.05)
    time.sleep(1000)  # the stack of a thread that runs may be read while it changes
    """
    done = play(tmp_path, program)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:01)!\n")


def test_the_timers_return_when_the_program_cancels_its_own(intake: Intake, tmp_path: Path) -> None:
    program = """
    run = stallscope.Run("job")
    faulthandler.dump_traceback_later(1000)
    faulthandler.cancel_dump_traceback_later()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        run.step()
    time.sleep(1000)
    """
    with hanging(tmp_path, program):
        assert left(intake).capture.standstill


@pytest.mark.parametrize(
    "setting",
    [
        "os.environ['STALLSCOPE_STACKS'] = '0'",
        "del os.memfd_create",
        "sys._is_gil_enabled = lambda: False",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])",
        "signal.signal(signal.SIGURG, lambda *_: None)",
        "os.environ['STALLSCOPE_ADDRESS'] = 'udp://127.0.0.1:9'",
    ],
)
def test_nothing_is_set_where_it_is_off_or_impossible(intake: Intake, tmp_path: Path, setting: str) -> None:
    done = play(
        tmp_path,
        f"""
        {setting}
        run = stallscope.Run("job")
        run.step()
        print(stacks._watch, threads())
        run.finish()
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None 1\n", "")


def test_a_run_in_another_thread_has_no_timers(intake: Intake, tmp_path: Path) -> None:
    done = play(
        tmp_path,
        """
        def train():
            run = stallscope.Run("job")
            run.step()
            print(stacks._watch)
            run.finish()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_a_program_that_closes_every_descriptor_finds_nothing_written(intake: Intake, tmp_path: Path) -> None:
    done = play(
        tmp_path,
        """
        run = stallscope.Run("job")
        run.step()
        file = stacks._watch._memory.descriptor
        os.closerange(3, 1024)
        others = [os.memfd_create("other") for _ in range(50)]
        time.sleep(0.6)
        assert os.dup2(others[0], file) == file
        run.step()
        time.sleep(0.6)
        print(sum(os.fstat(each).st_size for each in others), threads())
        run.finish()
        print(os.fstat(file).st_size)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n0\n", "")


def test_a_program_that_takes_the_signal_back_is_left_alone(intake: Intake, tmp_path: Path) -> None:
    done = play(
        tmp_path,
        """
        run = stallscope.Run("job")
        run.step()
        signal.signal(signal.SIGURG, signal.SIG_DFL)
        time.sleep(0.6)
        run.step()
        print(threads(), signal.getsignal(signal.SIGURG) is signal.SIG_DFL)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 True\n", "")


def test_a_program_that_replaces_the_process_is_not_signalled(intake: Intake, tmp_path: Path) -> None:
    done = play(
        tmp_path,
        """
        run = stallscope.Run("job")
        run.step()
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1); print('done')"])
        """,
    )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_hundreds_of_threads_deep_stacks_and_odd_names_leave_a_stack(intake: Intake, tmp_path: Path) -> None:
    program = """
    for _ in range(500):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    run = stallscope.Run("job")
    run.step()
    exec("def g(n):\\n    while n == 0: pass\\n    g(n - 1)")
    g.__code__ = g.__code__.replace(co_filename="a\\nb\\0c\\udcff\\u202e.py")
    g(200)
    """
    with hanging(tmp_path, program):
        capture = left(intake, lambda left: left.capture.stacks[0][0].function == "g").capture
    assert {frame.function for frame in capture.stacks[0]} == {"g"}
    assert {frame.file for frame in capture.stacks[0]} == {"a\\nb\\0c\\udcff\\u202e.py"}


def test_a_signal_ends_a_hung_process_as_before(intake: Intake, tmp_path: Path) -> None:
    with hanging(tmp_path, "run = stallscope.Run('job')\ndeadlock(ctypes.PyDLL(None))\n") as process:
        left(intake)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


TRAINING = """
stacks.STANDSTILL_SECONDS = stacks.OTHER_SECONDS = 100.0

def augment():
    time.sleep(0.01)

run = stallscope.Run("job")
while True:
    augment()
    run.step()
"""


def post(intake: Intake, owner: int | None = None, **request: object) -> tuple[int, dict[str, Any]]:
    status, body = intake.stack_requests.post(json.dumps({"run": "job", **request}).encode(), owner)
    return status, json.loads(body)


def reported(intake: Intake) -> bool:
    return bool(intake.registry.held)


@pytest.fixture
def soon(intake: Intake) -> None:
    intake.stack_requests.pickup = 2.0


@pytest.mark.usefixtures("soon")
def test_a_running_rank_takes_the_stacks_that_its_owner_requests(intake: Intake, tmp_path: Path) -> None:
    with hanging(tmp_path, TRAINING.replace('"job"', '"job", rank=3')):
        until(lambda: reported(intake), "no report")
        status, answer = post(intake, os.getuid(), samples=4, interval=0.05, ranks=[3])
        assert (status, answer["problem"]) == (202, "")

        def stacks() -> dict[str, Any] | None:
            post(intake, os.getuid(), samples=4, interval=0.05, ranks=[3])  # again, if the rank has stalled too long
            rank = post(intake, os.getuid(), samples=0)[1]["ranks"][0]
            return rank if len(rank["samples"]) == 4 else None

        rank = until(stacks, "no stacks arrived")
    assert (rank["rank"], rank["standstill"], rank["reachable"], rank["lines"]) == (3, False, True, None)
    assert "augment" in [frame[2] for stack in rank["stacks"] for frame in stack]


@pytest.mark.usefixtures("soon")
def test_a_running_rank_finds_the_lines_that_its_owner_requests_after_the_stacks(
    intake: Intake, tmp_path: Path
) -> None:
    imports = "from stallscope.training.shim import requested_stacks, worker_samples\n"
    program = imports + "worker_samples.SECONDS = 1.0\nrequested_stacks.KEPT_SECONDS = 3.0\n"
    with hanging(tmp_path, program + TRAINING):
        until(lambda: reported(intake), "no report")
        assert post(intake, os.getuid(), samples=2, interval=0.05)[0] == 202
        until(lambda: post(intake, os.getuid(), samples=1, lines=True)[0] == 202, "still refused")

        def lines() -> dict[str, Any] | None:
            post(intake, os.getuid(), samples=1, lines=True)  # again, if the rank has stalled too long
            rank = read(intake)
            return rank if rank["lines"] else None

        rank = until(lines, "no lines arrived")
    assert rank["lines"]["other"]["lines"][0][1] == "augment"
    assert rank["samples"] == []


def test_a_request_right_after_another_is_refused(intake: Intake) -> None:
    run = stallscope.Run("job")
    until(lambda: reported(intake), "no report")
    assert post(intake, samples=1)[0] == 202
    status, answer = post(intake, samples=1, lines=True)
    assert (status, answer["error"]) == (409, "busy")
    assert "try again in" in answer["message"]
    assert post(intake, samples=0)[0] == 200
    run.finish()


def test_the_exporter_says_which_rank_can_leave_nothing(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_STACKS", "0")
    run = stallscope.Run("job")
    until(lambda: reported(intake), "no report")
    rank = read(intake)
    assert (rank["reachable"], rank["lines"], rank["taken"]) == (False, None, None)
    run.finish()


def read(intake: Intake) -> dict[str, Any]:
    found: dict[str, Any] = post(intake, samples=0)[1]["ranks"][0]
    return found


def test_ranks_take_their_samples_at_the_same_moments_not_in_step_with_the_training() -> None:
    request = StackRequest("job", 20, 10.0, (), 2000.0, 1010.0)
    moments = requested_stacks.moments(request, 1003.0)
    assert [int(moment // 10) for moment in moments] == list(range(101, 121)), "one in each interval"
    parts = sorted(moment % 10 for moment in moments)
    assert max(after - before for before, after in itertools.pairwise([0.0, *parts, 10.0])) < 1.0
    assert requested_stacks.moments(request, 1009.9) == moments
    late = requested_stacks.moments(request, 1025.0)
    assert (late[:18], len(late)) == (moments[2:], 20)
    at_once = requested_stacks.moments(request._replace(begins=0.0), 1003.0)
    assert at_once == moments
    assert requested_stacks.moments(request._replace(begins=1e9), 1003.0) == moments, "implausible"


def test_other_users_can_neither_request_nor_read_stacks(intake: Intake, tmp_path: Path, path: Path) -> None:
    with hanging(tmp_path, TRAINING):
        until(lambda: reported(intake), "no report")
        for samples, lines in ((0, False), (1, False), (1, True)):
            status, answer = post(intake, os.getuid() + 1, samples=samples, lines=lines)
            assert (status, answer["error"]) == (403, "not_owner")
    assert list(path.parent.glob("stacks-*")) == []


@pytest.mark.parametrize(
    ("request_", "status", "error"),
    [
        ({"run": "other", "samples": 1}, 404, "unknown_run"),
        ({"samples": 1, "ranks": [9]}, 404, "unknown_rank"),
        ({"samples": 10_000}, 400, "bad_request"),
        ({"samples": 1, "interval": -1}, 400, "bad_request"),
        ({"samples": 1, "interval": "1"}, 400, "bad_request"),
        ({"samples": True}, 400, "bad_request"),
        ({"samples": 1, "ranks": "all"}, 400, "bad_request"),
        ({"samples": 1, "lines": 1}, 400, "bad_request"),
        ({}, 400, "bad_request"),
    ],
)
def test_invalid_requests_are_refused(
    request_: dict[str, object], status: int, error: str, intake: Intake, path: Path
) -> None:
    run = stallscope.Run("job", rank=0)
    until(lambda: reported(intake), "no report")
    found, answer = post(intake, None, **request_)
    run.finish()
    assert (found, answer["error"]) == (status, error)
    assert list(path.parent.glob("stacks-*")) == []


def test_the_file_of_a_request_is_removed_when_it_expires(tmp_path: Path) -> None:
    clock = ScriptedClock()
    intake = Intake(IntakeSettings(socket=tmp_path / "report.sock", udp=None), clock=clock)
    SimulatedRun("job", clock=clock, sender=lambda data: intake.registry.accept(data, "unix", uid=0) and None)
    assert post(intake, samples=1)[0] == 202
    assert len(list(tmp_path.glob("stacks-*.json"))) == 1
    clock.advance(8.0)
    intake.run_housekeeping()
    assert list(tmp_path.glob("stacks-*")) == []
    assert post(intake, samples=1)[0] == 202
    intake.stop()
    assert list(tmp_path.glob("stacks-*")) == []
