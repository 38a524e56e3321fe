"""The summary at the end of `stallscope run`: written once, by the last process, and never in the program's way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stallscope.tools.cli import main
from tests.free_ports import free_port
from tests.waiting import until

Capture = pytest.CaptureFixture[str]
PROGRAM = """
import os, signal, sys, time
import stallscope

def train(steps=40):
    monotonic, clock = time.monotonic, [time.monotonic()]
    time.monotonic = lambda: clock[0]
    run = stallscope.Run("job", samples_per_step=4)
    time.monotonic = monotonic
    with run:
        if "RANK" in os.environ:
            meet(os.environ["RANK"])
        for _ in range(steps):
            with run.phase("data_wait"):
                clock[0] += 0.003
            with run.phase("forward"):
                clock[0] += 0.001
            run.step()
        run.report(loss=1.0)
        exec(sys.argv[1] if len(sys.argv) > 1 else "")

def meet(rank):
    open(f"rank-{rank}", "w").close()
    for _ in range(6000):
        if os.path.exists("rank-0") and os.path.exists("rank-1"):
            return
        time.sleep(0.01)

if __name__ == "__main__":
    train()
"""
"""A training by a simulated clock, so that no load changes its times: 75 % of a step of 4 ms is wait for data.

Ranks wait for each other, as for their first collective: else one could be over before the other has begun.
"""
LAUNCHER = """
import os, subprocess, sys
variables = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, **each}) for each in variables]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
CHILDREN = """
import multiprocessing, os, sys

def rank(number):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    import program
    program.train()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv.pop())
    ranks = [context.Process(target=rank, args=(number,)) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
"""
FIRST = "stallscope run: job "


class Folder:
    """A folder with the programs, and a memory folder for the reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, text in (("program", PROGRAM), ("launcher", LAUNCHER), ("children", CHILDREN)):
            (path / f"{name}.py").write_text(textwrap.dedent(text))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("STALLSCOPE_", "SLURM_"))},
            "STALLSCOPE_ADDRESS": f"unix://{path}/absent.sock",
            "STALLSCOPE_PROMETHEUS_URL": f"http://127.0.0.1:{free_port()}",
        }

    def play(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [sys.executable, *arguments],
            cwd=self.path,
            env=self.environment,
            text=True,
            timeout=120,
            check=False,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def run(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return self.play("-m", "stallscope", "run", *arguments, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def leftovers(folder: Folder) -> list[Path]:
    """Return the folders of reports of this test's programs."""
    found = []
    for path in Path("/dev/shm").glob(f"stallscope-summary-{os.getuid()}-*"):
        with contextlib.suppress(OSError, ValueError):  # of another test that begins or ends now
            settings = json.loads((path / "settings.json").read_text())
            found += [path] if settings["prometheus"] == folder.environment["STALLSCOPE_PROMETHEUS_URL"] else []
    return found


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
    ],
)
def test_a_name_beyond_ascii_is_shown_or_escaped(folder: Folder, locale: dict[str, str]) -> None:
    folder.environment |= {"STALLSCOPE_RUN": "déjà", **locale}
    (folder.path / "short.py").write_text("import stallscope\nfor _ in stallscope.track(range(3)):\n    pass\n")
    done = folder.run("--summary", "summary.json", "short.py")
    assert done.returncode == 0
    assert done.stderr.startswith(("stallscope run: déjà finished", r"stallscope run: d\xe9j\xe0 finished"))
    document = json.loads((folder.path / "summary.json").read_text(encoding="utf-8"))
    assert [run["run"] for run in document["runs"]] == ["déjà"]


def test_the_summary_names_the_phase_with_the_largest_share_and_what_is_unknown(folder: Folder) -> None:
    run = folder.run("program.py")
    assert (run.returncode, run.stdout) == (0, "")
    first, *lines = run.stderr.splitlines()
    assert first.startswith(f"{FIRST}finished after ")
    assert "40 steps of" in first
    texts = {line[:12].strip(): line[12:] for line in lines}
    assert texts["time"].startswith("data wait ")
    assert texts["largest"].startswith("Waiting for data: ")
    assert texts["try"].startswith("Prepare batches ahead of the step, in loader workers or a thread")
    assert texts["unknown"].startswith("Verdict: http://127.0.0.1:")
    assert not leftovers(folder)


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [
        ("sys.exit(3)", 3, "failed (SystemExit)"),
        ("sys.exit()", 0, "finished"),
        ("raise ValueError('boom')", 1, "failed (ValueError)"),
    ],
)
def test_the_programs_own_exit_status_stays(code: str, status: int, state: str, folder: Folder) -> None:
    run = folder.run("program.py", code)
    assert run.returncode == status
    assert f"{FIRST}{state} after" in run.stderr


