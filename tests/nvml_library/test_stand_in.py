"""The stand-in answers pynvml as a driver would, with the values set on the node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.nvml_library.stand_in import (
    Activity,
    Engine,
    EventFault,
    GpuState,
    Group,
    Nonsense,
    NvmlStandIn,
    Wave,
)
from tests.waiting import until

_BEGIN = """
import ctypes, json, os, sys, threading, time
import pynvml as n

def code(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as problem:
        return f"error {problem.value}"

def fields(handle, *ids):
    values = n.nvmlDeviceGetFieldValues(handle, [id if isinstance(id, tuple) else (id, 0) for id in ids])
    numbers = [value.value.uiVal if value.valueType == 1 else value.value.ullVal for value in values]
    return [f"error {v.nvmlReturn}" if v.nvmlReturn else number for v, number in zip(values, numbers)]

def samples(handle, kind, newer_than=0):
    kind_of_value, found = n.nvmlDeviceGetSamples(handle, kind, newer_than)
    return [(s.timeStamp, s.sampleValue.uiVal if kind_of_value == 1 else s.sampleValue.dVal) for s in found]

def metrics(first, second, *ids):
    query = n.c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(ids), sample1=first, sample2=second)
    for place, id in enumerate(ids):
        query.metrics[place].metricId = id
    n.nvmlGpmMetricsGet(query)
    return [m.value if m.nvmlReturn == 0 else f"error {m.nvmlReturn}" for m in query.metrics[: len(ids)]]

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

    @property
    def pid(self) -> int:
        """Of the script's process."""
        return self._process.pid

    def ask(self, line: object = "") -> Any:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """The next answer to a line sent before."""
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
        found = run_script(nvml_stand_in, f"report(samples(h, {kind}))")
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


