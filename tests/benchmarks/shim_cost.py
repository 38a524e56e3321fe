"""What the shim takes from a training loop, beside the usual client's histogram in the same run.

Nanoseconds a step, the best of several rounds in a tight loop, net of the empty loop; inside a real step, whose
caches hold other things, expect several times as much. Run alone with `python -m tests.benchmarks.shim_cost`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from prometheus_client import CollectorRegistry, Histogram

import stallscope
from stallscope.shim.timeline import STEP_BUCKETS

_STEPS = 20_000
_ROUNDS = 9


def table() -> str:
    """Measure, and return the table as Markdown."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as exporter:
        address = Path(folder) / "report.sock"
        exporter.bind(str(address))
        exporter.setblocking(False)
        os.environ["STALLSCOPE_ADDRESS"] = f"unix://{address}"
        with stallscope.Run("shim-cost") as run:
            return _measure(run, exporter)


def _measure(run: stallscope.Run, exporter: socket.socket) -> str:
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

    def publish() -> None:
        # Every step with a report, where two a second are usual.
        for _ in range(_STEPS // 100):
            run.timeline.due = 0.0
            run.step()
            exporter.recv(65536)

    _drain(exporter)
    base = _best(empty, exporter)
    usual = (_best(observe, exporter) - base) / _STEPS
    lines = ["| | ns | times observe |", "|---|---|---|"]
    rows: list[tuple[str, Callable[[], None], int]] = [
        ("prometheus_client: clock, Histogram.observe()", observe, _STEPS),
        ("run.step()", step, _STEPS),
        ("one step of stallscope.track()", tracked, _STEPS),
        ("run.step() and four phases", phases, _STEPS),
        ("run.report(loss=…)", report, _STEPS),
        ("a report written and sent, twice a second", publish, _STEPS // 100),
    ]
    for name, function, times in rows:
        cost = (_best(function, exporter) - base * times / _STEPS) / times
        lines.append(f"| {name} | {cost * 1e9:.0f} | {cost / usual:.2f} |")
    return "\n".join(lines) + "\n"


def _best(function: Callable[[], None], exporter: socket.socket) -> float:
    durations = []
    for _ in range(_ROUNDS):
        began = perf_counter()
        function()
        durations.append(perf_counter() - began)
        _drain(exporter)
    return min(durations)


def _drain(exporter: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            exporter.recv(65536)


if __name__ == "__main__":
    print(table())
