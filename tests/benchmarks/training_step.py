"""Measures if a training loop on PyTorch's CPU backend slows down when watched: pairs of steps of ten milliseconds.

Of each pair one step runs in a loop that is tracked, the other in one that is not, in an order drawn by chance; the
difference within pairs is free of what changes slowly on a machine. What the shim itself takes is timed beside, with
caches that hold the training. Reports go to a socket that is read.

Run alone with `python -m tests.benchmarks.training_step --pairs 10000`, which takes some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import socket
import statistics
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Histogram

import stallscope
from stallscope.training.shim.timeline import STEP_BUCKETS

_PAIRS = 500
_ALONE = 200
_STEP = 0.010
_WARM_UP = 20
_TRIM = 0.05
_CONFIDENCE = 1.96


def table(pairs: int = _PAIRS) -> str:
    """Measure, and return Markdown, or the reason why not."""
    if find_spec("torch") is None:
        return "A 10 ms step of PyTorch: not measured, torch is not installed.\n"
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    train = _Training(torch)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as exporter:
        place = Path(folder) / "report.sock"
        exporter.bind(str(place))
        exporter.setblocking(False)
        os.environ["STALLSCOPE_ADDRESS"] = f"unix://{place}"
        own = _own_time(train, exporter)
        with stallscope.Run("training-step") as run:
            differences, plain = _pairs(_tracked(run, train), _bare(train), exporter, pairs)
    usual = statistics.median(plain)
    mean, bound = trimmed(differences)
    verdict = "above the noise" if abs(mean) > bound else "within the noise"
    lines = [
        f"| added to a step of {usual * 1e3:.1f} ms of PyTorch {torch.__version__}, one CPU | µs | of the step |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {cost * 1e6:.1f} | {cost / usual:.3%} |" for name, cost in own.items()]
    reported = (
        f"In {len(differences)} pairs a step in `track()` took {mean * 1e6:+.1f} ± {bound * 1e6:.1f} µs longer"
        f" ({mean / usual:+.3%} ± {bound / usual:.3%}; 95 %, {_TRIM:.0%} of the differences trimmed at each end):"
        f" {verdict}. Steps vary by {statistics.stdev(plain) * 1e6:.0f} µs."
    )
    lines += ["", reported]
    return "\n".join(lines) + "\n"


class _Training:
    """A small network, with as many samples in a batch as take ten milliseconds."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self.length = 0.0
        """Seconds that the newest step took."""
        samples, usual = 64, 0.0
        while usual < 0.8 * _STEP:
            self._batch = torch.randn(samples, 256)
            lengths = []
            for _ in range(_WARM_UP):
                self()
                lengths.append(self.length)
            usual = statistics.median(lengths)
            samples = math.ceil(samples * min(_STEP / usual, 4.0))

    def __call__(self) -> None:
        """Train one step."""
        began = perf_counter()
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self.length = perf_counter() - began


def _bare(train: _Training) -> Iterator[None]:
    while True:
        train()
        yield


def _observed(train: _Training) -> Iterator[None]:
    histogram = Histogram("step_seconds", "Step.", buckets=STEP_BUCKETS, registry=CollectorRegistry())
    mark = perf_counter()
    while True:
        train()
        now = perf_counter()
        histogram.observe(now - mark)
        mark = now
        yield


def _tracked(run: stallscope.Run, train: _Training) -> Iterator[None]:
    for _ in stallscope.track(itertools.count(), run):
        train()
        yield


def _in_phases(run: stallscope.Run, train: _Training) -> Iterator[None]:
    for _ in stallscope.track(itertools.count(), run):
        with run.phase("forward"):
            pass
        with run.phase("backward"):
            train()
        with run.phase("optimizer"):
            pass
        run.report(loss=0.5)
        yield


def _own_time(train: _Training, exporter: socket.socket) -> dict[str, float]:
    """Median seconds of a step outside of the training, with caches as the training left them, beyond a bare loop's."""
    loops: dict[str, Callable[[stallscope.Run], Iterator[None]]] = {
        "": lambda _: _bare(train),
        "prometheus_client: clock, Histogram.observe()": lambda _: _observed(train),
        "stallscope.track()": lambda run: _tracked(run, train),
        "the same, three phases and run.report(loss=…)": lambda run: _in_phases(run, train),
    }
    found = {}
    for name, loop in loops.items():
        own = []
        with stallscope.Run("own-time") as run:
            steps = loop(run)
            for _ in range(_ALONE):
                began = perf_counter()
                next(steps)
                own.append(perf_counter() - began - train.length)
                _drain(exporter)
        found[name] = statistics.median(own)
    nothing = found.pop("")
    return {name: cost - nothing for name, cost in found.items()}


def _pairs(
    tracked: Iterator[None], bare: Iterator[None], exporter: socket.socket, pairs: int
) -> tuple[list[float], list[float]]:
    """Differences, tracked less bare, and the bare steps' lengths, in seconds.

    What happens between the two yields of a loop is one step of it: it is timed from outside, by both alike.
    """
    draw = random.Random(7)
    differences, plain = [], []
    for _ in range(_WARM_UP):
        next(tracked), next(bare)
    for _ in range(pairs):
        first, second = (tracked, bare) if draw.random() < 0.5 else (bare, tracked)
        began = perf_counter()
        next(first)
        middle = perf_counter()
        next(second)
        ended = perf_counter()
        _drain(exporter)
        lengths = {id(first): middle - began, id(second): ended - middle}
        plain.append(lengths[id(bare)])
        differences.append(lengths[id(tracked)] - lengths[id(bare)])
    return differences, plain


def _drain(exporter: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            exporter.recv(65536)


def trimmed(values: list[float]) -> tuple[float, float]:
    """Mean without the extremes, which belong to other programs, and half its confidence interval."""
    ordered = sorted(values)
    cut = int(len(ordered) * _TRIM)
    kept = ordered[cut : len(ordered) - cut]
    winsorized = [ordered[cut]] * cut + kept + [ordered[-cut - 1]] * cut
    error = statistics.stdev(winsorized) / ((1.0 - 2.0 * _TRIM) * math.sqrt(len(ordered)))
    return statistics.fmean(kept), _CONFIDENCE * error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=_PAIRS, help="pairs of steps (default: %(default)s)")
    print(table(parser.parse_args().pairs))