def test_depth_rate_and_clock_of_the_sample_buffer_are_the_nodes_choice(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.utilization, gpu.sample_period_us, gpu.sample_depth = 30, 1_000_000, 20
    gpu.sample_clock_offset_us = -(time.time_ns() // 1000) + 50_000_000_000
    found, newer = run_script(nvml_stand_in, "found = samples(h, 1); report(found, samples(h, 1, found[-3][0]))")
    assert len(found) == 20
    assert {after[0] - before[0] for before, after in pairwise(found)} == {1_000_000}
    assert 49_000_000_000 < found[-1][0] < 51_000_000_000
    assert newer[:2] == found[-2:]


def test_engines_have_sample_buffers_too(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].engine_utilization[:] = [11, 22, 33, 44]
    script = """
report([samples(h, kind)[-1][1] for kind in (3, 4, 8, 9)],
     [f(h)[0] for f in (n.nvmlDeviceGetEncoderUtilization, n.nvmlDeviceGetDecoderUtilization,
                        n.nvmlDeviceGetJpgUtilization, n.nvmlDeviceGetOfaUtilization)])
"""
    assert run_script(nvml_stand_in, script) == [[11, 22, 33, 44]] * 2


def test_a_silent_buffer_holds_nothing_of_any_kind(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].ring_silent = 1
    answers = run_script(nvml_stand_in, "report([code(samples, h, kind) for kind in (1, 2, 3, 4, 8, 9)])")
    assert answers == ["error 6"] * 6


def test_two_gpm_samples_give_the_exact_mean_between_them(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.utilization = 50
    gpu.activity[Activity.SM], gpu.activity[Activity.TENSOR] = 0.5, 0.25
    gpu.engine_utilization[Engine.DECODER] = 40
    gpu.pcie_transmitted_rate, gpu.nvlink_received_rate = 3 << 20, 36 << 20
    script = """
first = sample(h); time.sleep(0.05); second = sample(h)
report(n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice, metrics(first, second, 1, 2, 5, 30, 40, 20, 60, 62, 99, 248))
"""
    supported, found = run_script(nvml_stand_in, script)
    assert supported == 1
    assert found[:8] == pytest.approx([50, 25, 12.5, 40, 0, 3, 36, 2])
    assert found[8:] == ["error 3", "error 3"]


def test_gpm_follows_a_wave_exactly(nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.load(Wave.RANDOM, 7_000, percent=100, seed=1)
    sampling = converse("""
kept = [sample(h)]
for line in sys.stdin:
    kept.append(sample(h))
    report(metrics(*kept[-2:], 1)[0])
""")
    sampling.ask()
    begin = gpu.accrued_at_us
    time.sleep(0.05)
    percent = sampling.ask()
    end = gpu.accrued_at_us
    assert end - begin >= 50_000
    assert percent == pytest.approx(gpu.true_busy_seconds(begin, end) / (end - begin) * 1e8)


def test_newer_drivers_count_cycles_and_bytes_since_reboot(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.gpm_counters, gpu.utilization, gpu.pcie_received_rate = 1, 100, 1e6
    script = """
first = sample(h); time.sleep(0.02); second = sample(h)
report([metrics(first, s, 248, 249, 256, 258, 261, 296, 297) for s in (second, sample(h))])
"""
    one, two = run_script(nvml_stand_in, script)
    assert one[-1] == "error 3"
    assert all(later >= earlier for earlier, later in zip(one[:-1], two[:-1], strict=True))
    assert one[1] / one[0] == pytest.approx(0.8)
    assert one[2] == pytest.approx(one[0] / 1980)


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


def test_each_field_value_has_an_answer_and_a_return_code_of_its_own(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.ecc_volatile[:], gpu.remapped_rows[:], gpu.nvlink_errors[:] = [3, 4], [5, 6, 1, 0], [7, 8, 9]
    gpu.throttle_ns[:] = [10, 11, 12, 13, 14]
    gpu.pcie_replays, gpu.nvlinks_down = 15, 0b10
    script = """
all = 2 ** 32 - 1
report(fields(h, 3, 4, 142, 143, 144, 145, 74, 76, 269, 270, 271, 82, 91, 94, 186, 189, 190),
     fields(h, (161, 0), (162, all), (163, 1), (165, 0), (165, 1), (165, 18)),
     fields(h, 29, 202, 9999))
"""
    device, links, lacking = run_script(nvml_stand_in, script)
    assert device == [3, 4, 5, 6, 1, 0, 10, 11, 12, 13, 14, 48, 18, 15, 69_850, 700_000, 700_000]
    assert links == [7, 8, 0, 1, 0, "error 2"]
    assert lacking == ["error 3"] * 3


def test_byte_counters_grow_at_their_rate_and_wrap_at_their_width(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.pcie_counter_bits, gpu.pcie_transmitted_rate, gpu.nvlink_transmitted_rate = 32, 1e12, 18 * 1024e6
    reading = converse("for line in sys.stdin: report(fields(h, 197, (138, 2 ** 32 - 1), (138, 3), 83))")
    begin, began_us = reading.ask(), gpu.accrued_at_us
    time.sleep(0.05)
    end, ended_us = reading.ask(), gpu.accrued_at_us
    elapsed = (ended_us - began_us) / 1e6
    assert elapsed >= 0.05
    assert max(begin[0], end[0]) < 1 << 32
    assert end[1] - begin[1] == pytest.approx(elapsed * 18e6, abs=2)
    assert end[2] == pytest.approx(end[1] / 18, abs=1)
    assert end[3] - begin[3] == pytest.approx(elapsed * 69_850, abs=2)


def test_slow_calls_take_the_time_that_real_ones_take(nvml_stand_in: NvmlStandIn) -> None:
    script = """
def taken(function, *arguments):
    begin = time.perf_counter(); function(*arguments); return time.perf_counter() - begin
report(taken(fields, h, 185), taken(n.nvmlDeviceGetPcieThroughput, h, 0))
"""
    average_power, pcie = run_script(nvml_stand_in, script)
    assert average_power >= 0.0033
    assert pcie >= 0.02


def test_events_are_told_to_who_registered_before_they_happened(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    nvml_stand_in.raise_xid(0, 13)
    waiting = converse("""
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, 0x108, events)
for line in sys.stdin:
    event = code(n.nvmlEventSetWait_v2, events, int(line))
    report(event if isinstance(event, str) else [n.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData])
n.nvmlEventSetFree(events)
""")
    assert waiting.ask(10) == "error 10"
    nvml_stand_in.raise_xid(1, 31)  # not registered for
    nvml_stand_in.raise_xid(0, 79)
    nvml_stand_in.raise_mig_change(0)
    assert waiting.ask(5_000) == [0, 0x8, 79]
    assert waiting.ask(5_000) == [0, 0x100, 0]
    for fault, error in ((EventFault.UNKNOWN_ERROR, "error 999"), (EventFault.GPU_IS_LOST, "error 15")):
        nvml_stand_in.set_event_fault(fault)
        assert waiting.ask(5_000) == error
    assert nvml_stand_in.control.event_sets == 1
    waiting.end()
    assert nvml_stand_in.control.event_sets == 0


def test_a_gpu_that_is_cut_shows_its_instances_and_no_utilisation(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.cut(("3g.40gb", 40 << 30), ("1g.10gb", 10 << 30))
    gpu.run((4711, 5 << 30, False), (4712, 1 << 30, False))
    gpu.run_on(1, process=1)
    gpu.run_on(0, process=0)
    gpu.instance[1].memory_used, gpu.instance[1].utilization = 1 << 30, 60
    script = """
of = [n.nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]
first = n.nvmlGpmMigSampleGet(h, 2, n.nvmlGpmSampleAlloc()); time.sleep(0.01)
second = n.nvmlGpmMigSampleGet(h, 2, n.nvmlGpmSampleAlloc())
processes = n.nvmlDeviceGetComputeRunningProcesses
report(n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h),
     code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 2),
     [[n.nvmlDeviceGetName(i), n.nvmlDeviceGetUUID(i), n.nvmlDeviceGetGpuInstanceId(i),
       n.nvmlDeviceGetComputeInstanceId(i), n.nvmlDeviceGetAttributes_v2(i).memorySizeMB,
       n.nvmlDeviceGetMemoryInfo(i).used, [p.pid for p in processes(i)], n.nvmlDeviceIsMigDeviceHandle(i).value,
       n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(i))] for i in of],
     [[p.pid, p.gpuInstanceId] for p in processes(h)],
     [code(n.nvmlDeviceGetUtilizationRates, x) for x in (h, of[0])] + [code(samples, x, 1) for x in (h, of[0])],
     metrics(first, second, 1, 20))
"""
    mode, most, beyond, instances, processes, utilization, gpm = run_script(nvml_stand_in, script)
    assert (mode, most, beyond) == ([1, 1], 7, "error 6")
    first, second = instances
    assert first[0] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert first[1].startswith("MIG-")
    assert first[1] != second[1]
    assert second[2:] == [2, 0, 10 << 10, 1 << 30, [4712], 1, 0]
    assert processes == [[4711, 1], [4712, 2]]
    assert utilization == ["error 3"] * 4
    assert gpm == [pytest.approx(60), "error 3"]


def test_a_handle_of_an_instance_that_was_cut_anew_is_worth_nothing(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.cut(("1g.10gb", 10 << 30))
    holding = converse("""
instance = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
for line in sys.stdin:
    report(code(n.nvmlDeviceGetName, instance), n.nvmlDeviceGetMigMode(h))
""")
    assert holding.ask() == ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", [1, 1]]
    gpu.cut(("2g.20gb", 20 << 30))
    assert holding.ask() == ["error 2", [1, 1]]
    gpu.uncut()
    assert holding.ask() == ["error 2", [0, 0]]


def test_health_is_told_by_the_classic_calls(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.ecc_volatile[:], gpu.ecc_aggregate[:], gpu.remapped_rows[:] = [1, 2], [3, 4], [5, 6, 0, 1]
    gpu.nvlink_errors[:], gpu.nvlinks_down, gpu.pcie_replays, gpu.persistence = [7, 8, 9], 1, 10, 0
    gpu.absent_from_model = 0
    gpu.retired_pages[:] = [2, 1]
    script = """
report([n.nvmlDeviceGetTotalEccErrors(h, t, c) for c in (0, 1) for t in (0, 1)], n.nvmlDeviceGetRemappedRows(h),
     [n.nvmlDeviceGetNvLinkErrorCounter(h, 0, c) for c in range(3)],
     [n.nvmlDeviceGetNvLinkState(h, link) for link in (0, 1)],
     n.nvmlDeviceGetPcieReplayCounter(h), n.nvmlDeviceGetPersistenceMode(h),
     [len(n.nvmlDeviceGetRetiredPages(h, cause)) for cause in (0, 1)], n.nvmlDeviceGetRetiredPagesPendingStatus(h))
"""
    assert run_script(nvml_stand_in, script) == [[1, 2, 3, 4], [5, 6, 0, 1], [7, 8, 9], [0, 1], 10, 0, [2, 1], 0]


def test_processes_tell_kind_and_utilisation_newer_than_asked(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.utilization, gpu.sample_period_us = 80, 3_600_000_000
    gpu.run((1, 1 << 20, False), (2, 1 << 20, True))
    gpu.process[0].kind = 2
    script = """
first = n.nvmlDeviceGetProcessUtilization(h, 0)
report([p.pid for p in n.nvmlDeviceGetMPSComputeRunningProcesses(h)], [[s.pid, s.smUtil] for s in first],
     code(n.nvmlDeviceGetProcessUtilization, h, first[0].timeStamp))
"""
    assert run_script(nvml_stand_in, script) == [[1], [[1, 40], [2, 40]], "error 6"]


def test_device_files_are_held_from_the_first_init_to_the_last_shutdown(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    nvml_stand_in.gpu_count = 2
    user = converse("""
for line in sys.stdin:
    report(code(n.nvmlInit if line == "init\\n" else n.nvmlShutdown))
""")
    user.ask("init")  # the second
    held = nvml_stand_in.held_files(user.pid)
    assert held == ["nvidia0", "nvidia1", "nvidiactl"]
    user.ask("shutdown")
    assert nvml_stand_in.held_files(user.pid) == held
    user.ask("shutdown")
    assert nvml_stand_in.held_files(user.pid) == []
    assert user.ask("shutdown") == "error 1"
    user.ask("init")
    assert nvml_stand_in.held_files(user.pid) == held


NONSENSE = {
    Nonsense.ALL_BITS_SET: ("n.nvmlDeviceGetPowerUsage(h)", 2**32 - 1),
    Nonsense.HUGE_NUMBERS: ("n.nvmlDeviceGetMemoryInfo(h).used", 2**63 - 1),
    Nonsense.NOT_A_NUMBER: ("str(samples(h, 1)[0][1])", "nan"),
    Nonsense.OVER_100_PERCENT: ("n.nvmlDeviceGetUtilizationRates(h).gpu", 250),
    Nonsense.ZERO_TIMESTAMPS: ("samples(h, 1)[-1][0]", 0),
    Nonsense.FUTURE_TIMESTAMPS: ("samples(h, 1)[-1][0] > 1e6 * (time.time() + 1e7)", True),
    Nonsense.BACKWARDS: ("[n.nvmlDeviceGetPcieReplayCounter(h) for _ in range(3)]", [4, 2, 1]),
    Nonsense.MALFORMED_TEXT: ("raw(n.nvmlDeviceGetName, h)", "not UTF-8"),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_each_kind_of_nonsense_is_told_as_such(nvml_stand_in: NvmlStandIn, nonsense: Nonsense) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.state, gpu.nonsense, gpu.pcie_replays = GpuState.NONSENSE, nonsense, 8
    expression, expected = NONSENSE[nonsense]
    script = """
def raw(function, *arguments):
    try:
        return function(*arguments)
    except UnicodeDecodeError:
        return "not UTF-8"
"""
    assert run_script(nvml_stand_in, f"{script}report({expression})") == expected


@pytest.mark.parametrize(("nonsense", "expected"), [(Nonsense.NOT_A_NUMBER, "nan"), (Nonsense.HUGE_NUMBERS, "9.2e+18")])
def test_gpm_talks_nonsense_too(nvml_stand_in: NvmlStandIn, nonsense: Nonsense, expected: str) -> None:
    nvml_stand_in.gpu[0].state, nvml_stand_in.gpu[0].nonsense = GpuState.NONSENSE, nonsense
    script = "first = sample(h); time.sleep(0.01); report(str(metrics(first, sample(h), 2)[0]))"
    assert run_script(nvml_stand_in, script) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [(GpuState.LOST, "error 15"), (GpuState.NEEDS_RESET, "error 16"), (GpuState.FAILING, "error 999")],
)
def test_a_gpu_in_trouble_fails_alone(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation], state: GpuState, expected: str
) -> None:
    reading = converse("""
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
for line in sys.stdin:
    report([code(n.nvmlDeviceGetPowerUsage, handle) for handle in handles])
""")
    assert reading.ask() == [69_850, 69_850]
    nvml_stand_in.gpu[1].state = state
    assert reading.ask() == [69_850, expected]


def test_one_function_may_hang_for_one_gpu_or_for_all(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    reading = converse("""
for line in sys.stdin:
    report(n.nvmlDeviceGetTemperature(h, 0))
    n.nvmlDeviceGetPowerUsage(h)
    report(n.nvmlDeviceGetCount())
""")
    nvml_stand_in.gpu[0].hang_function = b"nvmlDeviceGetPowerUsage"
    assert reading.ask() == 41
    until(lambda: nvml_stand_in.calls("nvmlDeviceGetPowerUsage") > 0)
    assert nvml_stand_in.calls("nvmlDeviceGetCount_v2") == 0
    nvml_stand_in.hang("nvmlDeviceGetCount_v2")
    nvml_stand_in.gpu[0].hang_function = b""
    until(lambda: nvml_stand_in.calls("nvmlDeviceGetCount_v2") > 0)
    nvml_stand_in.hang("")
    assert reading.answer() == 8


def test_gpus_come_go_and_change_places(nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]) -> None:
    nvml_stand_in.gpu_count = 3
    listing = converse("""
last = n.nvmlDeviceGetHandleByIndex(2)
for line in sys.stdin:
    if line == "init\\n":
        n.nvmlShutdown(); n.nvmlInit()
    uuids = [code(lambda: n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i))) for i in range(n.nvmlDeviceGetCount())]
    report([uuid[-2:] for uuid in uuids], code(n.nvmlDeviceGetIndex, last))
""")
    assert listing.ask() == [["00", "01", "02"], 2]
    nvml_stand_in.remove(0)
    assert listing.ask() == [["01", "02"], 1]
    nvml_stand_in.swap(1)
    new = nvml_stand_in.gpu[1].uuid.decode()[-2:]
    assert listing.ask() == [["01", new], 1]
    assert new not in {"00", "01", "02"}
    nvml_stand_in.control.plug_needs_init = 1
    nvml_stand_in.add(0)
    assert listing.ask() == [["15", "01", new], 2]  # error 15 for the one that is gone: all as at the first init
    after, index = listing.ask("init")
    assert after[1:] == ["01", new]
    assert index == 2
    nvml_stand_in.remove(2)
    nvml_stand_in.control.plug_needs_init = 0
    assert listing.ask()[1] == "error 15"


def test_a_reloaded_driver_counts_from_zero_and_asks_for_a_new_init(
    nvml_stand_in: NvmlStandIn, converse: Callable[[str], Conversation]
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.ecc_volatile[:], gpu.temperature = [5, 5], 77
    reading = converse("""
for line in sys.stdin:
    if line == "init\\n":
        n.nvmlInit()
    report(code(n.nvmlDeviceGetTotalEccErrors, h, 0, 0), code(n.nvmlDeviceGetTotalEnergyConsumption, h),
         code(n.nvmlDeviceGetTemperature, h, 0))
""")
    before = reading.ask()
    assert before[0] == 5
    nvml_stand_in.reload_driver()
    assert reading.ask() == ["error 1"] * 3
    after = reading.ask("init")
    assert after[0] == 0
    assert after[1] < before[1]
    assert after[2] == 77


PROFILE_ANSWERS = {
    "h100": ("NVIDIA H100 80GB HBM3", [1, "error 6", 0, 48, 18]),
    "h200_mig": ("NVIDIA H200", [1, "NVIDIA H200 MIG 1c.3g.71gb", "error 3", 32, "error 3"]),
    "l40s": ("NVIDIA L40S", [0, "error 3", 0, "error 3", "error 3"]),
    "rtx_2080_super": ("NVIDIA GeForce RTX 2080 SUPER", [0, "error 3", "error 3", "error 3", "error 3"]),
    "rtx_4080_super": ("NVIDIA GeForce RTX 4080 SUPER", [0, "error 3", "error 3", "error 3", "error 3"]),
}


@pytest.mark.parametrize("profile", PROFILE_ANSWERS)
def test_a_model_answers_what_it_has_and_lacks_the_rest(tmp_path: Path, profile: str) -> None:
    node = NvmlStandIn(tmp_path, gpus=1, profile=profile)
    script = """
instance = code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0)
report(n.nvmlDeviceGetName(h),
     [n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice,
      instance if isinstance(instance, str) else n.nvmlDeviceGetName(instance),
      code(lambda: n.nvmlDeviceGetUtilizationRates(h).gpu if n.nvmlDeviceGetEccMode(h) else None),
      *fields(h, 82, 91)])
"""
    assert tuple(run_script(node, script)) == PROFILE_ANSWERS[profile]


def test_what_a_test_takes_away_adds_to_what_the_model_lacks(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, gpus=1, profile="l40s")
    node.gpu[0].lack(Group.POWER)
    script = (
        "report(code(n.nvmlDeviceGetPowerUsage, h), code(n.nvmlDeviceGetMigMode, h), n.nvmlDeviceGetTemperature(h, 0))"
    )
    assert run_script(node, script) == ["error 3", "error 3", 64]


def test_an_old_driver_lacks_the_late_symbols(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, gpus=1, old_driver=True)
    script = """
report([code(f, h) for f in (n.nvmlGpmQueryDeviceSupport, n.nvmlDeviceGetNumFans)], code(fields, h, 83),
     n.nvmlDeviceGetTotalEnergyConsumption(h) > 0)
"""
    assert run_script(node, script) == [["error 13", "error 13"], "error 13", True]
