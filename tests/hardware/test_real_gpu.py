"""Promises that only a real GPU can hold us to. Skipped, with the reason, where no NVIDIA driver answers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from stallscope.gpus.driver import Device, DriverError, DriverUnavailable, Unsupported
from stallscope.nvidia.nvml import NvmlDriver
from stallscope.sampling.reading import Distribution
from stallscope.sampling.sampler import Sampler
from stallscope.sources.base import Environment
from stallscope.sources.nvidia import NvidiaSource

pytestmark = pytest.mark.hardware


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
    memory = device.memory()
    assert 0 <= memory.used <= memory.total
    assert memory.total > 1 << 30


def test_energy_grows_with_power(device: Device) -> None:
    try:
        began, joules = time.monotonic(), device.energy()
    except Unsupported as lacking:
        pytest.skip(str(lacking))
    time.sleep(2.0)
    mean = (device.energy() - joules) / (time.monotonic() - began)
    assert 0.2 * device.power() < mean < 5 * device.power()


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
    source = NvidiaSource(Environment())
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
    source = NvidiaSource(Environment())
    source.read()
    for read in source.parts().values():
        samples = list(read())
        lacking = {
            sample.labels[2] for sample in samples if sample.family.signal == "signal_supported" and sample.value == 0
        }
        present = {sample.family.signal for sample in samples if not isinstance(sample.value, Distribution)}
        assert not lacking & present
    source.close()
