"""PyTorch trainings under `stallscope run` end as without it, and their last states are right.

They update their weights by hand: importing PyTorch takes three seconds, and the first optimizer two more.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_endings import Ended, Ending, environment_of, intake, play
from tests.cli.test_run_command import needs_torch
from tests.free_ports import free_port

pytestmark = [needs_torch, pytest.mark.timeout(900)]  # the first import of PyTorch also compiles it

TRAIN = """
def train(steps=6, **options):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(4, 2)
    for (inputs,) in DataLoader(TensorDataset(torch.ones(2 * steps, 4)), batch_size=2, **options):
        model(inputs).sum().backward()
        with torch.no_grad():
            model.weight -= 0.1 * model.weight.grad
        yield
"""
PATCH = """
import torch
calls = []
def patched(kind, name):
    original = getattr(kind, name)
    def replacement(*arguments, **options):
        calls.append(name)
        return original(*arguments, **options)
    setattr(kind, name, replacement)
def patch():
    patched(torch.utils.data.DataLoader, "__iter__")
    patched(torch.nn.Module, "__call__")
    patched(torch.Tensor, "backward")
"""
COUNTED = "print({name: calls.count(name) for name in sorted(set(calls))})\n"
PROGRAMS = {
    "imported late": (Ending(TRAIN + "print(len(list(train())))"), Ended(0, "6\n", "")),
    "imported in a thread": (
        Ending(
            TRAIN + "import threading\nthread = threading.Thread(target=lambda: print(len(list(train()))))\n"
            "thread.start()\nthread.join()"
        ),
        Ended(0, "6\n", ""),
    ),
    "patched before and between two epochs": (
        Ending(TRAIN + PATCH + "patch()\nprint(len(list(train())))\npatch()\nprint(len(list(train())))\n" + COUNTED),
        Ended(0, "6\n6\n{'__call__': 18, '__iter__': 3, 'backward': 18}\n", ""),
    ),
    "exception in a loop": (
        Ending(
            TRAIN + "for step, _ in enumerate(train()):\n    if step == 3:\n        raise ValueError('loss is nan')",
            "failed",
        ),
        Ended(
            1,
            "",
            'Traceback (most recent call last):\n  File "program.py", line 13, in <module>\n'
            "    raise ValueError('loss is nan')\nValueError: loss is nan\n",
        ),
    ),
    "terminated with workers": (
        Ending(
            TRAIN + "import os, signal\n"
            "for step, _ in enumerate(train(num_workers=2, multiprocessing_context='fork')):\n"
            "    if step == 3:\n        os.kill(os.getpid(), signal.SIGTERM)",
            "terminated",
        ),
        Ended(-signal.SIGTERM, "", ""),
    ),
    "a worker terminated": (
        Ending(
            TRAIN + "import multiprocessing, os, signal\ntry:\n"
            "    for step, _ in enumerate(train(600, num_workers=1, multiprocessing_context='fork')):\n"
            "        if step == 3:\n            os.kill(multiprocessing.active_children()[0].pid, signal.SIGTERM)\n"
            "except Exception:\n    print('a worker is gone')\n    raise SystemExit(3) from None",
            "failed",
        ),
        Ended(3, "a worker is gone\n", ""),
    ),
}
"""Programs, and how they end without Stallscope."""
EVERY_TIME = "a worker terminated"
"""The program that runs at every change: what it does, all of them do."""
RANK = """
import os, sys, time
import stallscope

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in stallscope.track(range(6000)):
    if rank == 0 and step == 5:
        open("began", "w").close()
    if rank == 1 and step == 5 and attempt < int(sys.argv[1]):
        while not os.path.exists("began"):  # otherwise it may be terminated before its run begins
            time.sleep(0.1)
        raise ValueError("boom")
    if attempt >= int(sys.argv[1]) and step == 5:
        if len(sys.argv) > 2:
            open(sys.argv[2] + str(rank), "w").close()
        else:
            break
    if step > 3:
        time.sleep(0.1)
"""
"""A rank without PyTorch, which each would import for seconds: the launcher has it."""


@pytest.mark.parametrize(
    "name",
    [name if name == EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in PROGRAMS],
)
def test_a_training_ends_as_without_us(name: str, tmp_path: Path) -> None:
    ending, alone = PROGRAMS[name]
    (tmp_path / "program.py").write_text(ending.text)
    with intake(tmp_path) as running:
        ended = play(("-m", "stallscope", "run", "program.py"), ending, tmp_path)
        assert ended._replace(errors=ended.errors.replace(f"{tmp_path}/", "")) == alone
        running.stop(timeout=60)
        running.run_housekeeping()
        (held,) = running.registry.held
        assert (held.state, held.restarts) == (ending.state, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("restarts", "status", "states"),
    [
        pytest.param(0, 1, ["terminated", "failed"], marks=pytest.mark.nightly),
        (1, 0, ["finished", "finished"]),
    ],
)
def test_ranks_of_torchrun_where_one_fails(restarts: int, status: int, states: list[str], tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    arguments = (*launcher(restarts), "rank.py", "1")
    with intake(tmp_path) as running:
        command = ("-m", "stallscope", "run", "--name", "job", sys.executable, *arguments)
        assert play(command, Ending(""), tmp_path).status == status
        running.stop(timeout=60)
        running.run_housekeeping()
        held = sorted(running.registry.held, key=lambda each: each.report.rank)
        assert [each.state for each in held] == states
        assert [each.restarts for each in held] == [restarts] * 2
        assert [(each.report.run, each.report.rank) for each in held] == [("job", 0), ("job", 1)]


@pytest.mark.nightly
@pytest.mark.slow
def test_ranks_of_a_torchrun_that_is_terminated(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", "stallscope", "run", "--name", "job", sys.executable, *launcher(0), "rank.py"]
    with intake(tmp_path) as running:
        started = subprocess.Popen(
            [*command, "0", str(tmp_path / "begun")], cwd=tmp_path, env=environment_of(tmp_path), stderr=subprocess.PIPE
        )
        with started:
            while started.poll() is None and not all((tmp_path / f"begun{rank}").exists() for rank in range(2)):
                time.sleep(0.05)
            started.send_signal(signal.SIGTERM)
            started.communicate(timeout=280)
        running.stop(timeout=60)
        running.run_housekeeping()
        assert [each.state for each in running.registry.held] == ["terminated"] * 2


def launcher(restarts: int) -> tuple[str, ...]:
    return (
        *("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())),
        *("--max-restarts", str(restarts)),
    )
