"""MIG instances over the real pynvml: devices of their own."""

from __future__ import annotations

import time

import pytest

from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import Group, NvmlStandIn

GIBIBYTE = 1 << 30


@pytest.fixture
def sliced(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> DriverProcess:
    """A child that has met a GPU with two instances."""
    nvml_stand_in.gpu[0].cut(("3g.40gb", 40 * GIBIBYTE), ("1g.10gb", 10 * GIBIBYTE))
    driver_process.execute("instances = gpu.instances()")
    return driver_process


def test_a_gpu_that_is_not_sliced_has_no_instances(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    assert driver_process.evaluate("gpu.instances()") is None
    nvml_stand_in.gpu[0].lack(Group.MIG)
    assert driver_process.evaluate("gpu.instances()") is None


def test_a_gpu_in_mig_mode_may_have_no_instance_yet(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].cut()
    assert driver_process.evaluate("gpu.instances()") == []


def test_an_instance_says_what_it_is_and_where_it_belongs(sliced: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    found = sliced.evaluate("[vars(each.identity()) for each in instances]")
    assert [each["mig"] for each in found] == ["3g.40gb", "1g.10gb"]
    assert [each["uuid"] for each in found] == [nvml_stand_in.gpu[0].instance[place].uuid.decode() for place in (0, 1)]
    assert [each["gpu_instance"] for each in found] == [1, 2]
    for each in found:
        assert each["parent_uuid"] == NvmlStandIn.uuid(0)
        assert each["index"] == 0
        assert each["pci_bus_id"] == "00000000:10:00.0"
        assert each["model"] == "NVIDIA H100 80GB HBM3"


def test_an_instance_is_the_same_object_as_long_as_it_is(sliced: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    assert sliced.evaluate("[new is old for new, old in zip(gpu.instances(), instances)]") == [True, True]
    nvml_stand_in.gpu[0].cut(("3g.40gb", 40 * GIBIBYTE), ("1g.10gb", 10 * GIBIBYTE))
    assert sliced.evaluate("[new is old for new, old in zip(gpu.instances(), instances)]") == [False, False]
    nvml_stand_in.gpu[0].uncut()
    assert sliced.evaluate("gpu.instances()") is None


def test_an_instance_has_its_own_memory_and_processes(sliced: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.run((77, 1 << 20, False), (78, 1 << 21, False))
    gpu.run_on(0, 0)
    gpu.run_on(1, 1)
    gpu.instance[1].memory_used = GIBIBYTE
    assert sliced.evaluate("instances[1].read('memory')")["memory_total_bytes"] == 10 * GIBIBYTE
    assert sliced.evaluate("instances[1].read('memory')")["memory_used_bytes"] == GIBIBYTE
    assert [each["pid"] for each in sliced.evaluate("instances[1].processes()")] == [78]
    assert sliced.evaluate("instances[1].instances()") is None


@pytest.mark.parametrize(
    "question",
    [
        "utilization()",
        "utilization_samples('gpu', 0)",
        "read('power')",
        "read('counters')",
        "read('health')",
        "read('temperature')",
        "read('clocks')",
        "process_utilization(0)",
        "read('persistence_mode')",
        "read('pcie_link')",
    ],
)
def test_signals_of_the_whole_gpu_are_never_queried_on_an_instance(
    sliced: DriverProcess, nvml_stand_in: NvmlStandIn, question: str
) -> None:
    nvml_stand_in.reset_counts()
    assert sliced.evaluate(f"instances[0].{question}") == ["Unsupported", "not_supported"]
    assert nvml_stand_in.calls() == 0


def test_an_instance_has_its_own_activity(sliced: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].instance[1].utilization = 50
    sliced.execute("for each in instances: each.activity()")
    time.sleep(0.05)
    assert sliced.evaluate("instances[1].activity().graphics") == pytest.approx(0.5, abs=0.05)
    assert sliced.evaluate("instances[0].activity().graphics") == pytest.approx(0.0, abs=0.01)


def test_activity_of_a_shared_gpu_instance_is_nobodys_own(sliced: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.cut(("1c.2g.20gb", 20 * GIBIBYTE), ("1c.2g.20gb", 20 * GIBIBYTE))
    gpu.instance[1].gpu_instance = gpu.instance[0].gpu_instance
    gpu.instance[1].compute_instance = 1
    sliced.execute("instances = gpu.instances()")
    assert sliced.evaluate("instances[0].identity().mig") == "1c.2g.20gb"
    assert sliced.evaluate("instances[0].activity()") == ["Unsupported", "not_supported"]


def test_what_a_gpu_lacks_in_mig_mode_comes_back_without_it(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.cut(("1g.10gb", 10 * GIBIBYTE))
    driver_process.execute("gpu.instances()")
    assert "nvlink_receive_bytes_total" not in driver_process.evaluate("gpu.read('counters')")
    gpu.uncut()
    driver_process.execute("gpu.instances()")
    assert driver_process.evaluate("gpu.read('counters')")["nvlink_receive_bytes_total"] is not None


def test_an_instance_names_only_what_it_has(sliced: DriverProcess) -> None:
    sliced.execute("instances[0].read('memory')")
    served = sliced.evaluate("instances[0].served")
    assert served["memory_used_bytes"] == "nvmlDeviceGetMemoryInfo"
    assert "power_watts" not in served


def test_instances_that_were_taken_apart_hold_nothing_of_the_drivers(
    sliced: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    sliced.execute("for each in instances:\n    each.activity()")
    assert nvml_stand_in.control.gpm_samples == 4
    nvml_stand_in.gpu[0].cut(("7g.80gb", 80 * GIBIBYTE))
    sliced.execute("old, instances = instances, gpu.instances()")
    assert nvml_stand_in.control.gpm_samples == 0
    assert sliced.evaluate("old[0].activity()") is None
    sliced.execute("instances[0].activity()")
    assert nvml_stand_in.control.gpm_samples == 2
    nvml_stand_in.gpu[0].uncut()
    sliced.execute("gpu.instances()")
    assert nvml_stand_in.control.gpm_samples == 0