@pytest.mark.parametrize("code", ["os.kill(os.getpid(), signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_program_that_a_signal_ends_prints_nothing_and_its_reports_are_deleted_later(
    code: str, folder: Folder
) -> None:
    run = folder.run("program.py", code)
    assert run.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    assert run.stderr == ""
    folder.run("program.py")
    assert not leftovers(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "stallscope", "run", sys.executable, "launcher.py", sys.executable, "program.py"),
        ("launcher.py", sys.executable, "-m", "stallscope", "run", "program.py"),
        ("-m", "stallscope", "run", "sh", "-c", f"{sys.executable} -S launcher.py {sys.executable} program.py; true"),
        ("-m", "stallscope", "run", "children.py", "spawn"),
        ("-m", "stallscope", "run", "children.py", "fork"),
    ],
    ids=["a launcher under it", "under a launcher", "a shell under it", "spawned ranks", "forked ranks"],
)
def test_ranks_of_a_node_have_one_summary(arguments: tuple[str, ...], folder: Folder) -> None:
    run = folder.play(*arguments)
    assert run.returncode == 0
    assert run.stderr.count(FIRST) == 1, run.stderr
    assert "  ranks     2 ranks; data wait: " in run.stderr
    assert "nothing to measure" not in run.stderr


def test_trainings_of_one_script_have_a_summary_each(folder: Folder) -> None:
    run = folder.run("sh", "-c", f"{sys.executable} program.py; {sys.executable} -c 1; {sys.executable} program.py")
    assert run.stderr.count(f"{FIRST}finished") == 2


def test_a_run_that_is_too_short_gets_no_advice(folder: Folder) -> None:
    (folder.path / "short.py").write_text(PROGRAM.replace("steps=40", "steps=12"))
    run = folder.run("short.py")
    assert "  short     Too few steps for advice: at least 26 are needed" in run.stderr
    assert "  try " not in run.stderr


def test_a_program_that_never_trains_gets_a_line_as_before(folder: Folder) -> None:
    (folder.path / "plain.py").write_text("print('done')")
    run = folder.run("plain.py")
    assert run.stderr == "stallscope run: plain.py did not import torch, so there was nothing to measure\n"
    assert folder.run(sys.executable, "plain.py").stderr == ""
    assert folder.run("no-such-command").returncode == 127
    assert folder.run("missing.py").returncode == 2
    assert not leftovers(folder)


def test_the_summary_can_be_switched_off(folder: Folder) -> None:
    assert folder.run("--summary=off", "program.py").stderr == ""
    folder.environment["STALLSCOPE_SUMMARY"] = "off"
    assert folder.run("program.py").stderr == ""
    assert FIRST in folder.run("--summary", "text", "program.py").stderr
    folder.environment["STALLSCOPE_SUMMARY"] = "of"
    first, second = folder.run("program.py").stderr.splitlines()[:2]
    assert first.startswith("stallscope run: STALLSCOPE_SUMMARY: expected off, text, json or a file")
    assert second.startswith(FIRST)
    folder.environment["STALLSCOPE_DISABLE"] = "1"
    assert FIRST not in folder.run("--summary", "text", "program.py").stderr


def test_json_is_one_line_and_a_file_is_in_addition_to_the_text(folder: Folder) -> None:
    line = folder.run("--summary=json", "program.py").stderr
    assert line.count("\n") == 1
    run = folder.run("--summary=results.json", "program.py")
    assert FIRST in run.stderr
    for found in (json.loads(line), json.loads((folder.path / "results.json").read_text())):
        assert (found["version"], found["program"], found["failed_conditions"]) == (1, "program.py", [])
        (job,) = found["runs"]
        assert (job["run"], job["state"], job["steps"], job["is_short"]) == ("job", "finished", 40, False)
        assert job["measured_steps"] == 30
        assert job["cause"]["cause"] == "input_bound"
        assert job["lost"] == job["phases"]["data_wait"]
        assert sum(job["phases"].values()) == pytest.approx(1.0, abs=1e-4)


