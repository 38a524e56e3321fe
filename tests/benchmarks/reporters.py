"""Ranks that only report, at a given number and rate: the real shim's reports, sent again and again.

`python -m tests.benchmarks.reporters unix:///tmp/report.sock 64 128 10` sends 128 reports a second of 64 ranks, 10 s.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock

RANKS_A_RUN = 64
_PHASES = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging")
_INFO = {"framework": "pytorch", "user": "someone", "job_class": "production"}
_STEPS = 20
_TICK = 0.0005
"""Seconds between two moments of sending: what is sent at once must fit the queue of a UNIX socket, eleven reports."""


@dataclass(frozen=True)
class Sent:
    """Reports sent."""

    reports: int
    """Reports that the kernel accepted."""
    refused: int
    """Reports that the kernel refused for lack of space: a rank counts such a report as dropped and continues."""
    seconds: float


@contextlib.contextmanager
def reporting(address: str, ranks: int, rate: float, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Send from a process of its own, which prints `Sent` when it ends; see `sent`."""
    command = [sys.executable, "-m", __name__, address, f"{ranks}", f"{rate}", f"{seconds}"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has made its documents, and begins
        yield process


def sent(process: subprocess.Popen[bytes]) -> Sent:
    """Wait until it has sent everything."""
    assert process.stdout is not None
    return Sent(**json.loads(process.stdout.readline()))


def documents(ranks: int) -> list[tuple[bytes, bytes]]:
    """A report of each rank after some steps, cut where the number of the report belongs."""
    found = []
    for number in range(ranks):
        clock = ScriptedClock(time.time() - _STEPS)
        payloads: list[bytes] = []
        run = SimulatedRun(
            f"benchmark-{number // RANKS_A_RUN:02}",
            rank=number % RANKS_A_RUN,
            world_size=min(ranks, RANKS_A_RUN),
            gpus=[{"gpu": f"{number % 8}", "uuid": f"GPU-{number:08x}-5ca1-4b1e-a5a5-000000000000"}],
            samples_per_step=256,
            tokens_per_step=2**19,
            flops_per_step=1e15,
            steps_planned=100_000,
            precision="bf16",
            info={
                "framework": "pytorch",
                "hostname": f"node{number // 8}",
                "user": "someone",
                "job_class": "production",
            },
            clock=clock,
            sender=_into(payloads),
            process=_Process(),
            pid=0,
        )
        for _ in range(_STEPS):
            for phase in _PHASES:
                with run.phase(phase):
                    clock.advance(1 / len(_PHASES))
            run.report(loss=2.0, learning_rate=1e-4, gradient_norm=0.5, epoch=1)
            run.step()
        before, sequence, after = re.split(rb'("sequence":\d+)', payloads[-1])
        assert sequence
        found.append((before + b'"sequence":', after))
    return found


class _Process:
    """Metrics of a rank's process and its GPU memory."""

    def read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Counters and gauges of the report."""
        counters = {"process_cpu_seconds": 1234.567, "main_thread_cpu_seconds": 234.567, "cpu_throttled_seconds": 0.25}
        counters |= {"cpu_periods": 200.0, "cpu_throttled_periods": 3.0, "garbage_collection_seconds": 0.125}
        counters |= {"cgroup_oom_kills": 0.0}
        gauges = {"process_memory_bytes": 24e9, "cpu_limit_cores": 16.0, "dataloader_workers": 8.0}
        gauges |= {"allocator_reserved_bytes": 62e9, "allocator_used_bytes": 40e9, "allocator_peak_bytes": 58e9}
        return counters, gauges

    def close(self) -> None:
        """Nothing is held."""


def _into(payloads: list[bytes]) -> Any:
    def send(payload: bytes) -> None:
        payloads.append(payload)

    return send


def _send(address: str, ranks: int, rate: float, seconds: float) -> Sent:
    parts = urlsplit(address)
    target: Any = parts.path if parts.scheme == "unix" else (parts.hostname, parts.port)
    family = socket.AF_UNIX if parts.scheme == "unix" else socket.AF_INET
    ready = documents(ranks)
    print("sending", flush=True)
    taken = refused = 0
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(target)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            for number in range(taken + refused, int(passed * rate)):
                before, after = ready[number % ranks]
                try:
                    sender.send(b"%b%d%b" % (before, 1_000_000 + number, after))
                    taken += 1
                except BlockingIOError:
                    refused += 1
            time.sleep(_TICK)
        return Sent(taken, refused, time.monotonic() - began)


if __name__ == "__main__":
    outcome = _send(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
    print(json.dumps(asdict(outcome)), flush=True)
