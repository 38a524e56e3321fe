"""Cost of stack samples for a step of ten milliseconds: armed but idle, during a burst, and with STALLSCOPE_STACKS=0.

Two processes train in turn, one with stacks and one without, in blocks of steps that follow each other, so that a
machine that slows down does so for all. Each round has new processes, since the layout of their memory counts. The loop
computes in a stack of 40 frames, next to 20 threads that wait. CPU time is of all threads of the process: what the
sampling thread takes, and what it costs the loop by the caches.

Run alone with `python -m tests.benchmarks.stack_samples`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time

import stallscope
from tests.benchmarks.training_step import trimmed
from tests.benchmarks.unmodified_loop import drained_socket

_ROUNDS = 12
_TURNS = 3
"""Blocks of each kind in a round."""
_STEPS = 100
"""Steps of a block: a second."""
_STEP = 0.010
_FRAMES = 40
_THREADS = 20
_GOAL = 1.01
_IDLE, _BURST = "idle", "burst"


def table() -> str:
    """Measure, and return Markdown."""
    numbers = _numbers_of_a_step()
    off, idle, burst = [], [], []
    with drained_socket() as address:
        for _ in range(_ROUNDS):
            with _training("0", numbers, address) as bare, _training("1", numbers, address) as armed:
                _block(bare, _IDLE), _block(armed, _IDLE)  # warm up
                for _ in range(_TURNS):
                    off.append(_block(bare, _IDLE))
                    idle.append(_block(armed, _IDLE))
                    burst.append(_block(armed, _BURST))
    head = f"CPU time of a step, median of {len(off)} blocks of {_STEPS} steps"
    lines = [f"| {head} | ms | ratio, 95 % | goal |", "|---|---|---|---|"]
    lines.append(f"| `STALLSCOPE_STACKS=0` | {statistics.median(off) * 1e3:.2f} | | |")
    lines.append(_row("armed, no burst, against that", idle, off))
    lines.append(_row("during a burst, against armed without one", burst, idle))
    return "\n".join(lines) + "\n"


def _row(name: str, costs: list[float], others: list[float]) -> str:
    ratio, bound = trimmed([cost / other for cost, other in zip(costs, others, strict=True)])
    return f"| {name} | {statistics.median(costs) * 1e3:.2f} | {ratio:.3f} ± {bound:.3f} | < {_GOAL} |"


def _numbers_of_a_step() -> int:
    """Return the size of a computation that takes about ten milliseconds."""
    numbers = 1000
    while True:
        began = time.thread_time()
        _compute(_FRAMES, numbers)
        if time.thread_time() - began >= _STEP:
            return numbers
        numbers = int(numbers * 1.1)


def _training(stacks: str, numbers: int, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.stack_samples", str(numbers)],
        env={**os.environ, "STALLSCOPE_ADDRESS": address, "STALLSCOPE_STACKS": stacks},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def _block(process: subprocess.Popen[str], kind: str) -> float:
    """Let a process train a block of steps, and return the CPU seconds of a step."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{kind}\n")
    return float(process.stdout.readline())


def _train(numbers: int) -> None:
    """Train a block of steps for each line of standard input, and print the CPU seconds of a step."""
    ended = threading.Event()
    for _ in range(_THREADS):
        threading.Thread(target=ended.wait, daemon=True).start()
    with stallscope.Run("stack-samples") as run:
        for line in sys.stdin:
            if line.strip() == _BURST:
                assert run.hot_lines is not None
                run.hot_lines.begin(run.timeline.now(), len)
            began = time.process_time()
            for _ in range(_STEPS):
                with run.phase("data_wait"):
                    _compute(_FRAMES, numbers)
                run.step()
            print((time.process_time() - began) / _STEPS, flush=True)
            if run.hot_lines is not None:
                run.hot_lines.close()


def _compute(depth: int, numbers: int) -> int:
    return _compute(depth - 1, numbers) if depth else sum(number * number % 7 for number in range(numbers))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _train(int(sys.argv[1]))
    else:
        print(table())
