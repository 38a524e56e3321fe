"""Cost of the shim for a training loop, next to its peers in the same run.

Nanoseconds a step, the best of several rounds in a tight loop, net of the empty loop; inside a real step, whose
caches hold other things, expect several times as much. Rounds of all rows take turns, so that a machine that slows
down does so for all. Run alone with `python -m tests.benchmarks.shim_cost`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, push_to_gateway

import stallscope
from stallscope.training.shim import worker_samples
from stallscope.training.shim.bursts import Burst
from stallscope.training.shim.timeline import STEP_BUCKETS

_STEPS = 10_000
_ROUNDS = 21
_LONG = 1_000_000
_SENDS = 1000
_STEPS_A_SECOND = 100
"""Of the loop whose sending is spread over its steps: those of 10 ms, at which two reports a second weigh most."""
_REPORTS_A_SECOND = 2
_STARTS = 15
_LOGS = 2000
_PUSHES = 200
_GOAL_BURST = 0.01
_GOAL_IMPORT = 15.0
_GOAL_SEND = 40.0


def table() -> str:
    """Measure, and return the tables as Markdown."""
    with _exporter() as (exporter, address):
        with _reporting_to(address), stallscope.Run("shim-cost") as run:
            costs = _steps(run, exporter)
        present = _send(address, exporter)
        absent = _send("unix:///nowhere/report.sock", exporter)
        with _reporting_to(address):
            burst = _burst()
    observe = costs["prometheus_client: clock, Histogram.observe()"]
    rows = [(name, cost, f"{cost / observe:.2f}") for name, cost in costs.items()]
    spread = costs["one step of stallscope.track()"] + present * _REPORTS_A_SECOND / _STEPS_A_SECOND
    name = f"one step of stallscope.track() at {_STEPS_A_SECOND} a second, its share of the sending included"
    rows.append((name, spread, f"{spread / observe:.2f}"))
    lines = ["| | ns | times observe |", "|---|---|---|"]
    lines += [f"| {name} | {cost * 1e9:.0f} | {ratio} |" for name, cost, ratio in rows]
    four = costs["run.step() and four phases"]
    lines += [
        "",
        "| a step of the peer | µs | times step() with four phases | times one of track() |",
        "|---|---|---|---|",
    ]
    track = costs["one step of stallscope.track()"]
    for name, peer in (("wandb, offline: log()", _wandb), ("prometheus_client: push_to_gateway()", _pushgateway)):
        cost = peer()
        if isinstance(cost, str):
            lines.append(f"| {name} | {cost} | | |")
        else:
            lines.append(f"| {name} | {cost * 1e6:.0f} | {cost / four:.0f} | {cost / track:.0f} |")
    growth, held = _memory()
    lines += ["", "| | measured | goal |", "|---|---|---|"]
    lines += [
        f"| a report written and sent, median | {present * 1e6:.1f} µs | < {_GOAL_SEND:.0f} µs |",
        f"| the same without an exporter | {absent * 1e6:.1f} µs, with growing pauses | no more than with one |",
        f"| CPU time of the thread that samples stacks, during a burst | {burst:.2%} | < {_GOAL_BURST:.0%} |",
        f"| import stallscope | {_start('import stallscope') * 1e3:.1f} ms | < {_GOAL_IMPORT:.0f} ms |",
        f"| the same and a first loop | {_start(_FIRST_LOOP) * 1e3:.1f} ms | < {_GOAL_IMPORT:.0f} ms |",
        f"| memory of the shim, its own modules included | {held / 1e3:.0f} kB | < 1000 kB |",
        f"| its growth over a second million steps | {growth / 1e3:.1f} kB | none |",
    ]
    return "\n".join(lines) + "\n"


def _steps(run: stallscope.Run, exporter: socket.socket) -> dict[str, float]:
    histogram = Histogram("step_seconds", "Step.", buckets=STEP_BUCKETS, registry=CollectorRegistry())

    def empty() -> None:
        for _ in range(_STEPS):
            pass

    def observe() -> None:
        mark = perf_counter()
        for _ in range(_STEPS):
            now = perf_counter()
            histogram.observe(now - mark)
            mark = now

    def step() -> None:
        for _ in range(_STEPS):
            run.step()

    def tracked() -> None:
        for _ in stallscope.track(range(_STEPS), run):
            pass

    def phases() -> None:
        for _ in range(_STEPS):
            with run.phase("forward"):
                pass
            with run.phase("backward"):
                pass
            with run.phase("optimizer"):
                pass
            with run.phase("logging"):
                pass
            run.step()

    def report() -> None:
        for _ in range(_STEPS):
            run.report(loss=0.5)

    functions: dict[str, Callable[[], None]] = {
        "": empty,
        "prometheus_client: clock, Histogram.observe()": observe,
        "run.step()": step,
        "one step of stallscope.track()": tracked,
        "run.step() and four phases": phases,
        "run.report(loss=…)": report,
    }
    best = dict.fromkeys(functions, inf)
    for _ in range(_ROUNDS):
        for name, function in functions.items():
            began = perf_counter()
            function()
            best[name] = min(best[name], (perf_counter() - began) / _STEPS)
            _drain(exporter)
    nothing = best.pop("")
    began = perf_counter()
    for _ in stallscope.track(range(_LONG), run):
        pass
    best["one step of stallscope.track(), mean of a million in a row with all they send"] = (
        perf_counter() - began
    ) / _LONG
    return {name: cost - nothing for name, cost in best.items()}


def _send(address: str, exporter: socket.socket) -> float:
    """Median seconds of a step that sends beyond one that doesn't, with steps of all phases in between."""
    sending, plain = [], []
    with _reporting_to(address), stallscope.Run("send") as run:
        for _ in range(_SENDS):
            for _ in range(20):
                for name in ("data_wait", "forward", "backward", "optimizer"):
                    with run.phase(name):
                        pass
                run.step()
            began = perf_counter()
            run.step()
            plain.append(perf_counter() - began)
            run.timeline.due = 0.0
            began = perf_counter()
            run.step()
            sending.append(perf_counter() - began)
            _drain(exporter)
    return statistics.median(sending) - statistics.median(plain)


