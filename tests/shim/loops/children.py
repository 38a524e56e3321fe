"""Children that run one training program each, forked from one process that has imported PyTorch."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
HELPERS = FOLDER / "helpers"
LIMIT = 300.0
"""Seconds after which a child is killed; on a quiet machine, none takes ten."""
WARM = {
    "": ("torch", "torch._dynamo", "torch.nn.parallel", "torch.utils.data", "stallscope.tools.cli.run"),
    "torch.distributed": ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict"),
    "fsdp": ("torch.distributed.fsdp",),
    "swa_utils": ("torch.optim.swa_utils",),
    "compile(": ("torch._dynamo.repro.after_aot", "torch._functorch.aot_autograd", "torch._inductor.compile_fx"),
    "safetensors": ("safetensors.torch",),
    "accelerate": ("accelerate", "accelerate.utils"),
    "transformers": ("transformers", "transformers.trainer"),
    "lightning": ("lightning.pytorch",),
    "tqdm": ("tqdm",),
}
"""Modules that take long to import, by the word in a program that shows that it needs them."""
disabled = False
"""True if Stallscope is switched off, to check the programs."""


class Task(NamedTuple):
    """One run of one program."""

    program: Path
    watched: bool
    """Return True if `stallscope run` runs the program."""
    folder: Path
    simulates_time: bool = False
    """True if the program's clock moves only while the program sleeps, and sleeping takes no time."""


class Ended(NamedTuple):
    """How a child ended."""

    exit_code: int | None
    """None where it was killed, in most cases for taking too long."""
    seconds: float
    payloads: tuple[bytes, ...]
    """Reports, in order."""


def warm_up(programs: Sequence[Path]) -> None:
    """Import once what these programs import; modules that are not installed are left out."""
    os.environ["OMP_NUM_THREADS"] = "1"
    texts = [program.read_text() for program in programs]
    for word, names in WARM.items():
        for name in names if any(word in text for text in texts) else ():
            with contextlib.suppress(ImportError):
                __import__(name)
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    # What is lazy at its first use is done here. No backward pass and no `set_num_threads`: threads and their pools do
    # not survive a fork.
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    for (inputs,) in DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2, shuffle=True):
        torch.nn.functional.cross_entropy(model(inputs), torch.zeros(2, dtype=torch.long))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    torch.load(file)


def run(
    tasks: Sequence[Task],
    jobs: int,
    ended: Callable[[Task, Ended], object],
    is_enough: Callable[[Task, Sequence[bytes]], bool] = lambda _task, _payloads: False,
) -> None:
    """Run all tasks, several at a time.

    Args:
        tasks: what to run; each folder is made.
        jobs: number of children at a time.
        ended: called when a task has ended.
        is_enough: called with the reports of a task so far; the task is killed once this returns true.
    """
    waiting = deque(tasks)
    running: list[_Child] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Child(waiting.popleft()))
        select.select([child.listener for child in running], [], [], 0.02)
        for child in tuple(running):
            if (outcome := child.poll(is_enough)) is not None:
                running.remove(child)
                ended(child.task, outcome)


class _Child:
    def __init__(self, task: Task) -> None:
        self.task = task
        task.folder.mkdir(parents=True)
        (task.folder / "work").mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener.bind(str(task.folder / "report.sock"))
        self.listener.setblocking(False)
        self._payloads: list[bytes] = []
        self._began = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _be_program(task)

    def poll(self, is_enough: Callable[[Task, Sequence[bytes]], bool]) -> Ended | None:
        self._receive()
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        seconds = time.monotonic() - self._began
        if pid == 0:
            if seconds < LIMIT and not is_enough(self.task, self._payloads):
                return None
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        # Workers of a loader wait for a time-out before they notice that the program has ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._receive()
        self.listener.close()
        return Ended(os.waitstatus_to_exitcode(status) if pid else None, seconds, tuple(self._payloads))

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._payloads.append(self.listener.recv(65536))


def _be_program(task: Task) -> NoReturn:
    """Run the program in this process, and end as Python ends."""
    code = 70
    try:
        os.setsid()
        _prepare(task)
        code = _status(lambda: _run(task))
        _call_helper("finish")
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does, before it calls atexit's functions
        atexit._run_exitfuncs()
        _call_helper("write_pickles")
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _prepare(task: Task) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(task.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(task.folder / "work")
    for name in tuple(os.environ):
        if name.startswith(("STALLSCOPE_", "SLURM_", "CUDA_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    os.environ.update(
        TRUTH_FOLDER=str(task.folder),
        PYTHONPATH=str(HELPERS),
        STALLSCOPE_ADDRESS=f"unix://{task.folder}/report.sock",
        STALLSCOPE_SUMMARY="off",  # it would be written to the standard error that is compared
        HF_HUB_OFFLINE="1",
        HF_HOME=str(task.folder / "huggingface"),
    )
    if disabled:
        os.environ["STALLSCOPE_DISABLE"] = "1"
    sys.path.insert(1, str(HELPERS))
    os.environ.pop("SIMULATED_TIME", None)
    if task.simulates_time:
        os.environ["SIMULATED_TIME"] = "1"
        import_module("clock").clock.install()
    atexit._clear()  # what the parent registered is the parent's
    sys.argv[:] = [str(task.program)]


def _run(task: Task) -> object:
    if task.watched:
        from stallscope.tools.cli.run import main

        return main(["--name", "loop", str(task.program)])
    module: Any = ModuleType("__main__")
    module.__file__ = str(task.program)
    module.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = module
    sys.path[0] = str(task.program.parent)
    exec(compile(task.program.read_text(), task.program, "exec"), vars(module))
    return 0


def _status(main: Callable[[], object]) -> int:
    try:
        status = main()
    except SystemExit as error:
        status = error.code
    except BaseException as error:
        # Python shows the program's frames alone.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    if status is None or isinstance(status, int):
        return (status or 0) & 0xFF
    print(status, file=sys.stderr)
    return 1


def _call_helper(name: str) -> None:
    if (helper := sys.modules.get("truth")) is not None:
        getattr(helper.truth, name)()
