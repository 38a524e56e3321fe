"""Programs run by `stallscope run`: they behave as without it, and report to an exporter."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zipapp
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from stallscope.training.protocol.report import Report, parse
from tests.cli.test_trace import exporter, page
from tests.free_ports import free_port
from tests.listener import Listener
from tests.waiting import until

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make frameworks")

TRAINING = """
import argparse, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--status", type=int, default=0)
parsed = parser.parse_args()

def main():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    context = "spawn" if parsed.workers else None
    loader = DataLoader(
        TensorDataset(torch.ones(12, 4)), batch_size=2, num_workers=parsed.workers, multiprocessing_context=context
    )
    for (inputs,) in loader:
        model(inputs).sum().backward()
        optimizer.step()
    with torch.no_grad():
        for (inputs,) in DataLoader(TensorDataset(torch.ones(4, 4))):
            model(inputs)
    if parsed.status:
        sys.exit(parsed.status)

if __name__ == "__main__":
    main()
"""
BY_HAND = TRAINING.replace("    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", "").replace(
    "        optimizer.step()\n", "        with torch.no_grad():\n            model.weight -= 0.1 * model.weight.grad\n"
)
"""A training without an optimizer, the first of which takes two seconds."""
# Without an optimizer, whose first use imports torch._dynamo for seconds. After init_process_group() the process group
# would also outlive destroy_process_group(), and its threads could end the process with "terminate called without an
# active exception" (pytorch/pytorch#190489), with or without the shim.
RANK = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

def work(rank=-1, world_size=-1, meeting=None):
    model = torch.nn.Linear(4, 2)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    for (inputs,) in DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=2):
        model(inputs).sum().backward()
        dist.all_reduce(model.weight.grad)
        with torch.no_grad():
            model.weight -= 0.1 * model.weight.grad
    dist.destroy_process_group()

if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.multiprocessing.spawn(work, (2, sys.argv[1]), nprocs=2)
    else:
        work()
"""


class Programs:
    """A folder with programs, and the socket to which they report."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self.folder = folder
        self.listener = listener
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STALLSCOPE_", "SLURM_", "PYTHON")) and name not in ("RANK", "WORLD_SIZE")
        }
        self.environment.update(
            STALLSCOPE_ADDRESS=f"unix://{folder}/report.sock", STALLSCOPE_SUMMARY="off", OMP_NUM_THREADS="1"
        )

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.listener.reading():
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=self.folder,
                env={**self.environment, **environment},
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "stallscope", "run", *arguments, **environment)

    def reported(self) -> list[Report]:
        return [parse(data) for data, _ in self.listener.received()]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with contextlib.closing(Listener(tmp_path / "report.sock")) as listener:
        yield Programs(tmp_path, listener)


def without_note(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("stallscope run: "))


ABOUT_ITSELF = """
import pickle, sys, __main__

class Mine:
    pass

