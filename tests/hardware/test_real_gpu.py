"""Promises that only a real GPU can hold us to. Skipped, with the reason, where no NVIDIA driver answers."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar, get_args

import pytest

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.drivers.device import ComputeMode, Device, DriverError, DriverUnavailable, Unsupported
from stallscope.node.drivers.nvidia.library import PynvmlLibrary
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from stallscope.node.drivers.signals import QUERIES
from stallscope.node.sampling.reading import Distribution
from stallscope.node.sampling.sampler import Sampler
from tests.simulation.numbers import memory, number, watts

pytestmark = pytest.mark.hardware

_Answer = TypeVar("_Answer")


def supported(call: Callable[[], _Answer]) -> _Answer:
    """The answer; the test is skipped where this GPU has none."""
    try:
        return call()
    except Unsupported as lacking:
        pytest.skip(str(lacking))


@pytest.fixture(scope="module")
def driver() -> Iterator[NvmlDriver]:
    driver = NvmlDriver()
    try:
        driver.open()
    except DriverUnavailable as problem:
        pytest.skip(str(problem))
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def device(driver: NvmlDriver) -> Device:
    devices = driver.devices()
    if not devices:
        pytest.skip("the NVIDIA driver shows no GPU")
    return devices[0]


def test_every_gpu_says_what_it_is(driver: NvmlDriver) -> None:
    identities = [device.identity() for device in driver.devices()]
    assert len({identity.uuid for identity in identities}) == len(identities)
    for identity in identities:
        assert identity.uuid.startswith("GPU-")
        assert identity.model
        assert identity.pci_bus_id
        assert identity.compute_capability.count(".") == 1


def test_memory_adds_up(device: Device) -> None:
    total, used = memory(device, "total"), memory(device, "used")
    assert 0 <= used <= total
    assert total > 1 << 30


def test_energy_grows_with_power(device: Device) -> None:
    if "energy_joules_total" not in supported(lambda: device.read("counters")):
        pytest.skip("this GPU has no energy counter")
    began, joules = time.monotonic(), number(device, "counters", "energy_joules_total")
    time.sleep(2.0)
    mean = (number(device, "counters", "energy_joules_total") - joules) / (time.monotonic() - began)
    assert 0.2 * watts(device) < mean < 5 * watts(device)


def test_counters_never_go_back(device: Device) -> None:
    began, before = time.monotonic(), supported(lambda: device.read("counters"))
    time.sleep(1.0)
    after = device.read("counters")
    elapsed = time.monotonic() - began
    assert before.keys() == after.keys()
    first, second = before.get("throttled_seconds_total", {}), after.get("throttled_seconds_total", {})
    assert isinstance(first, Mapping)
    assert isinstance(second, Mapping)
    assert first.keys() == second.keys()
    for reason, seconds in first.items():
        assert seconds <= second[reason] <= seconds + elapsed + 1.0
    for name in ("nvlink_receive_bytes_total", "nvlink_transmit_bytes_total"):  # PCIe's may be 32 bits wide, and wrap
        if name in before:
            assert number(device, "counters", name) >= before[name]  # type: ignore[operator]
    assert device.rejected == {}


def test_health_reads_the_same_twice(device: Device) -> None:
    before, after = supported(lambda: device.read("health")), device.read("health")
    assert before.keys() == after.keys()
    for name in ("nvlink_links", "remapped_rows"):
        assert before.get(name) == after.get(name)
    if "nvlink_links" in before:
        assert 0 <= number(device, "health", "nvlink_links_active") <= number(device, "health", "nvlink_links")
    assert device.rejected == {}


def test_activity_between_two_calls_is_sound(device: Device) -> None:
    began = time.monotonic()
    supported(device.activity)
    time.sleep(1.0)
    found = device.activity()
    assert found is not None
    assert 0.9 < found.seconds < time.monotonic() - began + 1.0
    shares = [found.graphics, found.sm, found.occupancy, found.dram, *found.pipes.values(), *found.engines.values()]
    reported = [share for share in shares if share is not None]
    assert reported
    assert all(0.0 <= share <= 1.0 for share in reported)
    assert found.pipes.keys() <= {"tensor", "fp64", "fp32", "fp16", "integer"}
    assert device.rejected == {}


def test_cycle_counters_agree_with_percentages(driver: NvmlDriver, device: Device) -> None:
    library = PynvmlLibrary()
    library.load()
    supported(device.activity)  # says whether there is GPM
    handle = library.call("nvmlDeviceGetHandleByIndex", 0)
    samples = []
    for _ in range(3):
        sample = library.call("nvmlGpmSampleAlloc")
        library.call("nvmlGpmSampleGet", handle, sample)
        samples.append(sample)
        time.sleep(1.0)
    ids = (248, 249, 250, 2, 5)
    first = library.call("nvmlGpmMetricsGet", samples[0], samples[1], ids)
    second = library.call("nvmlGpmMetricsGet", samples[1], samples[2], ids)
    for sample in samples:
        library.call("nvmlGpmSampleFree", sample)
    if any(code for code, _ in (*first, *second)):
        pytest.skip("this driver has no cycle counters since reboot")
    elapsed = second[0][1] - first[0][1]
    assert elapsed > 0
    for counter, percent in ((1, 3), (2, 4)):
        assert (second[counter][1] - first[counter][1]) / elapsed == pytest.approx(second[percent][1] / 100, abs=0.05)


def test_samples_in_one_call_are_those_of_the_bindings_two(driver: NvmlDriver, device: Device) -> None:
    import pynvml

    library = PynvmlLibrary()
    library.load()
    try:
        kind, theirs = pynvml.nvmlDeviceGetSamples(pynvml.nvmlDeviceGetHandleByIndex(0), 1, 0)
    except pynvml.NVMLError as problem:
        pytest.skip(str(problem))
    ours = dict(library.call("nvmlDeviceGetSamples", library.call("nvmlDeviceGetHandleByIndex", 0), 1, 0))
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    both = [sample for sample in theirs if sample.timeStamp in ours]
    assert len(both) >= len(theirs) - 10  # a few fall out of the buffer between the calls
    assert all(ours[sample.timeStamp] == sample.sampleValue.uiVal for sample in both)


def test_a_gpu_registers_for_events_and_stays_silent(driver: NvmlDriver, device: Device) -> None:
    try:
        listener = driver.listen([device])
    except Unsupported as lacking:
        pytest.skip(str(lacking))
    began = time.monotonic()
    assert [event for event in listener.wait(0.5) if event.xid is None] == []
    assert time.monotonic() - began < 5.0
    listener.close()


def test_processes_and_instances_can_be_queried(device: Device) -> None:
    assert all(process.pid > 0 for process in supported(device.processes))
    assert supported(lambda: device.process_utilization(0)) is not None
    for instance in device.instances() or ():
        identity = instance.identity()
        assert identity.uuid.startswith("MIG-")
        assert identity.parent_uuid == device.identity().uuid
        assert memory(instance, "total") > 1 << 30
    assert supported(lambda: device.read("persistence_mode"))["persistence_mode"] in {0, 1}
    assert supported(device.compute_mode) in get_args(ComputeMode)
    assert device.rejected == {}


def test_no_default_call_takes_over_five_milliseconds(
    device: Device, record_property: Callable[[str, object], None]
) -> None:
    newest = 0
    with suppress(Unsupported):  # with MIG
        newest = max((sample.timestamp_us for sample in device.utilization_samples("gpu", 0)), default=0)
    questions: dict[str, Callable[[], object]] = {
        **{query: partial(device.read, query) for query in QUERIES},
        "activity": device.activity,
        "utilization_samples": lambda: device.utilization_samples("gpu", newest),
        "throttle_reasons": device.throttle_reasons,
        "processes": device.processes,
        "process_utilization": lambda: device.process_utilization(newest),
    }
    slow = []
    for name, call in questions.items():
        try:
            call()  # the first finds out what there is
        except Unsupported:
            continue
        calls, times = device.calls, []
        for _ in range(20):
            time.sleep(0.02)
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        median = statistics.median(times)
        each = (device.calls - calls) / len(times)
        record_property(name, f"{median * 1e6:.0f} us in {each:.0f} calls")
        print(f"{name}: median {median * 1e6:.0f} us, most {max(times) * 1e6:.0f} us, {each:.0f} calls")
        if median > 0.005 * max(each, 1):
            slow.append(name)
    assert slow == []


def test_buffered_samples_are_ratios_in_order_and_not_handed_out_twice(device: Device) -> None:
    try:
        samples = device.utilization_samples("gpu", 0)
    except Unsupported as lacking:
        pytest.skip(str(lacking))
    assert [sample.timestamp_us for sample in samples] == sorted({sample.timestamp_us for sample in samples})
    assert all(0 <= sample.value <= 1 for sample in samples)
    if samples:
        newest = samples[-1].timestamp_us
        assert all(sample.timestamp_us > newest for sample in device.utilization_samples("gpu", newest))


def test_a_session_can_be_closed_and_opened_again(driver: NvmlDriver) -> None:
    shown = [device.identity().uuid for device in driver.devices()]
    driver.close()
    with pytest.raises(DriverError):
        driver.devices()
    driver.open()
    assert [device.identity().uuid for device in driver.devices()] == shown


def test_a_page_shows_every_gpu_with_sound_values(device: Device) -> None:
    source = NvidiaCollector(Environment())
    sampler = Sampler()
    sampler.add(source)
    for _ in range(2):
        sampler.run_round()
        time.sleep(1.0)
    text = sampler.page(openmetrics=False, gzip=False).decode()
    source.close()
    assert f'uuid="{device.identity().uuid}"' in text
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert all(math.isfinite(value) for value in values.values())
    up = [value for series, value in values.items() if series.startswith("stallscope_gpu_up{")]
    assert up
    assert set(up) == {1.0}
    ratios = [value for series, value in values.items() if "_ratio{" in series]
    assert all(0 <= value <= 2 for value in ratios)


def test_what_is_unsupported_has_no_series(device: Device) -> None:
    source = NvidiaCollector(Environment())
    source.read()
    for read in source.parts().values():
        samples = list(read())
        lacking = {
            sample.labels[2] for sample in samples if sample.family.signal == "signal_supported" and sample.value == 0
        }
        present = {sample.family.signal for sample in samples if not isinstance(sample.value, Distribution)}
        assert not lacking & present
    source.close()
