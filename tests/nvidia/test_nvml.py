"""The driver interface over the real pynvml, in a child process each: pynvml loads the library once a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nvml_library.stand_in import DriverState, GpuState, NvmlStandIn

PREAMBLE = """
import json, os, sys
from stallscope.gpus.driver import DeviceLost, DriverError, DriverUnavailable, Unsupported
from stallscope.nvidia.nvml import NvmlDriver

def outcome(call, *arguments):
    try:
        return call(*arguments)
    except DriverError as problem:
        return [type(problem).__name__, problem.reason]

driver = NvmlDriver()
"""


def asked(node: NvmlStandIn | None, script: str, **environment: str) -> Any:
    """What the script prints as JSON, run where the node is."""
    variables = os.environ | (node.environment if node is not None else {}) | environment
    command = [sys.executable, "-c", PREAMBLE + script]
    return json.loads(subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True, timeout=60).stdout)


def test_a_machine_without_the_library_says_so() -> None:
    assert asked(None, "print(json.dumps(outcome(driver.open)))") == ["DriverUnavailable", "library_not_found"]


def test_a_machine_without_the_binding_says_how_to_get_it(tmp_path: Path) -> None:
    script = """
sys.modules["pynvml"] = None
try:
    driver.open()
except DriverUnavailable as problem:
    print(json.dumps([problem.reason, str(problem)]))
"""
    reason, message = asked(None, script)
    assert reason == "binding_missing"
    assert "pip install" in message


def test_a_package_that_only_shares_the_bindings_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    script = "print(json.dumps(outcome(driver.open)))"
    assert asked(None, script, PYTHONPATH=str(tmp_path)) == ["DriverUnavailable", "binding_incompatible"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (DriverState.NOT_LOADED, "driver_not_loaded"),
        (DriverState.FORBIDDEN, "no_permission"),
        (DriverState.MISMATCHED, "version_mismatch"),
    ],
)
def test_a_driver_that_refuses_is_unavailable_for_its_own_reason(
    nvml_stand_in: NvmlStandIn, state: DriverState, reason: str
) -> None:
    nvml_stand_in.set_driver(state)
    assert asked(nvml_stand_in, "print(json.dumps(outcome(driver.open)))") == ["DriverUnavailable", reason]


def test_nothing_is_asked_of_a_driver_that_is_not_open(nvml_stand_in: NvmlStandIn) -> None:
    assert asked(nvml_stand_in, "print(json.dumps(outcome(driver.devices)))") == ["DriverUnavailable", "uninitialized"]
    assert nvml_stand_in.calls() == 0


def test_a_reloaded_driver_works_again_after_open(nvml_stand_in: NvmlStandIn) -> None:
    # The node is reloaded from within the child, which maps the same control file.
    script = f"""
import mmap, struct
driver.open()
gpu = driver.devices()[0]
before = gpu.power()
with open({str(nvml_stand_in.control_file)!r}, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    generation = struct.unpack_from("Q", memory, 16)[0]
    struct.pack_into("Q", memory, 16, generation + 1)
failed = outcome(gpu.power)
driver.open()
print(json.dumps([before, failed, driver.devices()[0].power()]))
"""
    assert asked(nvml_stand_in, script) == [69.85, ["DriverUnavailable", "uninitialized"], 69.85]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (GpuState.LOST, ["DeviceLost", "gpu_lost"]),
        (GpuState.FAILING, ["DriverError", "driver_error"]),
        (GpuState.NONSENSE, ["Unsupported", "not_supported"]),
    ],
)
@pytest.mark.parametrize(
    "call",
    ["memory", "bar1", "power", "power_limits", "energy", "temperature_limits", "clocks", "pcie_link"],
)
def test_a_gpu_in_trouble_fails_with_its_own_kind_of_error(
    nvml_stand_in: NvmlStandIn, state: GpuState, outcome: list[str], call: str
) -> None:
    nvml_stand_in.gpu[0].state = state
    script = f"driver.open(); print(json.dumps(outcome(driver.devices()[0].{call})))"
    assert asked(nvml_stand_in, script) == outcome


def test_handles_and_identities_are_asked_for_once(nvml_stand_in: NvmlStandIn) -> None:
    script = """
driver.open()
for _ in range(5):
    for device in driver.devices():
        device.identity()
        device.power()
print(json.dumps(len(driver.devices())))
"""
    assert asked(nvml_stand_in, script) == 8
    assert nvml_stand_in.calls("nvmlDeviceGetHandleByIndex_v2") == 8
    assert nvml_stand_in.calls("nvmlDeviceGetUUID") == 8
    assert nvml_stand_in.calls("nvmlDeviceGetPowerUsage") == 40


def test_a_missing_function_is_asked_for_once_and_its_forerunner_answers(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, old_driver=True)
    script = """
driver.open()
gpu = driver.devices()[0]
print(json.dumps([gpu.memory()[2], gpu.memory()[2], sorted(gpu.throttle_reasons())]))
"""
    node.gpu[0].throttle_reasons = 0x80 | 0x8 | 0x1
    assert asked(node, script) == [None, None, ["hw_slowdown", "power_brake"]]
    assert node.calls("nvmlDeviceGetMemoryInfo") == 2


def test_buffered_samples_come_once_in_order_and_only_newer_ones(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].utilization = 75
    script = """
driver.open()
gpu = driver.devices()[0]
first = gpu.utilization_samples("gpu", 0)
middle = first[50].timestamp_us
newer = gpu.utilization_samples("gpu", middle)
print(json.dumps([len(first), first == sorted(first), first[0].value, newer[0].timestamp_us > middle]))
"""
    assert asked(nvml_stand_in, script) == [100, True, 0.75, True]
    # One call each: pynvml's own would ask for the size first.
    assert nvml_stand_in.calls("nvmlDeviceGetSamples") == 2


def test_impossible_samples_are_left_out(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].state = GpuState.NONSENSE
    script = 'driver.open(); print(json.dumps(driver.devices()[0].utilization_samples("memory", 0)))'
    assert asked(nvml_stand_in, script) == []


def test_a_process_whose_memory_is_not_told_still_counts(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].run((77, 2**64 - 1, False), (78, 1 << 20, False))
    script = 'driver.open(); print(json.dumps(driver.devices()[0].processes("compute")))'
    assert asked(nvml_stand_in, script) == [[77, None], [78, 1 << 20]]
