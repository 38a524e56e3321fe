"""GPUs from the driver's library to the page: the real source, sampler and pynvml, on the stand-in library.

The simulated driver is not used here: what is tested is how NVML's own answers, refusals and silences come out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stallscope.model.catalogue.metrics import THROTTLE_REASONS
from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from tests.nvml_library.reading_process import Page, ReadingProcess
from tests.nvml_library.stand_in import Group, NvmlStandIn

SOURCE_UP = "stallscope_exporter_source_up"


def all_up(page: Page) -> bool:
    return page.get(SOURCE_UP, source="nvidia") == 1 and all(page.get("up", gpu) == 1 for gpu in range(8))


def test_readings_are_what_the_driver_says(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.utilization, gpu.memory_utilization = 97, 40
    gpu.power_milliwatts, gpu.temperature, gpu.memory_temperature = 629_500, 59, 71
    gpu.clock_mhz[:] = [1755, 1740, 2619, 1395]
    gpu.memory_used = 19_339 << 20
    gpu.throttle_ns[:] = [5_000_000_000, 0, 2_500_000_000, 0, 0]
    gpu.run((os.getpid(), 19_339 << 20, False), (1, 1 << 20, True), (2, 1 << 20, True))
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(all_up)
    read = page.get
    assert page.labels("info", 0) == [
        {
            "gpu": "0",
            "uuid": NvmlStandIn.uuid(0),
            "model": "NVIDIA H100 80GB HBM3",
            "serial": "1652923000000",
            "pci_bus_id": "00000000:10:00.0",
            "driver_version": "590.48.01",
            "cuda_version": "13.1",
            "vbios_version": "96.00.A5.00.01",
            "architecture": "Hopper",
            "compute_capability": "9.0",
            "sharing": "exclusive",
        }
    ]
    assert read("utilization_ratio", 0) == pytest.approx(0.97)
    assert read("memory_utilization_ratio", 0) == pytest.approx(0.40)
    assert read("memory_total_bytes", 0) == 81_559 << 20
    assert read("memory_used_bytes", 0) == 19_339 << 20
    assert read("memory_reserved_bytes", 0) == 479 << 20
    assert read("bar1_total_bytes", 0) == 131_072 << 20
    assert read("bar1_used_bytes", 0) == 1 << 20
    assert read("power_watts", 0) == pytest.approx(629.5)
    assert read("power_limit_watts", 0) == 700
    assert read("power_limit_default_watts", 0) == 700
    assert (read("energy_joules_total", 0) or 0) >= 1000
    assert read("temperature_celsius", 0, sensor="gpu") == 59
    assert read("temperature_celsius", 0, sensor="memory") == 71
    assert read("temperature_limit_celsius", 0, limit="slowdown") == 92
    assert read("clock_hertz", 0, clock="graphics") == 1.755e9
    assert read("clock_hertz", 0, clock="sm") == 1.74e9
    assert read("clock_max_hertz", 0, clock="memory") == 2.619e9
    assert read("throttled_seconds_total", 0, reason="power_cap") == pytest.approx(5.0)
    assert read("throttled_seconds_total", 0, reason="sw_thermal") == pytest.approx(2.5)
    assert read("pcie_link_generation", 0) == 5
    assert read("pcie_link_width_max", 0) == 16
    assert read("processes", 0, kind="compute") == 1
    assert read("processes", 0, kind="graphics") == 2
    assert read("last_reading_timestamp_seconds", 0) is not None
    assert read("lost_info", 0) is None


def test_busy_time_is_integrated_from_the_drivers_samples(nvml_stand_in: NvmlStandIn) -> None:
    busy, idle, half = nvml_stand_in.gpu[:3]
    busy.utilization, idle.utilization, half.utilization = 100, 0, 100
    half.wave_period_us, half.wave_busy_us = 500_000, 250_000
    with ReadingProcess(nvml_stand_in) as process:
        first = process.until(all_up)
        earlier: list[Page] = []

        def grown(page: Page, name: str, gpu: int, **labels: str) -> float:
            return (page.get(name, gpu, **labels) or 0) - (first.get(name, gpu, **labels) or 0)

        def enough(page: Page) -> bool:
            # Each GPU is read by a thread of its own, and may be a sample or two behind, also on the first page.
            nonlocal first
            earlier.append(page)
            for first in earlier:  # noqa: B007 - `grown` reads it
                samples = {grown(page, "utilization_samples_count", gpu) for gpu in range(3)}
                if len(samples) == 1 and grown(page, "busy_seconds_total", 0) >= 3:
                    return True
            return False

        page = process.until(enough)
    elapsed = grown(page, "busy_seconds_total", 0)
    assert grown(page, "idle_seconds_total", 1) == pytest.approx(elapsed, abs=0.4)
    assert grown(page, "below_seconds_total", 1, level="0.5") == pytest.approx(elapsed, abs=0.4)
    assert page.get("busy_seconds_total", 1) == 0
    assert 0.2 * elapsed < grown(page, "busy_seconds_total", 2) < 0.8 * elapsed
    assert page.get("utilization_samples_count", 0) == page.get("utilization_samples_bucket", 0, le="+Inf")
    assert page.get("utilization_samples_bucket", 0, le="0.9") == 0


def test_a_silent_sample_buffer_counts_as_what_the_snapshot_says(nvml_stand_in: NvmlStandIn) -> None:
    for gpu in nvml_stand_in.gpu:
        gpu.ring_silent = 1
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(lambda page: (page.get("idle_seconds_total", 0) or 0) > 0.3)
    assert page.get("utilization_ratio", 0) == 0
    assert page.get("busy_seconds_total", 0) == 0


def test_without_sample_buffers_snapshots_are_integrated(nvml_stand_in: NvmlStandIn) -> None:
    for gpu in nvml_stand_in.gpu:
        gpu.lack(Group.SAMPLES)
        gpu.utilization, gpu.memory_utilization = 50, 20
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(lambda page: (page.get("busy_seconds_total", 0) or 0) > 0.2)
    assert page.get("utilization_ratio", 0) == pytest.approx(0.5)
    assert page.get("signal_supported", 0, signal="busy_seconds_total") == 1
    busy, memory = page.get("busy_seconds_total", 0), page.get("memory_busy_seconds_total", 0)
    assert busy is not None
    assert memory == pytest.approx(busy * 0.4)


LACKING = {
    Group.MEMORY: {"memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"},
    Group.BAR1: {"bar1_total_bytes", "bar1_used_bytes"},
    Group.POWER_LIMIT: {"power_limit_watts", "power_limit_default_watts"},
    Group.TEMPERATURE_LIMIT: {"temperature_limit_celsius"},
    Group.CLOCK: {"clock_hertz"},
    Group.CLOCK_MAX: {"clock_max_hertz"},
    Group.PCIE_LINK: {
        "pcie_link_generation",
        "pcie_link_generation_max",
        "pcie_link_width",
        "pcie_link_width_max",
    },
    Group.PROCESSES: {"processes"},
}


def test_what_a_gpu_lacks_is_absent_and_said_to_be_unsupported(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].lack(*LACKING)
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(all_up)
    for signal in set().union(*LACKING.values()):
        assert page.get("signal_supported", 0, signal=signal) == 0
        assert page.get("signal_supported", 1, signal=signal) == 1
        assert signal not in page.names(0)
        assert signal in page.names(1)
    assert page.get("power_watts", 0) is not None
    assert "memory" not in page.labels("info", 0)[0]


def test_a_gpu_without_memory_of_its_own_has_the_hosts_and_the_info_says_so(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, gpus=1, profile="gb10")
    node.gpu[0].run((4711, 5 << 30, False))
    with ReadingProcess(node) as process:
        page = process.until(lambda page: page.get("signal_supported", 0, signal="memory_total_bytes") is not None)
    total = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line).split()[1])
    assert page.get("memory_total_bytes", 0) == total * 1024
    assert 0 < (page.get("memory_used_bytes", 0) or 0) < total * 1024
    assert page.get("memory_reserved_bytes", 0) is None
    assert [page.get("signal_supported", 0, signal=f"memory_{each}_bytes") for each in ("total", "used")] == [1, 1]
    assert [labels.get("memory") for labels in page.labels("info", 0)] == ["unified"]


def test_a_gpu_without_utilisation_shows_the_rest(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].lack(Group.UTILIZATION, Group.SAMPLES, Group.GPM)
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(all_up)
    assert page.get("signal_supported", 0, signal="busy_seconds_total") == 0
    assert not {"busy_seconds_total", "idle_seconds_total", "utilization_ratio"} & page.names(0)
    assert page.get("memory_total_bytes", 0) is not None


def test_without_an_energy_counter_power_is_integrated(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.lack(Group.ENERGY)
    gpu.power_milliwatts = 500_000
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(lambda page: (page.get("energy_joules_total", 0) or 0) > 100)
    assert page.get("signal_supported", 0, signal="energy_joules_total") == 1


def test_without_throttle_counters_the_bits_are_timed(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.lack(Group.THROTTLE_COUNTERS)
    gpu.throttle_reasons = 0x40 | 0x8 | 0x1 | 0x2 | 0x100
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(lambda page: (page.get("throttled_seconds_total", 0, reason="hw_thermal") or 0) > 0.3)
    throttled = {reason: page.get("throttled_seconds_total", 0, reason=reason) for reason in THROTTLE_REASONS}
    assert throttled["hw_slowdown"] == throttled["hw_thermal"]
    assert [reason for reason, seconds in throttled.items() if seconds == 0] == [
        "sw_thermal",
        "power_cap",
        "power_brake",
        "sync_boost",
        "other",
    ]


def test_a_reason_that_only_newer_drivers_have_is_timed_as_other(nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.throttle_reasons = 0x200 | 0x1
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(lambda page: (page.get("throttled_seconds_total", 0, reason="other") or 0) > 0.3)
    assert page.get("throttled_seconds_total", 1, reason="other") == 0


def test_an_application_clock_below_the_maximum_is_shown(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].clock_application_mhz[:] = [1400, 1400, 2619, 0]
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(all_up)
    assert page.get("clock_configured_hertz", 0, clock="sm") == 1.4e9
    assert page.get("clock_configured_hertz", 0, clock="memory") is None
    assert page.get("clock_configured_hertz", 1, clock="sm") is None


def test_fans_are_shown_where_there_are_any(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].fans, nvml_stand_in.gpu[0].fan_percent = 2, 45
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(all_up)
    assert page.get("fan_speed_ratio", 0, fan="1") == 0.45
    assert page.get("signal_supported", 1, signal="fan_speed_ratio") == 0


def test_an_old_drivers_missing_functions_cost_only_their_own_values(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, old_driver=True)
    gpu = node.gpu[0]
    gpu.throttle_reasons = 0x4
    gpu.run((1, 1 << 20, False))
    gpu.fans, gpu.fan_percent = 1, 30
    with ReadingProcess(node) as process:
        page = process.until(lambda page: (page.get("throttled_seconds_total", 0, reason="power_cap") or 0) > 0.2)
    assert page.get("memory_total_bytes", 0) == 81_559 << 20
    assert page.get("memory_reserved_bytes", 0) is None
    assert page.get("signal_supported", 0, signal="memory_reserved_bytes") == 0
    assert page.get("temperature_celsius", 0, sensor="gpu") == 41
    assert page.get("temperature_celsius", 0, sensor="memory") is None
    assert page.get("processes", 0, kind="compute") == 1
    assert page.get("fan_speed_ratio", 0, fan="0") == 0.3
    assert page.get("busy_seconds_total", 0) is not None


def test_slow_calls_cost_no_reading(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.set_delay(2_000)
    with ReadingProcess(nvml_stand_in) as process:
        page = process.until(all_up)
        stood = page.get("last_reading_timestamp_seconds", 0) or 0
        process.until(lambda page: (page.get("last_reading_timestamp_seconds", 0) or 0) > stood + 1 and all_up(page))


@pytest.mark.slow
def test_pages_cause_no_driver_call_and_sampling_few(nvml_stand_in: NvmlStandIn) -> None:
    with ReadingProcess(nvml_stand_in, interval=1.0) as process:
        process.until(all_up)
        first = nvml_stand_in.calls("nvmlDeviceGetPowerUsage")
        process.until(lambda page: nvml_stand_in.calls("nvmlDeviceGetPowerUsage") >= first + 8)
        nvml_stand_in.reset_counts()
        began = time.monotonic()
        process.until(lambda page: nvml_stand_in.calls("nvmlDeviceGetPowerUsage") >= 10 * 8)
        # At least ten readings of eight GPUs, slow queries included, however many pages were requested meanwhile. Slow
        # ones do not wait where readings come late: they are some ten calls of each GPU every ten seconds.
        counts = nvml_stand_in.counts()
        readings = counts["nvmlDeviceGetPowerUsage"] + 8  # one of each GPU may be under way
        late = max(0.0, time.monotonic() - began - readings / 8)
        assert sum(counts.values()) <= 12.5 * readings + 8 * late, counts


def test_the_kernels_list_of_gpus_that_cant_be_read_for_a_moment_is_no_change(tmp_path: Path) -> None:
    source = NvidiaCollector(Environment(root=tmp_path))
    assert source.hardware() == frozenset()
    folder = tmp_path / "proc/driver/nvidia/gpus"
    (folder / "0000:10:00.0").mkdir(parents=True)
    assert source.hardware() == {"0000:10:00.0"}
    (folder / "0000:10:00.0").rmdir()
    folder.rmdir()
    folder.touch()
    source._hardware = frozenset({"0000:10:00.0"})
    assert source.hardware() == {"0000:10:00.0"}