def _burst() -> float:
    """Return the CPU time of a burst's thread, as a share of the time that it samples.

    The loop computes in a stack of 40 frames, next to 20 threads that wait.
    """
    ended = threading.Event()
    for _ in range(20):
        threading.Thread(target=ended.wait, daemon=True).start()
    with stallscope.Run("burst") as run:
        burst = Burst(run.timeline)
        burst.start()
        while not burst.is_over:
            with run.phase("data_wait"):
                _nested(40)
            run.step()
        burst.stop()
    ended.set()
    return burst.cost / worker_samples.SECONDS


def _nested(depth: int) -> int:
    """Compute for about 10 ms in a stack of so many frames."""
    return _nested(depth - 1) if depth else sum(number * number % 7 for number in range(100_000))


_FIRST_LOOP = """
import stallscope
for _ in stallscope.track([1, 2, 3], run="first"):
    pass
"""


def _start(program: str) -> float:
    """Seconds that this takes in a new interpreter, the best of several."""
    timed = f"from time import perf_counter as clock\nbegan = clock()\n{program}\nprint(clock() - began)"
    return min(float(_output(timed)) for _ in range(_STARTS))


def _memory() -> tuple[float, float]:
    """Bytes: what a million steps add to a million before, and what the shim holds after them.

    Modules of the standard library, which a training program has already, don't count.
    """
    program = """
        import gc, json, logging, socket, threading, tracemalloc, typing
        tracemalloc.start()
        import stallscope
        run = stallscope.Run("memory")
        def steps(count):
            for _ in stallscope.track(range(count), run):
                with run.phase("forward"):
                    pass
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        early = steps(1_000_000)
        late = steps(1_000_000)
        print(late - early, late)
    """
    for _ in range(2):  # modules take more memory in the process that compiles them
        growth, held = _output(textwrap.dedent(program)).split()
    return float(growth), float(held)


def _output(program: str) -> str:
    environment = {**os.environ, "STALLSCOPE_ADDRESS": "unix:///nowhere/report.sock"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout


def _wandb() -> float | str:
    """Seconds of one log() offline, or the reason for a missing value."""
    if find_spec("wandb") is None:
        return "wandb is not installed"
    wandb: Any = import_module("wandb")
    with tempfile.TemporaryDirectory() as folder:
        logger = wandb.init(mode="offline", dir=folder, project="benchmark", settings=wandb.Settings(silent=True))
        began = perf_counter()
        for number in range(_LOGS):
            logger.log({"loss": 0.5, "step_seconds": number})
        cost = (perf_counter() - began) / _LOGS
        logger.finish()
    return cost


def _pushgateway() -> float | str:
    """Seconds of one push to a gateway on this machine, or the reason for a missing value."""
    program = shutil.which("prometheus-pushgateway") or shutil.which("pushgateway")
    if program is None:
        return "prometheus-pushgateway is not installed"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    gateway = subprocess.Popen(
        [program, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    registry = CollectorRegistry()
    loss = Gauge("loss", "Loss.", registry=registry)
    try:
        deadline = time.monotonic() + 10.0
        while True:
            try:
                push_to_gateway(address, job="benchmark", registry=registry)
                break
            except OSError:
                if time.monotonic() > deadline:
                    return "the gateway does not answer"
                time.sleep(0.05)
        began = perf_counter()
        for number in range(_PUSHES):
            loss.set(number)
            push_to_gateway(address, job="benchmark", registry=registry)
        return (perf_counter() - began) / _PUSHES
    finally:
        gateway.terminate()
        gateway.wait()


@contextlib.contextmanager
def _exporter() -> Iterator[tuple[socket.socket, str]]:
    """A socket that takes reports, and its address."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as exporter:
        place = Path(folder) / "report.sock"
        exporter.bind(str(place))
        exporter.setblocking(False)
        yield exporter, f"unix://{place}"


@contextlib.contextmanager
def _reporting_to(address: str) -> Iterator[None]:
    before = os.environ.get("STALLSCOPE_ADDRESS")
    os.environ["STALLSCOPE_ADDRESS"] = address
    try:
        yield
    finally:
        os.environ.pop("STALLSCOPE_ADDRESS")
        if before is not None:
            os.environ["STALLSCOPE_ADDRESS"] = before


def _drain(exporter: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            exporter.recv(65536)


if __name__ == "__main__":
    print(table())
