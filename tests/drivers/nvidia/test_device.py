"""One GPU over the real pynvml: its readings, their cost, and the implausible values it rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import GpuState, Group, Nonsense, NvmlStandIn

QUESTIONS = (
    "utilization()",
    "read('memory')",
    "read('bar1')",
    "read('power')",
    "read('power_limits')",
    "read('counters')",
    "read('health')",
    "read('temperature')",
    "read('temperature_limits')",
    "read('clocks')",
    "read('clocks_max')",
    "throttle_reasons()",
    "read('pcie_link')",
    "processes()",
    "process_utilization(0)",
    "read('persistence_mode')",
    "compute_mode()",
)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (GpuState.LOST, ["DeviceLost", "gpu_lost"]),
        (GpuState.NEEDS_RESET, ["DeviceLost", "reset_required"]),
        (GpuState.FAILING, ["DriverError", "driver_error"]),
    ],
)
def test_a_gpu_in_trouble_fails_with_its_own_kind_of_error(
    shared_driver: tuple[NvmlStandIn, DriverProcess], state: GpuState, outcome: list[str], question: str
) -> None:
    node, child = shared_driver
    node.gpu[0].state = state
    assert child.evaluate(f"gpu.{question}") == outcome


@pytest.mark.parametrize("query", ["memory", "bar1", "power", "power_limits", "clocks", "temperature"])
def test_nonsense_is_an_error_of_this_time_and_counted(
    shared_driver: tuple[NvmlStandIn, DriverProcess], query: str
) -> None:
    node, child = shared_driver
    node.gpu[0].state = GpuState.NONSENSE
    before = child.evaluate("gpu.rejected").get("sentinel", 0)
    assert child.evaluate(f"gpu.read('{query}')") == ["DriverError", "implausible"]
    assert child.evaluate("gpu.rejected")["sentinel"] > before
    node.gpu[0].state = GpuState.OK
    assert child.evaluate(f"gpu.read('{query}')")


def test_what_a_gpu_lacks_is_unsupported_and_not_counted_as_nonsense(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.gpu[0].lack(Group.POWER, Group.BAR1)
    assert driver_process.evaluate("gpu.read('power')") == ["Unsupported", "not_supported"]
    assert driver_process.evaluate("gpu.read('bar1')") == ["Unsupported", "not_supported"]
    assert driver_process.evaluate("gpu.rejected") == {}


def test_handles_and_identities_are_queried_once(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    for _ in range(5):
        driver_process.execute("for each in driver.devices():\n    each.identity(); each.read('power')")
    assert nvml_stand_in.calls("nvmlDeviceGetHandleByIndex_v2") == 8
    assert nvml_stand_in.calls("nvmlDeviceGetUUID") == 8
    assert nvml_stand_in.calls("nvmlDeviceGetPowerUsage") == 40


def test_a_gpu_that_was_lost_gets_a_new_handle(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    driver_process.evaluate("gpu.read('power')")
    nvml_stand_in.gpu[0].state = GpuState.LOST
    driver_process.evaluate("gpu.read('power')")
    nvml_stand_in.gpu[0].state = GpuState.OK
    assert driver_process.evaluate("gpu.read('power')")["power_watts"] == 69.85
    assert nvml_stand_in.calls("nvmlDeviceGetHandleByIndex_v2") == 2


def test_a_gpu_whose_place_another_took_stays_lost_and_shows_nothing_of_the_other(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    driver_process.execute("gpu.identity(); gpu.read('power')")
    gone, other = nvml_stand_in.uuid(0), nvml_stand_in.uuid(1)
    nvml_stand_in.remove(0)
    assert driver_process.evaluate("gpu.read('power')") == ["DeviceLost", "gpu_lost"]
    assert driver_process.evaluate("gpu.read('power')") == ["DeviceLost", "gpu_lost"], "index 0 is another GPU's now"
    assert driver_process.evaluate("gpu.identity().uuid") == gone
    nvml_stand_in.add()  # as many as before: only the new position reveals the change
    driver_process.execute("now = driver.devices()")
    assert driver_process.evaluate("now[0].identity().uuid") == other
    assert driver_process.evaluate("now[0].read('power')")["power_watts"] == 69.85


def test_a_gpu_whose_place_stays_empty_stays_lost(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    driver_process.execute("last = driver.devices()[7]; last.identity(); last.read('power')")
    nvml_stand_in.remove(7)
    assert driver_process.evaluate("last.read('power')") == ["DeviceLost", "gpu_lost"]
    assert driver_process.evaluate("last.read('power')") == ["DeviceLost", "gpu_lost"], (
        "not that its index is an invalid argument"
    )


def test_a_gpu_says_what_it_is(driver_process: DriverProcess) -> None:
    assert driver_process.evaluate("vars(gpu.identity())") == {
        "index": 0,
        "uuid": NvmlStandIn.uuid(0),
        "model": "NVIDIA H100 80GB HBM3",
        "serial": "1652923000000",
        "pci_bus_id": "00000000:10:00.0",
        "vbios_version": "96.00.A5.00.01",
        "architecture": "Hopper",
        "compute_capability": "9.0",
        "mig": "",
        "parent_uuid": "",
        "gpu_instance": None,
    }


def test_names_with_broken_text_are_cleaned_and_counted(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.gpu[0].state, nvml_stand_in.gpu[0].nonsense = GpuState.NONSENSE, Nonsense.MALFORMED_TEXT
    model = driver_process.evaluate("gpu.identity().model")
    assert model.isprintable()
    assert "\ufffd" in model
    assert driver_process.evaluate("gpu.rejected")["malformed_text"] > 0


def test_a_missing_function_is_tried_once_and_its_predecessor_responds(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, old_driver=True)
    node.gpu[0].throttle_reasons = 0x80 | 0x8 | 0x1
    with DriverProcess(node) as child:
        child.open()
        assert child.evaluate("['memory_reserved_bytes' in gpu.read('memory') for _ in range(2)]") == [False, False]
        assert child.evaluate("gpu.throttle_reasons()") == ["hw_slowdown", "power_brake"]
    assert node.calls("nvmlDeviceGetMemoryInfo") == 2


def test_buffered_samples_come_once_in_order_and_only_newer_ones(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.gpu[0].utilization = 75
    first = driver_process.evaluate('gpu.utilization_samples("gpu", 0)')
    stamps = [sample["timestamp_us"] for sample in first]
    assert len(first) == 100
    assert stamps == sorted(stamps)
    assert first[0]["value"] == 0.75
    newer = driver_process.evaluate(f'gpu.utilization_samples("gpu", {stamps[50]})')
    assert [sample["timestamp_us"] for sample in newer][:49] == stamps[51:]
    # One call each: pynvml's own functions query the size first.
    assert nvml_stand_in.calls("nvmlDeviceGetSamples") == 2


def test_an_idle_gpu_with_an_empty_buffer_has_no_samples(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.gpu[0].ring_silent = 1
    assert driver_process.evaluate('gpu.utilization_samples("gpu", 0)') == []


def test_engines_have_samples_of_their_own(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].engine_utilization[1] = 40
    nvml_stand_in.gpu[0].utilization = 100
    assert driver_process.evaluate('gpu.utilization_samples("decoder", 0)')[-1]["value"] == 0.4


def test_samples_of_any_clock_are_taken(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].sample_clock_offset_us = -1_700_000_000_000_000
    assert len(driver_process.evaluate('gpu.utilization_samples("gpu", 0)')) == 100
    assert driver_process.evaluate("gpu.rejected") == {}


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        (Nonsense.ALL_BITS_SET, "sentinel"),
        (Nonsense.HUGE_NUMBERS, "sentinel"),
        (Nonsense.NOT_A_NUMBER, "not_a_number"),
        (Nonsense.OVER_100_PERCENT, "out_of_range"),
        (Nonsense.ZERO_TIMESTAMPS, "zero_timestamp"),
        (Nonsense.FUTURE_TIMESTAMPS, "future_timestamp"),
    ],
)
def test_impossible_samples_are_left_out_and_counted(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn, nonsense: Nonsense, reason: str
) -> None:
    nvml_stand_in.gpu[0].utilization = 50
    nvml_stand_in.gpu[0].state, nvml_stand_in.gpu[0].nonsense = GpuState.NONSENSE, nonsense
    assert driver_process.evaluate('gpu.utilization_samples("memory", 0)') == []
    assert driver_process.evaluate("gpu.rejected")[reason] > 0


def test_processes_are_listed_with_their_kind_in_one_call_a_kind(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.run((77, 2**64 - 1, False), (78, 1 << 20, True), (79, 1 << 21, False))
    gpu.process[2].kind = 2
    assert driver_process.evaluate("gpu.processes()") == [
        {"pid": 77, "memory": None, "kind": "compute"},
        {"pid": 78, "memory": 1 << 20, "kind": "graphics"},
        {"pid": 79, "memory": 1 << 21, "kind": "mps"},
    ]
    assert nvml_stand_in.counts()["nvmlDeviceGetComputeRunningProcesses_v3"] == 1
    # NVML documents a value for unavailable memory: it is not implausible.
    assert driver_process.evaluate("gpu.rejected") == {}


@pytest.mark.parametrize(
    ("bit", "reasons"),
    [
        (0x1, []),
        (0x2, []),
        (0x4, ["power_cap"]),
        (0x8, ["hw_slowdown"]),
        (0x10, ["sync_boost"]),
        (0x20, ["sw_thermal"]),
        (0x40, ["hw_thermal"]),
        (0x80, ["power_brake"]),
        (0x100, []),
        (0x200, ["other"]),
        (0x400, ["other"]),
        (0x4 | 0x8000, ["other", "power_cap"]),
        (1 << 40, ["other"]),
    ],
)
def test_each_bit_of_the_throttle_reasons_has_a_name(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn, bit: int, reasons: list[str]
) -> None:
    nvml_stand_in.gpu[0].throttle_reasons = bit
    assert driver_process.evaluate("gpu.throttle_reasons()") == reasons


def test_process_utilization_is_a_ratio_by_process(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].utilization = 80
    nvml_stand_in.gpu[0].run((77, 1 << 20, False), (78, 1 << 20, False))
    found = driver_process.evaluate("gpu.process_utilization(0)")
    assert {sample["pid"] for sample in found} == {77, 78}
    assert all(sample["gpu"] == 0.4 for sample in found)
    newest = max(sample["timestamp_us"] for sample in found)
    assert all(each["timestamp_us"] > newest for each in driver_process.evaluate(f"gpu.process_utilization({newest})"))


def test_no_process_at_work_has_no_samples(driver_process: DriverProcess) -> None:
    assert driver_process.evaluate("gpu.process_utilization(0)") == []


def test_persistence_mode_is_read(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    assert driver_process.evaluate("gpu.read('persistence_mode')") == {"persistence_mode": 1}
    nvml_stand_in.gpu[0].persistence = 0
    assert driver_process.evaluate("gpu.read('persistence_mode')") == {"persistence_mode": 0}


def test_the_compute_mode_is_read_by_name(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    assert driver_process.evaluate("gpu.compute_mode()") == "default"
    nvml_stand_in.gpu[0].compute_mode = 3
    assert driver_process.evaluate("gpu.compute_mode()") == "exclusive_process"


def test_the_call_behind_a_signal_is_named_after_its_first_query(driver_process: DriverProcess) -> None:
    assert "energy_joules_total" not in driver_process.evaluate("gpu.served")
    driver_process.execute("gpu.utilization_samples('gpu', 0); gpu.read('counters')")
    served = driver_process.evaluate("gpu.served")
    assert served["busy_seconds_total"] == "nvmlDeviceGetSamples"
    assert served["energy_joules_total"] == "nvmlDeviceGetFieldValues(83)"