def test_a_summary_has_the_name_of_the_script_that_an_interpreter_runs(folder: Folder) -> None:
    found = json.loads(folder.run("--summary=json", sys.executable, "-u", "program.py").stderr)
    assert found["program"] == "program.py"


def test_a_closed_or_full_standard_error_does_not_break_the_program(folder: Folder) -> None:
    closed = folder.play(
        "-c",
        f"import os, sys; os.close(2); os.execv({sys.executable!r}, sys.argv[1:])",
        *(
            sys.executable,
            "-m",
            "stallscope",
            "run",
            "program.py",
        ),
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    with Path("/dev/full").open("w") as full:
        assert folder.run("program.py", stderr=full).returncode == 0


@pytest.mark.parametrize(
    ("conditions", "status", "words"),
    [
        (("lost>10%", "data_wait > 0.1", "step>1ms"), 90, ("lost>10%: ", "data_wait > 0.1: ", "step>1ms: ")),
        (("lost>80%", "step>5ms"), 0, ()),
        (("augment>5%",), 91, ("augment>5%: run job has no phase augment; it has data_wait, forward, other",)),
    ],
)
def test_conditions_decide_the_exit_status_of_a_program_that_succeeds(
    conditions: tuple[str, ...], status: int, words: tuple[str, ...], folder: Folder
) -> None:
    flags = [word for condition in conditions for word in ("--fail-on", condition)]
    run = folder.run(*flags, "program.py")
    assert run.returncode == status
    assert run.stderr.count("stallscope run: --fail-on: ") == len(words)
    assert all(f"stallscope run: --fail-on: {each}" in run.stderr for each in words)
    assert run.stderr.count(FIRST) == 1


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [
        ("sys.exit(3)", 3, "failed"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "ended without a last report"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "ended without a last report"),
        ("os._exit(4)", 4, "ended without a last report"),
        ("os.abort()", -signal.SIGABRT, "ended without a last report"),
    ],
)
def test_the_exit_status_of_a_failed_program_outweighs_conditions(
    code: str, status: int, state: str, folder: Folder
) -> None:
    run = folder.run("--fail-on", "lost>1%", "program.py", code)
    assert run.returncode == status
    assert f"{FIRST}{state}" in run.stderr
    assert "--fail-on" not in run.stderr


def test_conditions_hold_for_a_command_and_for_a_program_without_steps(folder: Folder) -> None:
    run = folder.run("--summary=off", "--fail-on", "lost>1%", sys.executable, "program.py")
    assert (run.returncode, run.stderr.count("\n"), FIRST in run.stderr) == (90, 1, False)
    nothing = folder.run("--fail-on", "lost>1%", sys.executable, "-c", "1")
    assert nothing.returncode == 91
    assert nothing.stderr == "stallscope run: --fail-on: lost>1%: nothing was measured\n"
    assert folder.run("--fail-on", "lost>1%", "no-such-command").returncode == 127


def test_conditions_within_a_launcher_are_checked_by_each_rank_and_the_first_writes_the_summary(folder: Folder) -> None:
    run = folder.play(*("launcher.py", sys.executable, "-m", "stallscope", "run", "--fail-on", "lost>1%", "program.py"))
    assert (run.returncode, run.stderr.count(FIRST), run.stderr.count("--fail-on: lost>1%: ")) == (90, 1, 2)


