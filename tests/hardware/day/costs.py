"""The cost of Stallscope: NVML calls, polls, scrapes, CPU of its processes, and the shim in a training step."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stallscope.model.clients.exporter import ExporterError
from tests.hardware.day import child
from tests.hardware.day.machine import StepError
from tests.hardware.day.node import Node
from tests.hardware.day.recording import Exporter

_SCRAPES = 100
_START_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
_BLOCK_STEPS = 40
_LEAST_PAIRS = 3


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and number of some values; empty without any."""
    if not values:
        return {}
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median": statistics.median(ordered), "p99": p99, "n": len(ordered)}


def nvml(seconds: float, node: Node, folder: Path) -> dict[str, Any]:
    """Return `nvml` and `poll_seconds`.

    Raises:
        StepError: the driver did not respond.
    """
    log = folder / "nvml.log"
    arguments = ["-m", "tests.hardware.day.nvml_calls", f"{seconds:g}"]
    ended = child.run("NVML calls", arguments, log, node.variables, _START_SECONDS + seconds)
    if ended.status:
        raise ended.failure("see if nvidia-smi works")
    found: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return found


def scrapes(exporter: Exporter) -> dict[str, Any]:
    """Return `scrape_seconds` and the size of the page.

    Raises:
        StepError: the exporter did not respond.
    """
    times = []
    size = 0
    for _ in range(_SCRAPES):
        began = time.perf_counter()
        try:
            size = len(exporter.client.read())
        except ExporterError as problem:
            raise StepError(f"scrape: {problem}; see why the exporter does not respond") from None
        times.append(time.perf_counter() - began)
        time.sleep(0.02)
    return {"scrape_seconds": spread(times), "page_bytes": size}


class _Loop:
    """One process of `shim_loop`."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._name = name
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **child.environment(variables)},
                text=True,
                start_new_session=True,
            )

    def block(self) -> float:
        """Run a block of steps; return the seconds of a step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(file=self._process.stdin, flush=True)
            answered = select.select([self._process.stdout], [], [], _ANSWER_SECONDS)[0]
            line = self._process.stdout.readline() if answered else ""
            return float(line)
        except (OSError, ValueError):
            last = next(iter(self._log.read_text(errors="replace").splitlines()[-1:]), "no output")
            raise StepError(f"{self._name}: no answer: {last}; see if PyTorch can train here") from None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def shim(seconds: float, node: Node, exporter: Exporter, folder: Path) -> dict[str, Any]:
    """Return the time of a step with and without `stallscope run`, from blocks of steps that take turns.

    Raises:
        StepError: a loop failed.
    """
    loop = ["-m", "tests.hardware.day.shim_loop", str(_BLOCK_STEPS)]
    run = ["-m", "stallscope", "run", "--summary=off", "--name=shim-cost", *loop]
    variables = {**node.cuda, "STALLSCOPE_ADDRESS": exporter.address, "OMP_NUM_THREADS": "1"}
    loops = [
        _Loop("loop with the shim", run, variables, folder / "with.log"),
        _Loop("loop without the shim", loop, variables, folder / "without.log"),
    ]
    try:
        for each in loops:
            for _ in range(2):
                each.block()
        pairs: list[tuple[float, float]] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(pairs) < _LEAST_PAIRS:
            order = (0, 1) if len(pairs) % 2 else (1, 0)
            found = {place: loops[place].block() for place in order}
            pairs.append((found[0], found[1]))
    finally:
        for each in loops:
            each.close()
    ratios = sorted(with_shim / without for with_shim, without in pairs)
    return {
        "with_us": 1e6 * statistics.median(pair[0] for pair in pairs),
        "without_us": 1e6 * statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "pairs": len(pairs),
        "steps_per_block": _BLOCK_STEPS,
    }
