"""Real processes, forks and exits, reported to a real socket."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import stallscope
from stallscope.training.protocol.report import Report, parse
from stallscope.training.shim import lifetime
from tests.listener import Listener

CLOCK = Path(__file__).parent / "loops/helpers"
"""Folder whose `sitecustomize` replaces the clocks of a Python."""


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    path = tmp_path / "report.sock"
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{path}")
    with contextlib.closing(Listener(path)) as listener:
        yield listener


def received(exporter: Listener) -> list[Report]:
    """Return the reports that have arrived, without notices of signals."""
    return [parse(data) for data, _ in exporter.received() if data.startswith(b"{")]


def held_open() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(gc.callbacks)


def play(script: str, exporter: Listener | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program whose clock moves only while it sleeps."""
    with contextlib.nullcontext() if exporter is None else exporter.reading():
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, "PYTHONPATH": str(CLOCK), "SIMULATED_TIME": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


LOOP = "import stallscope\nfor batch in stallscope.track(range(5), 'job'):\n    pass\n"


@pytest.mark.parametrize(
    ("end", "state"),
    {
        "pass": "finished",
        "sys.exit()": "finished",
        "sys.exit(3)": "failed",
        "sys.exit('no data')": "failed",
        "exit(3)": "failed",
        "raise ValueError": "failed",
        "signal.raise_signal(signal.SIGTERM)": "terminated",
    }.items(),
)
def test_a_program_that_ends_before_a_step_reports_its_end_to_an_exporter_that_started_since(
    end: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/report.sock")
    script = f"""
import signal, sys, stallscope
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
run = stallscope.Run("job")
print("started", flush=True)
input()
before = set(sys.modules)
def show_imports():
    print(*(name for name in set(sys.modules) - before if "stallscope" in name))
import atexit
atexit.register(show_imports)
{end}
"""
    program = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        with contextlib.closing(Listener(tmp_path / "report.sock")) as exporter:
            imported, _ = program.communicate("\n", timeout=60)
            (report,) = received(exporter)
    assert report.state == state
    assert bool(imported.strip()) == (end == "raise ValueError")  # nothing else, least of all in the signal's handler


FREE_NUMBERS = """
import os
free = []
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        free.append(number)
open("free", "w").write(repr(free))
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_the_numbers_of_closed_standard_streams_stay_free(closed: str, exporter: Listener, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LOOP + FREE_NUMBERS)
    with exporter.reading():
        subprocess.run(["sh", "-c", f"{sys.executable} {program} {closed}"], cwd=tmp_path, timeout=120, check=True)
    assert (tmp_path / "free").read_text() == repr([int(each[0]) for each in closed.split()])
    assert received(exporter)[-1].state == "finished"


def test_a_program_that_ends_has_finished(exporter: Listener) -> None:
    done = play(LOOP, exporter)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    last = received(exporter)[-1]
    assert (last.run, last.state, last.gauges["step"]) == ("job", "finished", 5)


LEAVING = """
import stallscope, sys
def train():
    for batch in stallscope.track(range(5), "job"):
        if batch == 3:
            {}
train()
"""
CAUGHT = """
import stallscope
for attempt in range(2):
    try:
        for batch in stallscope.track(range(5), "job"):
            if attempt == 0:
                raise SystemExit(1)
    except SystemExit:
        pass
"""
KEPT = """
import signal, stallscope, sys, time
def train():
    batches = iter(stallscope.track(range(5), "job"))
    for batch in batches:
        time.sleep(0.01)
        if batch == 3:
            {}
    {}
train()
"""
BROKEN_SWEEP = """
import itertools, stallscope, time
for trial in range(3):
    for step, batch in enumerate(stallscope.track(itertools.count(), f"trial-{trial}")):
        time.sleep(0.002)
        if step == 9:
            break
"""
TERMINATED = """
import itertools, os, signal, stallscope, time
def end(*_):
    raise SystemExit(1)
signal.signal(signal.SIGTERM, end)
batches = iter(stallscope.track(itertools.count(), "job"))
for batch in batches:
    if batch == 3:
        os.kill(os.getpid(), signal.SIGTERM)
"""
CONSOLE = """
import code
console = code.InteractiveConsole()
for line in (
    "import stallscope",
    "for batch in stallscope.track(range(5), 'job'): 1 / 0",
    "",
    "for batch in stallscope.track(range(5), 'job'): {}",
    "",
):
    console.push(line)
"""
LOGGED = "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\n"
THREAD = "import sys, threading\nthread = threading.Thread(target=sys.exit, args=(1,))\nthread.start()\nthread.join()"
MINE = "import sys\nsys.excepthook = lambda *_: print('mine')\n"
FAILING = ("sys.exit(1)", "sys.exit('loss is nan')", "raise SystemExit(1)", "raise SystemExit('loss is nan')")
FINISHING = ("sys.exit(0)", "sys.exit()", "raise SystemExit(0)", "raise SystemExit")
ENDS = {
    "an exception": (LOOP + "raise ValueError('boom')", "failed"),
    "an exception with another hook": (MINE + LOOP + "1 / 0", "failed"),
    "an exception that is caught": (LOOP + "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", "finished"),
    "exit of a thread": (LOOP + THREAD, "finished"),
    "SystemExit that is caught, and the run goes on": (CAUGHT, "finished"),
    "break": (LOOP.replace("pass", "break"), "finished"),
    **{f"{end} in the loop": (LEAVING.format(end), "failed") for end in FAILING},
    **{f"{end} in the loop": (LEAVING.format(end), "finished") for end in FINISHING},
    **{f"{end} with a kept iterator": (KEPT.format(end, "pass"), "failed") for end in FAILING},
    **{f"{end} with a kept iterator": (KEPT.format(end, "pass"), "finished") for end in FINISHING},
    "break with a kept iterator": (KEPT.format("break", "pass"), "finished"),
    "break and an exit after it": (KEPT.format("break", "raise SystemExit(0)"), "finished"),
    "an exception with a kept iterator": (KEPT.format("1 / 0", "pass"), "failed"),
    "a handler of SIGTERM with a kept iterator": (TERMINATED, "terminated"),
    "a handler of SIGTERM that exits with 0": (TERMINATED.replace("SystemExit(1)", "SystemExit(0)"), "terminated"),
    "a zipped loop": (
        LEAVING.replace("batch in", "batch, _ in")
        .replace("stallscope.track", "zip(stallscope.track")
        .replace('"job")', '"job"), range(9))')
        .format("raise SystemExit(1)"),
        "failed",
    ),
    "an exception in a console, and the run goes on": (CONSOLE.format("pass"), "finished"),
    "an exception that a hook logs, and the run goes on": (LOOP + LOGGED + LOOP, "finished"),
    "a status that is caught, and the run goes on": (
        LOOP
        + LOGGED.replace("1 / 0", "sys.exit(3)")
        .replace("ZeroDivisionError", "SystemExit")
        .replace("sys.excepthook(*sys.exc_info())", "pass")
        + LOOP,
        "finished",
    ),
    "an exception after one that a hook logged": (LOOP + LOGGED + LOOP + "1 / 0", "failed"),
    "an exception that a hook logs at the end": (LOOP + LOGGED, "failed"),
    "exit(1)": (LOOP + "exit(1)", "failed"),
    "exit()": (LOOP + "exit()", "finished"),
    "quit(1)": (LOOP + "quit(1)", "failed"),
    "quit()": (LOOP + "quit()", "finished"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_by_an_exception_or_a_status_has_failed(end: str, exporter: Listener) -> None:
    """How it ends for its user is tested in `tests/cli/test_endings.py`."""
    script, state = ENDS[end]
    play(script, exporter)
    assert received(exporter)[-1].state == state


def last_states(exporter: Listener) -> dict[str, str]:
    return {report.run: report.state for report in received(exporter)}


SWEEP = """
import stallscope
for trial in range(3):
    for batch in stallscope.track(range(5), f"trial-{trial}"):
        if trial == 2 and batch == 3:
            LAST
"""


@pytest.mark.parametrize(
    ("last", "state"),
    [("pass", "finished"), ("1 / 0", "failed"), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "running")],
)
def test_a_trial_of_a_sweep_has_finished_however_a_later_one_ends(last: str, state: str, exporter: Listener) -> None:
    play(SWEEP.replace("LAST", last), exporter)
    assert last_states(exporter) == {"trial-0": "finished", "trial-1": "finished", "trial-2": state}


def test_a_trial_that_break_ends_has_finished_with_all_its_steps(exporter: Listener) -> None:
    play(BROKEN_SWEEP + "import os\nos._exit(0)", exporter)
    reports = {report.run: report for report in received(exporter)}
    assert {name: report.state for name, report in reports.items()} == {
        "trial-0": "finished",
        "trial-1": "finished",
        "trial-2": "running",
    }
    assert [reports[f"trial-{trial}"].gauges["step"] for trial in range(3)] == [10, 10, 10]


def test_a_trial_has_finished_as_soon_as_the_next_one_begins(exporter: Listener) -> None:
    play(LOOP.replace("job", "first") + LOOP.replace("job", "second") + "import os\nos._exit(0)", exporter)
    assert last_states(exporter) == {"first": "finished", "second": "running"}


def test_runs_whose_loops_alternate_go_on(exporter: Listener) -> None:
    play(
        """
        import stallscope
        for epoch in range(3):
            for name in ("generator", "critic"):
                for batch in stallscope.track(range(5), name):
                    pass
    """,
        exporter,
    )
    reports = received(exporter)
    assert len({report.session for report in reports}) == 2
    last = {report.run: report for report in reports}
    assert {name: (report.state, report.gauges["step"]) for name, report in last.items()} == {
        "generator": ("finished", 15),
        "critic": ("finished", 15),
    }


def test_a_run_whose_loop_is_under_way_goes_on_beside_another(exporter: Listener) -> None:
    play(
        """
        import os, stallscope
        for batch, other in zip(stallscope.track(range(5), "first"), stallscope.track(range(5), "second")):
            pass
        for batch in stallscope.track(range(5), "second"):
            for other in stallscope.track(range(2), "third"):
                pass
            os._exit(0)
    """,
        exporter,
    )
    assert last_states(exporter) == {"first": "finished", "second": "running", "third": "running"}


def test_many_trials_leave_few_sockets_open(exporter: Listener) -> None:
    done = play(
        """
        import os, stallscope
        for trial in range(40):
            for batch in stallscope.track(range(2), f"trial-{trial}"):
                pass
        print(len(os.listdir("/proc/self/fd")))
    """,
        exporter,
    )
    assert int(done.stdout) < 40


def test_a_loader_without_a_run_goes_to_the_run_that_trains(exporter: Listener) -> None:
    play(LOOP.replace("job", "first") + "run = stallscope.Run('second')\n" + LOOP.replace(", 'job'", ""), exporter)
    steps = {report.run: report.gauges["step"] for report in received(exporter)}
    assert steps == {"first": 5, "second": 5}


def test_the_failure_of_a_program_is_reported_by_its_type(exporter: Listener) -> None:
    play(LOOP + "class OutOfMemoryError(RuntimeError):\n    pass\nraise OutOfMemoryError", exporter)
    last = received(exporter)[-1]
    assert (last.state, last.failure, last.counters["out_of_memory"]) == ("failed", "OutOfMemoryError", 1)
    play(LOOP + "import sys\nsys.exit('no more')", exporter)
    last = received(exporter)[-1]
    assert (last.state, last.failure) == ("failed", "")


def test_a_child_of_multiprocessing_reports_its_failure(exporter: Listener) -> None:
    play(
        """
        import multiprocessing, stallscope
        def train():
            for batch in stallscope.track(range(3), "job"):
                pass
            raise LookupError
        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join()
    """,
        exporter,
    )
    last = received(exporter)[-1]
    assert last.state == "failed"
    # From Python 3.13 on, only its status is left by then.
    assert last.failure == ("LookupError" if sys.version_info < (3, 13) else "")


def test_a_killed_program_says_no_last_word(exporter: Listener) -> None:
    done = play(LOOP + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", exporter)
    assert done.returncode == -signal.SIGKILL
    assert received(exporter)[-1].state in ("starting", "running")


def test_a_run_in_a_child_of_multiprocessing_ends_with_it(exporter: Listener) -> None:
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
    play(script, exporter)
    last = {report.rank: report.state for report in received(exporter)}
    assert last == {0: "finished", 1: "failed"}


def test_a_forked_child_is_silent_and_the_parent_goes_on(exporter: Listener) -> None:
    run = stallscope.Run("job", interval=0.0)
    before = len(received(exporter))
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
    assert received(exporter) == []
    run.step()
    run.finish()
    assert {report.pid for report in received(exporter)} == {os.getpid()}


def test_a_run_begun_in_a_forked_child_speaks_for_itself(exporter: Listener) -> None:
    parent = stallscope.Run("parent")
    received(exporter)
    child = os.fork()
    if child == 0:
        try:
            stallscope.Run("child").finish()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert {(report.run, report.pid) for report in received(exporter)} == {("child", child)}
    parent.finish()


def test_a_forked_worker_that_tracks_under_its_parent_s_name_is_silent(exporter: Listener) -> None:
    parent = stallscope.Run("job")
    received(exporter)
    child = os.fork()
    if child == 0:
        try:
            for _ in stallscope.track([1, 2, 3], run="job"):
                pass
            lifetime.finish_all()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert received(exporter) == []
    parent.finish()


@pytest.mark.parametrize(("daemon", "speaks"), [(True, False), (False, True)])
def test_a_daemon_of_multiprocessing_is_a_worker_and_any_other_a_rank(
    daemon: bool, speaks: bool, exporter: Listener
) -> None:
    play(
        f"""
        import multiprocessing, stallscope
        def work():
            for batch in stallscope.track(range(3), run="job"):
                pass
        run = stallscope.Run("job")
        child = multiprocessing.get_context("fork").Process(target=work, daemon={daemon})
        child.start()
        child.join()
    """,
        exporter,
    )
    assert (len({report.session for report in received(exporter)}) == 2) is speaks


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_imports_the_program_is_silent(method: str, exporter: Listener, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, stallscope
        run = stallscope.Run("job")
        def work(number):
            return number
        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                for batch in stallscope.track(pool.imap(work, range(3)), run):
                    pass
        """)
    )
    with exporter.reading():
        subprocess.run([sys.executable, script], timeout=120, check=True)
    reports = received(exporter)
    assert len({report.session for report in reports}) == 1
    assert reports[-1].gauges["step"] == 3


