"""Cost of one sampling round of eight GPUs: CPU time and duration.

CPU time and the readings' own durations are the exporter's, from its page. From when to when a round's calls
run, all threads together, shows in the stand-in's call counters, which are watched from the other CPU.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.exporters import Server, await_everything, busy_node, ours
from tests.benchmarks.processes import SERVER_CPU, Client, running
from tests.nvml_library.stand_in import NvmlStandIn

_SECONDS = 61
"""Long enough to hold a round in which everything is due, the slowest questions too."""
_QUIET_SECONDS = 0.2
"""Seconds without a call that end a round."""
_CPU = b'stallscope_exporter_source_cpu_seconds_total{source="nvidia"} '
_DURATION = b'stallscope_exporter_source_reading_seconds_total{source="nvidia"} '


@dataclass(frozen=True)
class Rounds:
    """Cost of rounds at one delay of the driver, in milliseconds."""

    cpu: float
    """CPU time a round: GPUs, enumeration and the listener for events."""
    calls: float
    readings: float
    """Durations of all readings of a round added up, the listener's wait for events included."""
    elapsed: tuple[float, ...]
    """From the first call of a round to the end of its last."""


def table() -> str:
    """Measure, and return the table as Markdown."""
    with tempfile.TemporaryDirectory() as folder, busy_node(Path(folder)) as node:
        found = {}
        for delay in (0, 200):
            node.set_delay(delay)
            found[delay] = _measure(ours(Path(folder)), node, delay)
    rows = [
        ("CPU time, ms", "< 5 at 0 µs", [f"{each.cpu:.2f}" for each in found.values()]),
        (
            "of these as many bare sleeps, ms",
            "",
            [f"{_sleeping(each.calls, delay):.2f}" if delay else "" for delay, each in found.items()],
        ),
        (
            "first call to last, ms (median)",
            "< 40 at 200 µs",
            [f"{statistics.median(each.elapsed):.1f}" for each in found.values()],
        ),
        ("first call to last, ms (longest)", "< 40 at 200 µs", [f"{max(each.elapsed):.1f}" for each in found.values()]),
        (
            "all readings added up, ms (with the listener's wait of 50)",
            "",
            [f"{each.readings:.1f}" for each in found.values()],
        ),
        ("driver calls, events included", "", [f"{each.calls:.1f}" for each in found.values()]),
    ]
    return "\n".join(
        [
            f"Mean of {len(found[200].elapsed)} rounds a second apart; each GPU is read on a thread of its own.",
            "",
            "| a round of 8 GPUs | to reach | " + " | ".join(f"{delay} µs a call" for delay in found) + " |",
            "|---|---" + "|---" * len(found) + "|",
            *(f"| {name} | {goal} | {' | '.join(cells)} |" for name, goal, cells in rows),
        ]
    )


def _measure(server: Server, node: NvmlStandIn, delay: int) -> Rounds:
    started = time.perf_counter()
    with running(server.command, node.environment, SERVER_CPU):
        await_everything(server, node, started)
        client = Client(server.port, gzip=False)
        before, calls = client.get(), node.calls()
        elapsed = _watch(node, delay)
        after, calls = client.get(), node.calls() - calls
        client.close()
    rounds = len(elapsed)
    return Rounds(
        cpu=(_value(after, _CPU) - _value(before, _CPU)) / rounds * 1000,
        calls=calls / rounds,
        readings=(_value(after, _DURATION) - _value(before, _DURATION)) / rounds * 1000,
        elapsed=elapsed,
    )


def _watch(node: NvmlStandIn, delay: int) -> tuple[float, ...]:
    """Milliseconds of each round that begins within the time; starts and ends between two rounds."""
    counters = [slot for slot in node.control.counter if slot.name]
    found: list[float] = []
    until = time.perf_counter() + _SECONDS
    seen = sum(slot.calls for slot in counters)
    began: float | None = None
    last = time.perf_counter()
    while True:
        calls, now = sum(slot.calls for slot in counters), time.perf_counter()
        if calls != seen:
            seen, last = calls, now
            began = now if began is None else began
        elif now - last > _QUIET_SECONDS:
            if began is not None:
                found.append((last - began) * 1000 + delay / 1000)
                began = None
            if now > until:
                return tuple(found)


def _sleeping(calls: float, delay: int) -> float:
    """Return the CPU time in milliseconds of this many sleeps, which the stand-in makes in a call."""
    repetitions = 20 * round(calls)
    before = time.thread_time()
    for _ in range(repetitions):
        time.sleep(delay / 1e6)
    return (time.thread_time() - before) / 20 * 1000


def _value(body: bytes, prefix: bytes) -> float:
    (line,) = (line for line in body.splitlines() if line.startswith(prefix))
    return float(line.removeprefix(prefix))


if __name__ == "__main__":
    print(table())
