"""Time of the exporter's NVML calls and of a poll: `python -m tests.hardware.day.nvml_calls SECONDS`."""

from __future__ import annotations

import json
import sys
import time

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.drivers.nvidia.library import PynvmlLibrary
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from stallscope.node.drivers.nvidia.record import RecordingLibrary
from stallscope.node.sampling.clock import Clock, ScriptedClock, SystemClock
from stallscope.node.sampling.sampler import Sampler
from tests.hardware.day.costs import spread

_INTERVAL = 0.25
_LONGEST_INTERVAL = 61.0
"""Seconds after which every signal is due."""


def polls(library: RecordingLibrary, seconds: float, *, clock: Clock | None = None) -> list[float]:
    """Poll as the exporter does; return the seconds of each poll.

    Args:
        library: the driver's library.
        seconds: duration.
        clock: a clock that stands still, and is set forward here so that every signal is due in each poll.

    Raises:
        RuntimeError: the driver did not respond.
    """
    ticks = clock or SystemClock()
    sampler = Sampler(interval=_INTERVAL, clock=ticks)
    sampler.add(
        NvidiaCollector(
            Environment(
                interval=_INTERVAL, clock=ticks, driver=lambda: NvmlDriver(library, ticks.monotonic, ticks.time)
            )
        )
    )
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        sampler.run_round()
        found.append(time.perf_counter() - began)
        if sampler.statuses[0].error:
            raise RuntimeError(sampler.statuses[0].error)
        if isinstance(clock, ScriptedClock):
            clock.advance(_LONGEST_INTERVAL)
        else:
            time.sleep(_INTERVAL)
    sampler.stop()
    return found


def main() -> int:
    """Print JSON; return 1 without a driver."""
    library = RecordingLibrary(PynvmlLibrary())
    seconds = float(sys.argv[1]) / 2
    try:
        usual = polls(RecordingLibrary(PynvmlLibrary()), seconds)
        polls(library, seconds, clock=ScriptedClock(time.time()))
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
        return 1
    calls: dict[str, list[float]] = {}
    for call in library.calls:
        calls.setdefault(call.name, []).append(call.seconds * 1e6)
    nvml = {
        name: {"median_us": found["median"], "p99_us": found["p99"], "n": found["n"]}
        for name, times in sorted(calls.items())
        if (found := spread(times))
    }
    # The first poll finds out what the GPU has.
    print(json.dumps({"nvml": nvml, "first_poll_seconds": usual[0], "poll_seconds": spread(usual[1:] or usual)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