print(__name__, __file__, __spec__ and __spec__.name, __package__, sys.argv, sys.path[0])
print(__main__.Mine is Mine, type(pickle.loads(pickle.dumps(Mine()))) is Mine, sorted(vars(__main__)))
"""


@pytest.mark.parametrize("form", ["script", "script elsewhere", "module", "package"])
def test_a_program_finds_itself_as_ever(form: str, programs: Programs) -> None:
    programs.write("about.py", ABOUT_ITSELF)
    programs.write("parts/about.py", ABOUT_ITSELF)
    programs.write("parts/__main__.py", ABOUT_ITSELF)
    programs.write("parts/__init__.py", "")
    arguments = {
        "script": ("about.py", "--name", "mine", "--", "-x"),
        "script elsewhere": (f"{programs.folder}/parts/../parts/about.py", "1"),
        "module": ("-m", "parts.about", "-m", "1"),
        "package": ("-m", "parts"),
    }[form]
    alone, run = programs.python(*arguments), programs.run(*arguments)
    assert alone.returncode == run.returncode == 0, run.stderr
    assert run.stdout == alone.stdout


@pytest.mark.parametrize(
    "text",
    [
        "def broken(:\n    pass",
        "import sys; sys.exit('words')",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(lambda: print('end', __name__)); 1 / 0",
        "import sys\nclass Gone:\n    def write(self, text):\n        1 / 0\nsys.stderr = Gone()\nsys.exit(3)",
    ],
)
def test_a_program_without_a_run_ends_as_without_stallscope(text: str, programs: Programs) -> None:
    programs.write("program.py", text)
    alone, run = programs.python("program.py"), programs.run("program.py")
    assert (run.returncode, run.stdout) == (alone.returncode, alone.stdout)
    assert without_note(run.stderr) == alone.stderr


NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


@contextlib.contextmanager
def process_one(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A program that is process 1 of a namespace, and `unshare`, which exits with its status."""
    (folder / "echo.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run(['sh', '-c', 'true &'])\n"  # leaves an orphan, for which process 1 has to wait
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    print(line, end='', flush=True)\n"
    )
    started = subprocess.Popen(
        [*NAMESPACE, sys.executable, *command, "echo.py"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        if started.stdout.readline() != "ready\n":
            pytest.skip("this machine permits no namespace of processes")
        (first,) = psutil.Process(started.pid).children()
        try:
            yield started, first
        finally:
            started.kill()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_as_process_one_of_a_container_a_program_ends_by_sigterm(tmp_path: Path) -> None:
    with process_one(tmp_path, "-m", "stallscope", "run") as (started, first):
        first.terminate()
        assert started.wait(60) == 128 + signal.SIGTERM


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_without_the_command_process_one_of_a_container_goes_on_after_sigterm(tmp_path: Path) -> None:
    with process_one(tmp_path) as (started, first):
        first.terminate()
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write("still here\n")
        started.stdin.flush()
        assert started.stdout.readline() == "still here\n"


LATE = """
def train():
    import time
    time.sleep(0.5)
    import stallscope
    for _ in stallscope.track(range(5), "late"):
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "start",
    [
        "import threading\nthreading.Thread(target=train).start()",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(train)",
        "import atexit\natexit.register(train)",
        "import threading\nthreading.Timer(0.1, train).start()\nraise SystemExit(0)",
    ],
    ids=["thread", "executor", "atexit", "timer"],
)
def test_what_trains_after_the_main_thread_has_returned_is_measured(start: str, programs: Programs) -> None:
    programs.write("program.py", LATE + start)
    run = programs.run("program.py")
    assert run.returncode == 0
    assert "nothing to measure" not in run.stderr
    assert programs.reported()[-1].gauges["step"] == 5


def test_a_program_with_threads_that_train_nothing_gets_one_note_at_its_end(programs: Programs) -> None:
    programs.write("program.py", "import os, threading\nthreading.Timer(0.2, print, ['late']).start()\nos.fork()")
    run = programs.run("program.py")
    assert run.stderr.count("nothing to measure") == 1


def test_a_program_without_torch_gets_a_note_at_its_end(programs: Programs) -> None:
    programs.write("program.py", "print('done')")
    run = programs.run("program.py")
    assert (run.stdout, run.returncode) == ("done\n", 0)
    assert run.stderr == "stallscope run: program.py did not import torch, so there was nothing to measure\n"
    assert programs.reported() == []


def test_the_note_on_a_program_is_not_printed_to_standard_output_where_there_is_no_other(programs: Programs) -> None:
    programs.write("program.py", "print('done')")
    command = f"{sys.executable} -m stallscope run program.py 2>&-"
    run = subprocess.run(
        ["sh", "-c", command], cwd=programs.folder, env=programs.environment, stdout=subprocess.PIPE, check=True
    )
    assert run.stdout == b"done\n"


@needs_torch
def test_a_program_whose_steps_are_not_found_gets_a_note_how_to_report_them(programs: Programs) -> None:
    programs.write(
        "program.py",
        """
        import torch
        weight = torch.ones(2, requires_grad=True)
        for _ in range(3):
            gradient, = torch.autograd.grad(weight.square().sum(), weight)
            weight = (weight - 0.1 * gradient).detach().requires_grad_()
        """,
    )
    run = programs.run("program.py")
    note = "computed gradients, but no step was found; report steps with stallscope.track() or Run.step()"
    assert (run.returncode, run.stderr) == (0, f"stallscope run: program.py {note}\n")


@needs_torch
def test_a_program_that_computes_no_gradients_needs_no_note(programs: Programs) -> None:
    programs.write("program.py", "import torch\nwith torch.no_grad():\n    torch.nn.Linear(2, 2)(torch.ones(1, 2))")
    run = programs.run("program.py")
    assert (run.returncode, run.stderr) == (0, "")


def test_a_program_that_reports_by_itself_is_not_said_to_be_unmeasured(programs: Programs) -> None:
    programs.write("program.py", "import stallscope\nfor _ in stallscope.track(range(3)):\n    pass\n")
    run = programs.run("program.py")
    assert (run.stderr, run.returncode) == ("", 0)
    assert programs.reported()[-1].state == "finished"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "nothing to run"),
        (("-m",), 2, "nothing to run"),
        (("--nam", "x", "train.py"), 2, "unknown flag --nam; did you mean --name?"),
        (("--name",), 2, "--name: expected a name"),
        (("missing.py",), 2, "can't open file 'missing.py': [Errno 2] No such file or directory"),
        (("-m", "no.such.module"), 1, "No module named 'no'"),
        (("no-such-command",), 127, "no-such-command: command not found"),
    ],
)
def test_what_can_not_be_run_is_said(arguments: tuple[str, ...], status: int, words: str, programs: Programs) -> None:
    run = programs.run(*arguments)
    assert (run.returncode, run.stdout) == (status, "")
    assert run.stderr.startswith("stallscope run: ")
    assert words in run.stderr


@pytest.mark.parametrize(("name", "status"), [("app.pyz", 127), ("./app.pyz", 126), ("./app", 126)])
def test_an_archive_or_a_folder_is_run_by_python(name: str, status: int, programs: Programs) -> None:
    programs.write("app/__main__.py", "print('here')")
    zipapp.create_archive(programs.folder / "app", programs.folder / "app.pyz")
    run = programs.run(name)
    assert run.returncode == status
    assert run.stderr.endswith(f"; if Python runs it: stallscope run python {name}\n")
    assert programs.run(sys.executable, name).stdout == "here\n"


def test_a_command_is_ended_by_a_broken_pipe_as_elsewhere() -> None:
    command = [sys.executable, "-m", "stallscope", "run", "sh", "-c", "kill -PIPE $$"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGPIPE


def test_a_command_takes_the_place_and_its_own_startup_still_runs(programs: Programs) -> None:
    programs.write("site/sitecustomize.py", "import sys; sys.from_site = __file__")
    programs.write("program.py", "import sys, sitecustomize; print(sys.from_site == sitecustomize.__file__, sys.argv)")
    run = programs.run(sys.executable, "program.py", "1", PYTHONPATH=f"{programs.folder}/site")
    assert (run.returncode, run.stdout, run.stderr) == (0, "True ['program.py', '1']\n", "")


@needs_torch
def test_an_unchanged_training_is_measured(programs: Programs) -> None:
    programs.write("jobs/train.py", TRAINING)
    run = programs.run("--name", "mine", sys.executable, "jobs/train.py", "--status", "3")
    assert (run.returncode, run.stderr) == (3, "")
    last = programs.reported()[-1]
    assert (last.run, last.state, last.gauges["step"]) == ("mine", "failed", 6)
    assert last.counters["samples"] == 12
    assert last.info["framework"] == "pytorch"
    occurrences = {name: phase.occurrences for name, phase in last.phases.items()}
    assert (occurrences["backward"], occurrences["optimizer"], occurrences["evaluation"]) == (6, 6, 1)
    assert occurrences["forward"] == 6
    assert last.phases["initialization"].seconds > 0.1  # torch's own import


@needs_torch
def test_workers_that_are_spawned_stay_silent(programs: Programs) -> None:
    programs.write("jobs/train.py", BY_HAND)
    run = programs.run("-m", "jobs.train", "--workers", "1")
    assert (run.returncode, run.stderr) == (0, "")
    reported = programs.reported()
    assert len({report.session for report in reported}) == 1
    assert (reported[-1].state, reported[-1].gauges["dataloader_workers"]) == ("finished", 1)


@needs_torch
def test_a_program_that_tracks_its_loader_itself_is_counted_once(programs: Programs) -> None:
    programs.write(
        "train.py",
        """
        import stallscope, torch
        model = torch.nn.Linear(4, 2)
        for inputs in stallscope.track(torch.utils.data.DataLoader(torch.ones(6, 4)), "own"):
            model(inputs).sum().backward()
            with torch.no_grad():
                model.weight -= 0.1 * model.weight.grad
        """,
    )
    assert programs.run("train.py").returncode == 0
    reported = programs.reported()
    assert {report.run for report in reported} == {"own"}
    assert reported[-1].gauges["step"] == 6
    assert reported[-1].phases["data_wait"].occurrences == 7
    assert reported[-1].phases["backward"].occurrences == 6


@needs_torch
def test_a_training_switched_off_says_nothing(programs: Programs) -> None:
    programs.write("train.py", BY_HAND)
    assert programs.run("train.py", STALLSCOPE_DISABLE="1").returncode == 0
    assert programs.reported() == []


# A rank of this test once ended with "terminate called without an active exception". The suspect is PyTorch, not the
# shim, which starts no native thread. Gloo's threads keep running after destroy_process_group(), also without
# Stallscope. A Gloo thread that frees a tensor with a Python object while the interpreter shuts down aborts the process
# (pytorch/pytorch issues 38228 and 190489). Plain PyTorch aborts there if such a tensor's release is delayed, though
# with another message; 156 ordinary exits of plain PyTorch did not.
@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("form", [pytest.param("torchrun runs it", marks=pytest.mark.nightly), "the program spawns"])
def test_ranks_are_one_run_in_the_exporter(form: str, programs: Programs) -> None:
    """`test_training_endings.py` has torchrun under the command, and `test_run_summary.py` a launcher above it."""
    script = programs.write("ranks.py", RANK)
    (programs.folder / "report.sock").unlink()
    with exporter(programs.folder) as url:
        if form == "torchrun runs it":
            launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port()))
            itself = (sys.executable, "-m", "stallscope", "run", "--name", "job", script)
            done = programs.python(*launcher, "--no-python", *itself)
        else:
            done = programs.run("--name", "job", script, f"tcp://127.0.0.1:{free_port()}")
        assert done.returncode == 0, done.stderr
        for rank in ("0", "1"):
            until(partial(exports, url, f'stallscope_training_step{{run="job",rank="{rank}"}} 6'))
            reported = f'phase_occurrences_total{{run="job",rank="{rank}",phase="communication"}} 6'
            assert f"stallscope_training_{reported}" in page(url)


def exports(url: str, series: str) -> bool:
    return series in page(url)
