"""Whether a training loop on PyTorch's CPU backend slows down when it is watched: pairs of steps of ten milliseconds.

Of each pair one step runs in a loop that is tracked and has its phases booked, the other in one that is not, in an
order drawn by chance; the difference within pairs is free of what changes slowly on a machine. Reports go to a socket
that is read. Run alone with `python -m tests.benchmarks.training_step --pairs 10000`, which takes some minutes.
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

import stallscope

_PAIRS = 500
_STEP = 0.010
_WARM_UP = 20
_TRIM = 0.05
_CONFIDENCE = 1.96


def table(pairs: int = _PAIRS) -> str:
    """Measure, and return a line of Markdown, or why there is none."""
    if find_spec("torch") is None:
        return "A 10 ms step of PyTorch: not measured, torch is not installed.\n"
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    train = _training(torch)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as exporter:
        place = Path(folder) / "report.sock"
        exporter.bind(str(place))
        exporter.setblocking(False)
        os.environ["STALLSCOPE_ADDRESS"] = f"unix://{place}"
        with stallscope.Run("training-step") as run:
            differences, plain = _pairs(_watched(run, train), _unwatched(train), exporter, pairs)
    usual = statistics.median(plain)
    mean, bound = _trimmed(differences)
    noise = statistics.stdev(plain)
    verdict = "told from noise" if abs(mean) > bound else "not told from noise"
    return (
        f"A step of {usual * 1e3:.1f} ms of PyTorch {torch.__version__} on one processor, {len(differences)} pairs:"
        f" watched {mean * 1e6:+.1f} ± {bound * 1e6:.1f} µs ({mean / usual:+.3%} ± {bound / usual:.3%}, 95 %, of"
        f" differences trimmed by {_TRIM:.0%} at each end), {verdict}; a step varies by {noise * 1e6:.0f} µs.\n"
    )


def _training(torch: Any) -> Callable[[], None]:
    """One step of a small network, with as many samples as take ten milliseconds."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = 64
    while True:
        batch = torch.randn(samples, 256)

        def train() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()  # noqa: B023 - the last one is meant
            optimizer.step()

        for _ in range(_WARM_UP):
            train()
        began = perf_counter()
        for _ in range(_WARM_UP):
            train()
        length = (perf_counter() - began) / _WARM_UP
        if length > 0.8 * _STEP:
            return train
        samples = math.ceil(samples * min(_STEP / length, 4.0))


def _unwatched(train: Callable[[], None]) -> Iterator[None]:
    for _ in itertools.count():
        train()
        yield


def _watched(run: stallscope.Run, train: Callable[[], None]) -> Iterator[None]:
    for _ in stallscope.track(itertools.count(), run):
        with run.phase("forward"):
            pass
        with run.phase("backward"):
            train()
        with run.phase("optimizer"):
            pass
        run.report(loss=0.5)
        yield


def _pairs(
    watched: Iterator[None], unwatched: Iterator[None], exporter: socket.socket, pairs: int
) -> tuple[list[float], list[float]]:
    """Differences, watched less unwatched, and the unwatched steps' lengths, in seconds.

    What happens between the two yields of a loop is one step of it: it is timed from outside, by both alike.
    """
    draw = random.Random(7)
    differences, plain = [], []
    for _ in range(_WARM_UP):
        next(watched), next(unwatched)
    for _ in range(pairs):
        first, second = (watched, unwatched) if draw.random() < 0.5 else (unwatched, watched)
        began = perf_counter()
        next(first)
        middle = perf_counter()
        next(second)
        ended = perf_counter()
        with contextlib.suppress(BlockingIOError):
            exporter.recv(65536)
        lengths = {id(first): middle - began, id(second): ended - middle}
        plain.append(lengths[id(unwatched)])
        differences.append(lengths[id(watched)] - lengths[id(unwatched)])
    return differences, plain


def _trimmed(values: list[float]) -> tuple[float, float]:
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