def test_a_run_created_again_ends_the_one_before_and_leaves_nothing_open(exporter: Listener) -> None:
    stallscope.Run("job")
    gc.collect()  # descriptors of earlier tests could be closed later, between the two counts
    before = held_open()
    for _ in range(3):
        newest = stallscope.Run("job")
    assert held_open() == before
    reports = received(exporter)
    assert [report.state for report in reports] == ["starting"] + ["finished", "starting"] * 3
    starts = [report.start for report in reports if report.state == "starting"]
    assert starts == sorted(set(starts))
    other = stallscope.Run("job", rank=1)
    assert not newest.silent
    newest.finish()
    other.finish()


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        pytest.param([None, "absent", "absent", None], 4, id="one that was there may come back"),
        pytest.param([None, "queue_full", None], 3, id="a queue is soon read"),
        pytest.param(["absent", "absent"], 2, id="one that never was is not waited for"),
        pytest.param([None, "denied"], 2, id="what does not mend itself is not waited for"),
    ],
)
def test_the_last_report_waits_briefly_for_a_receiver_that_may_come_back(
    answers: list[str | None], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.training.shim.session._LAST_TRIES", 12_000)
    left = list(answers)
    run = stallscope.Run("job", sender=lambda _: left.pop(0))
    run.finish()
    assert calls == len(answers) - len(left)
    assert left == []


def test_a_run_that_has_ended_is_watched_no_more() -> None:
    run = stallscope.Run("job", sender=lambda _: None)
    assert run in lifetime.watched()
    run.finish()
    assert run not in lifetime.watched()


def test_without_an_exporter_a_program_runs_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/none.sock")
    done = play(LOOP + "print('trained')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_disabled_program_reports_nothing(exporter: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    assert play(LOOP, exporter).returncode == 0
    assert received(exporter) == []