def test_signals_reach_the_program_under_a_condition(folder: Folder) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); open('ready', 'w').close(); signal.pause()"
    command = [sys.executable, "-m", "stallscope", "run", "--fail-on", "lost>1%", "program.py", code]
    with subprocess.Popen(command, cwd=folder.path, env=folder.environment, stderr=subprocess.PIPE) as started:
        until((folder.path / "ready").exists)
        started.terminate()
        assert started.wait(60) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--summary", "jsno"), '--summary: expected off, text, json or a file such as summary.json, got "jsno"'),
        (("--summary", "no/such/folder.json"), 'no/such" does not exist; create it'),
        (("--summary", "./"), '"./" is a folder; expected a file such as summary.json'),
        (("--fail-on", "lost"), "--fail-on: expected NAME>VALUE such as lost>20%, data_wait>0.1 or step>250ms"),
        (("--fail-on", "lost>250ms"), '--fail-on: lost: expected a share such as 20% or 0.2, got "250ms"'),
        (
            ("--fail-on", "stepp>250ms"),
            "--fail-on: stepp: expected one of step, lost, data_wait, host_copy, rollout, reward, forward, ",
        ),
        (("--fail-on", "stepp>250ms"), ", or a phase of the program; did you mean step?"),
        (("--fail-on", "data_wiat>2s"), ", or a phase of the program; did you mean data_wait?"),
        (("--fail-on", "xyz>2s"), ", or a phase of the program\n"),
        (("--fail-on", "data_wait>2s"), '--fail-on: data_wait: expected a share such as 20% or 0.2, got "2s"'),
        (("--fail-on", "step>20%"), '--fail-on: step: expected a time such as 250ms, got "20%"'),
        (("--fail-on", "lost>20"), '--fail-on: lost: expected a share below 100%, got "20"; write 20% or 0.2'),
        (("--exporter.url", "ftp://x"), "--exporter.url: 'ftp://x' is not the address of an exporter"),
        (("--prometheus.url", "x"), "--prometheus.url: http://HOST:PORT"),
        (("--sumary", "off"), "unknown flag --sumary; did you mean --summary?"),
    ],
)
def test_invalid_options_are_refused_before_the_program_starts(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments, "program.py"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("stallscope run: ")
    assert words in printed.err


ODD_PROGRAMS = {
    "executes itself again": "import os, sys\nos.execv(sys.executable, [sys.executable, 'program.py'])",
    "trains in a child, and ends before it": (
        "import os, glob, program, time\nparent = os.getpid()\nif os.fork():\n"
        "    while not glob.glob(os.environ['STALLSCOPE_SUMMARY_DIR'] + '/*.report'):\n        time.sleep(0.01)\n"
        "    raise SystemExit\nprogram.train(200)\nwhile os.getppid() == parent:\n    time.sleep(0.01)\nprogram.train()"
    ),
    "closes all files of the process": "import os, program\nprogram.train(30)\nos.closerange(3, 256)\nprogram.train()",
    "clears its environment and changes its folder": (
        "import os, program\nprogram.train()\nos.environ.clear()\nos.chdir('/')"
    ),
    "ignores its children": ("import signal, program\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nprogram.train()"),
    "has modules with the names of libraries": "import program\nprogram.train()",
    "trains in a thread": "import threading, program\nthreading.Thread(target=program.train).start()",
    "has a limit of its files' size": (
        "import program, resource\nprogram.train()\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    ),
    "has two runs": "import program\nprogram.train()\nprogram.train()",
}


@pytest.mark.parametrize("name", ODD_PROGRAMS)
def test_an_odd_program_has_its_summary_once(name: str, folder: Folder) -> None:
    for library in ("requests", "http", "logging") if "names of libraries" in name else ():
        (folder.path / f"{library}.py").write_text("raise SystemExit(9)")
    (folder.path / "odd.py").write_text(ODD_PROGRAMS[name])
    run = folder.run("--summary=./summary.json", "odd.py")
    assert run.returncode == 0
    assert "Traceback" not in run.stderr
    assert run.stderr.count(f"{FIRST}finished") == 1, run.stderr
    if "size" not in name:
        assert json.loads((folder.path / "summary.json").read_text())["runs"][0]["steps"] == 40
    assert not leftovers(folder)


@pytest.mark.parametrize(
    "code",
    [
        "sys.stderr.close()",
        "os.close(2)",
        "sys.modules.pop('json', None); sys.modules['subprocess'] = None",
        "sys.exit = None",
    ],
)
def test_a_program_that_breaks_what_the_summary_uses_ends_as_ever(code: str, folder: Folder) -> None:
    alone = folder.play("program.py", code)
    run = folder.run("program.py", code)
    assert (run.returncode, run.stdout) == (alone.returncode, alone.stdout)
    assert "Traceback" not in run.stderr
