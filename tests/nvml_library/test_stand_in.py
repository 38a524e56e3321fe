"""The stand-in library: its samples are the truth that accuracy is measured by, and it counts what tests rely on.

Other answers are tested through the driver (`tests/drivers/nvidia`) and the real exporter (`tests/faults`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.nvml_library.stand_in import NvmlStandIn, Wave
from tests.waiting import until

_BEGIN = """
import ctypes, json, os, sys, threading, time
import pynvml as n

def code(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as problem:
        return f"error {problem.value}"

def sample(handle):
    return n.nvmlGpmSampleGet(handle, n.nvmlGpmSampleAlloc())

def report(*values):
    print(json.dumps(values if len(values) > 1 else values[0]), flush=True)

n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
"""


def run_script(node: NvmlStandIn, script: str) -> Any:
    """Return the values that a script in its own process passes to `report`."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + script],
        env=os.environ | node.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Conversation:
    """A script in a process of its own that answers each line with one of JSON."""

    def __init__(self, node: NvmlStandIn, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + script],
            env=os.environ | node.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request(self, line: object = "") -> Any:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Let the script run to its end."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@pytest.fixture
def converse(nvml_stand_in: NvmlStandIn) -> Iterator[Callable[[str], Conversation]]:
    """Begin a conversation on the node; killed after the test where it did not end."""
    begun: list[Conversation] = []

    def begin(script: str) -> Conversation:
        begun.append(Conversation(nvml_stand_in, script))
        return begun[-1]

    yield begin
    for each in begun:
        each._process.kill()
        each._process.communicate()


WAVES = {
    "square": (Wave.SQUARE, 700_000, 80),
    "saw-tooth": (Wave.SAW_TOOTH, 900_000, 100),
    "random": (Wave.RANDOM, 130_000, 95),
}


@pytest.mark.parametrize("wave", WAVES)
def test_buffered_samples_add_up_to_the_true_integral(nvml_stand_in: NvmlStandIn, wave: str) -> None:
    gpu = nvml_stand_in.gpu[0]
    shape, period, percent = WAVES[wave]
    gpu.load(shape, period, percent=percent, busy_us=200_000, seed=5)
    gpu.memory_utilization = percent // 2
    for kind, integral in ((1, gpu.true_busy_seconds), (2, gpu.true_memory_busy_seconds)):
        script = f"report([(s.timeStamp, s.sampleValue.uiVal) for s in n.nvmlDeviceGetSamples(h, {kind}, 0)[1]])"
        found = run_script(nvml_stand_in, script)
        assert len(found) == 100
        begin, end = found[0][0] - gpu.sample_period_us, found[-1][0]
        assert end - begin == 100 * gpu.sample_period_us
        total = sum(value for _, value in found) / 100 * gpu.sample_period_us / 1e6
        true = integral(begin, end)
        assert 0.1 < true < 16
        assert total == pytest.approx(true, abs=0.005 * 16.7)  # each rounded to whole percent
        for timestamp, value in found:
            one = integral(timestamp - gpu.sample_period_us, timestamp) / gpu.sample_period_us * 1e8
            assert abs(value - one) <= 0.5 + 1e-6


def test_the_snapshot_is_the_mean_over_the_last_sampling_period(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].load(Wave.SQUARE, 1_000, percent=100, busy_us=400)
    nvml_stand_in.gpu[0].sample_period_us = 100_000
    assert run_script(nvml_stand_in, "report(n.nvmlDeviceGetUtilizationRates(h).gpu)") == 40


def test_gpm_samples_that_are_not_freed_and_calls_that_overlap_are_noticed(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    alone = "kept, freed = sample(h), sample(h); n.nvmlGpmSampleFree(freed); report(1)"
    run_script(nvml_stand_in, alone)
    assert nvml_stand_in.control.gpm_samples == 1
    assert nvml_stand_in.control.gpm_concurrent_max == 1
    nvml_stand_in.hang("nvmlGpmSampleGet")
    together = converse("""
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
threads = [threading.Thread(target=sample, args=(handle,)) for handle in handles]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
""")
    until(lambda: nvml_stand_in.control.gpm_concurrent_max == 3)
    nvml_stand_in.hang("")
    together.end()
    assert nvml_stand_in.control.gpm_concurrent_max == 3


def test_slow_calls_take_the_time_that_real_ones_take(nvml_stand_in: NvmlStandIn) -> None:
    script = """
def taken(function, *arguments):
    begin = time.perf_counter(); function(*arguments); return time.perf_counter() - begin
report(taken(n.nvmlDeviceGetFieldValues, h, [185]), taken(n.nvmlDeviceGetPcieThroughput, h, 0))
"""
    average_power, pcie = run_script(nvml_stand_in, script)
    assert average_power >= 0.0033
    assert pcie >= 0.02


def test_a_reloaded_driver_counts_from_zero_and_requires_a_new_init(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.ecc_volatile[:], gpu.temperature, gpu.energy_millijoules = [5, 5], 77, 10**12
    reading = converse("""
for line in sys.stdin:
    if line == "init\\n":
        n.nvmlInit()
    report(code(n.nvmlDeviceGetTotalEccErrors, h, 0, 0), code(n.nvmlDeviceGetTotalEnergyConsumption, h),
         code(n.nvmlDeviceGetTemperature, h, 0))
""")
    before = reading.request()
    assert before[0] == 5
    nvml_stand_in.reload_driver()
    assert reading.request() == ["error 1"] * 3
    after = reading.request("init")
    assert after[0] == 0
    assert after[1] < before[1]
    assert after[2] == 77
