"""Batched field values over the real pynvml: one call for many numbers, each with its own return code."""

from __future__ import annotations

from pathlib import Path

from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import GpuState, Group, Nonsense, NvmlStandIn


def test_all_counters_come_with_one_call(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].throttle_ns[:] = [1_000_000_000, 0, 2_500_000_000, 0, 0]
    driver_process.evaluate("gpu.read('counters')")
    nvml_stand_in.reset_counts()
    counters = driver_process.evaluate("gpu.read('counters')")
    assert counters["throttled_seconds_total"] == {
        "power_cap": 1.0,
        "sync_boost": 0.0,
        "sw_thermal": 2.5,
        "hw_thermal": 0.0,
        "power_brake": 0.0,
    }
    assert counters["temperature_celsius"] == {"memory": 48}
    assert 1000 <= counters["energy_joules_total"] < 100_000  # the driver counts millijoules
    assert nvml_stand_in.counts() == {"nvmlDeviceGetFieldValues": 1}


def test_bytes_received_and_sent_are_distinguished(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.pcie_received_rate = gpu.pcie_transmitted_rate = gpu.nvlink_received_rate = gpu.nvlink_transmitted_rate = 0.0
    gpu.accrued_pcie_received, gpu.accrued_pcie_transmitted = 2e12, 1e12
    gpu.accrued_nvlink_received, gpu.accrued_nvlink_transmitted = 4e15, 3e15
    counters = driver_process.evaluate("gpu.read('counters')")
    assert 2e12 <= counters["pcie_receive_bytes_total"] < 2.1e12
    assert 1e12 <= counters["pcie_transmit_bytes_total"] < 1.1e12
    assert 4e15 <= counters["nvlink_receive_bytes_total"] < 4.1e15
    assert 3e15 <= counters["nvlink_transmit_bytes_total"] < 3.1e15


def test_links_that_are_counted_one_by_one_are_summed(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.nvlink_per_link_only, gpu.absent_from_model = 1, 0
    gpu.nvlink_received_rate, gpu.accrued_nvlink_received = 0.0, 18e12
    assert 17.9e12 < driver_process.evaluate("gpu.read('counters')")["nvlink_receive_bytes_total"] < 18.1e12
    assert driver_process.evaluate("gpu.served")["nvlink_receive_bytes_total"] == "nvmlDeviceGetFieldValues(204)"


def test_the_energy_has_a_call_of_its_own_where_fields_are_lacking(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, old_driver=True)
    with DriverProcess(node) as child:
        child.open()
        assert child.evaluate("gpu.read('counters')")["energy_joules_total"] >= 1000
        assert child.evaluate("gpu.served")["energy_joules_total"] == "nvmlDeviceGetTotalEnergyConsumption"


def test_a_gpu_that_counts_nothing_has_no_counters(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].lack(
        *(Group.ENERGY, Group.THROTTLE_COUNTERS, Group.MEMORY_TEMPERATURE, Group.PCIE_COUNTERS),
        *(Group.NVLINK, Group.NVLINK_BYTES),
    )
    assert driver_process.evaluate("gpu.read('counters')") == ["Unsupported", "not_supported"]
    nvml_stand_in.reset_counts()
    driver_process.evaluate("gpu.read('counters')")
    assert nvml_stand_in.calls() == 0


def test_implausible_counters_are_absent_and_come_back(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    gpu = nvml_stand_in.gpu[0]
    for nonsense in (Nonsense.ALL_BITS_SET, Nonsense.HUGE_NUMBERS):
        gpu.state, gpu.nonsense = GpuState.NONSENSE, nonsense
        assert driver_process.evaluate("gpu.read('counters')") == ["DriverError", "implausible"]
    assert driver_process.evaluate("gpu.rejected")["sentinel"] > 10
    gpu.state = GpuState.OK
    assert driver_process.evaluate("gpu.read('counters')")["energy_joules_total"] >= 1000


def test_a_memory_sensor_that_reads_zero_is_absent(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].memory_temperature = 0
    assert "temperature_celsius" not in driver_process.evaluate("gpu.read('counters')")
    assert driver_process.evaluate("gpu.rejected") == {}


def test_health_comes_with_one_call(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.absent_from_model = 0
    gpu.ecc_volatile[:] = [3, 1]
    gpu.remapped_rows[:] = [2, 1, 1, 0]
    gpu.retired_pages[:] = [5, 6]
    gpu.nvlink_errors[:] = [7, 8, 9]
    gpu.nvlinks_down = 0b101
    driver_process.evaluate("gpu.read('health')")
    nvml_stand_in.reset_counts()
    assert driver_process.evaluate("gpu.read('health')") == {
        "ecc_errors_total": {"corrected": 3, "uncorrected": 1},
        "remapped_rows": {"corrected": 2, "uncorrected": 1},
        "row_remap_pending": 1,
        "row_remap_failed": 0,
        "retired_pages": {"single_bit": 5, "double_bit": 6},
        "pcie_replays_total": 9,
        "nvlink_errors_total": {"replay": 7, "recovery": 8, "crc": 9},
        "nvlink_links": 18,
        "nvlink_links_active": 16,
    }
    assert nvml_stand_in.counts() == {"nvmlDeviceGetFieldValues": 1}


def test_older_calls_return_what_the_fields_lack(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, old_driver=True)
    node.gpu[0].absent_from_model = 0
    node.gpu[0].ecc_volatile[:] = [3, 1]
    node.gpu[0].remapped_rows[:] = [2, 1, 1, 0]
    node.gpu[0].retired_pages[:] = [5, 6]
    node.gpu[0].nvlinks_down = 0b1
    with DriverProcess(node) as child:
        child.open()
        health = child.evaluate("gpu.read('health')")
        assert health["ecc_errors_total"] == {"corrected": 3, "uncorrected": 1}
        assert health["remapped_rows"] == {"corrected": 2, "uncorrected": 1}
        assert health["row_remap_pending"] == 1
        assert health["retired_pages"] == {"single_bit": 5, "double_bit": 6}
        assert health["pcie_replays_total"] == 9
        assert (health["nvlink_links"], health["nvlink_links_active"]) == (18, 17)


def test_a_gaming_card_is_not_queried_again_for_missing_features(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, profile="rtx_4080_super")
    with DriverProcess(node) as child:
        child.open()
        health = child.evaluate("gpu.read('health')")
        assert health["pcie_replays_total"] == 0
        assert "nvlink_links" not in health
        assert "ecc_errors_total" not in health
        node.reset_counts()
        child.evaluate("gpu.read('health')")
        assert node.counts() == {"nvmlDeviceGetFieldValues": 1}


def test_a_flag_that_is_neither_yes_nor_no_is_absent(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].remapped_rows[:] = [0, 0, 7, 0]
    assert "row_remap_pending" not in driver_process.evaluate("gpu.read('health')")
    assert driver_process.evaluate("gpu.rejected") == {"out_of_range": 1}
