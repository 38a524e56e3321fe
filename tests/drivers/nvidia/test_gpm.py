"""GPM activity over the real pynvml: means between successive calls."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.drivers.device import Activity, Device, DriverError, Unsupported
from stallscope.node.drivers.nvidia.device import NvmlDevice
from stallscope.node.drivers.nvidia.gpm import Turns
from stallscope.node.drivers.nvidia.library import Handle, NvmlFailure
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import GpuState, Group, Nonsense, NvmlStandIn


def settle() -> None:
    """Let the stand-in's time go on, so that two samples differ."""
    time.sleep(0.02)


def activity(child: DriverProcess) -> Any:
    """Activity over a moment."""
    settle()
    return child.evaluate("gpu.activity()")


def test_the_first_call_only_begins(driver_process: DriverProcess) -> None:
    assert driver_process.evaluate("gpu.activity().seconds") == 0.0
    assert driver_process.evaluate("gpu.activity().sm is None") is False


def test_shares_are_means_between_two_calls(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.utilization = 100
    gpu.engine_utilization[1] = 30
    activity(driver_process)
    found = activity(driver_process)
    assert found["seconds"] > 0.01
    assert found["graphics"] == pytest.approx(1.0, abs=0.02)
    assert found["sm"] == pytest.approx(0.8, abs=0.02)
    assert found["occupancy"] == pytest.approx(0.45, abs=0.02)
    assert found["dram"] == pytest.approx(0.5, abs=0.02)
    assert found["pipes"] == pytest.approx(
        {"tensor": 0.4, "fp64": 0.0, "fp32": 0.2, "fp16": 0.05, "integer": 0.1}, abs=0.02
    )
    assert found["engines"] == pytest.approx({"decoder": 0.3, "jpeg": 0.0, "ofa": 0.0}, abs=0.02)


def test_bytes_are_those_of_the_time_between(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.pcie_received_rate, gpu.pcie_transmitted_rate = 2e9, 1e9
    gpu.nvlink_received_rate, gpu.nvlink_transmitted_rate = 4e9, 3e9
    driver_process.execute("gpu.activity(); import time; time.sleep(0.3)")
    found = driver_process.evaluate("gpu.activity()")
    rates = [found[name] / found["seconds"] for name in ("pcie_received", "pcie_transmitted")]
    rates += [found[name] / found["seconds"] for name in ("nvlink_received", "nvlink_transmitted")]
    assert rates == pytest.approx([2e9, 1e9, 4e9, 3e9], rel=0.1)


def test_cycle_counters_serve_where_the_driver_has_them(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.gpm_counters, gpu.utilization = 1, 100
    activity(driver_process)
    activity(driver_process)
    assert (
        driver_process.evaluate("gpu.served")["sm_active_seconds_total"] == "GPM 2"
    )  # one total makes no difference yet
    found = activity(driver_process)
    assert found["sm"] == pytest.approx(0.8, abs=0.02)
    served = driver_process.evaluate("gpu.served")
    assert served["sm_active_seconds_total"] == "GPM 249/248"
    assert served["pipe_active_seconds_total"].startswith("GPM 250/248")
    assert served["pcie_receive_bytes_total"] == "GPM 21"


def test_metrics_that_the_driver_refuses_are_not_queried_again(driver_process: DriverProcess) -> None:
    driver_process.execute("gpu.activity()")
    settle()
    driver_process.execute("gpu.activity(); ids = gpu._retry.select(gpu._meter._wanted, 0.0)")
    assert driver_process.evaluate("{2, 3, 5, 30, 60} <= set(ids)") is True
    assert driver_process.evaluate("{36, 37, 166, 248, 255} & set(ids)") == [36]


def test_each_reading_takes_one_sample_and_one_question(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    activity(driver_process)
    nvml_stand_in.reset_counts()
    activity(driver_process)
    assert nvml_stand_in.counts() == {"nvmlGpmSampleGet": 1, "nvmlGpmMetricsGet": 1}


def test_two_samples_are_enough_for_ever(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    driver_process.execute("for _ in range(50):\n    gpu.activity()")
    assert nvml_stand_in.control.gpm_samples == 2


def test_a_gpu_without_gpm_has_no_activity(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].lack(Group.GPM)
    assert driver_process.evaluate("gpu.activity()") == ["Unsupported", "not_supported"]
    assert nvml_stand_in.calls("nvmlGpmSampleAlloc") == 0


def test_a_driver_without_gpm_has_no_activity(tmp_path: Path) -> None:
    with DriverProcess(NvmlStandIn(tmp_path, old_driver=True)) as child:
        child.open()
        assert child.evaluate("gpu.activity()") == ["Unsupported", "not_supported"]


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        (Nonsense.NOT_A_NUMBER, "not_a_number"),
        (Nonsense.OVER_100_PERCENT, "out_of_range"),
        (Nonsense.HUGE_NUMBERS, "out_of_range"),
    ],
)
def test_impossible_shares_are_absent_and_counted(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn, nonsense: Nonsense, reason: str
) -> None:
    gpu = nvml_stand_in.gpu[0]
    activity(driver_process)
    gpu.state, gpu.nonsense = GpuState.NONSENSE, nonsense
    found = activity(driver_process)
    assert (found["sm"], found["dram"], found["pipes"]) == (None, None, {})
    assert driver_process.evaluate("gpu.rejected")[reason] > 0


def test_after_a_loss_the_difference_begins_again(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    activity(driver_process)
    gpu.state = GpuState.LOST
    assert activity(driver_process) == ["DeviceLost", "gpu_lost"]
    gpu.state = GpuState.OK
    assert activity(driver_process)["seconds"] == 0.0
    assert activity(driver_process)["seconds"] > 0.0


def test_gpus_read_side_by_side_take_turns(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.set_delay(2000)
    driver_process.execute(
        """
import threading
answers = []
threads = [
    threading.Thread(target=lambda each=each: answers.extend(each.activity() for _ in range(5)))
    for each in driver.devices()
]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    )
    assert driver_process.evaluate("len(answers)") == 40
    assert nvml_stand_in.control.gpm_concurrent_max == 1


def test_a_gpu_that_hangs_keeps_no_other_waiting_but_once(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.gpu[0].utilization = 100
    driver_process.execute("other = driver.devices()[1]; gpu.activity(); other.activity()")
    nvml_stand_in.gpu[0].state = GpuState.HUNG
    driver_process.execute(
        """
import threading, time
threading.Thread(target=gpu.activity, daemon=True).start()
from stallscope.node.drivers.nvidia.gpm import TURNS
while not TURNS._lock.locked(): time.sleep(0.001)
"""
    )
    assert driver_process.evaluate("other.activity()") is None
    driver_process.execute("TURNS._longest = 1000.0")  # it would be noticed if it waited once more
    assert driver_process.evaluate("other.activity()") is None
    nvml_stand_in.gpu[0].state = GpuState.OK
    driver_process.execute("while TURNS._lock.locked(): time.sleep(0.001)")
    # The sample from before the hang is still there: the interval has only become longer.
    assert driver_process.evaluate("other.activity().seconds") > 0.2


def test_closing_under_a_call_that_hangs_frees_nothing_of_its(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    driver_process.execute("other = driver.devices()[1]; gpu.activity(); other.activity()")
    nvml_stand_in.gpu[0].state = GpuState.HUNG
    driver_process.execute(
        """
import threading, time
threading.Thread(target=gpu.activity, daemon=True).start()
from stallscope.node.drivers.nvidia.gpm import TURNS
while not TURNS._lock.locked(): time.sleep(0.001)
driver.close()
"""
    )
    assert nvml_stand_in.control.gpm_samples == 2
    nvml_stand_in.gpu[0].state = GpuState.OK


def test_a_turn_is_not_waited_for_twice() -> None:
    turns = Turns(longest=0.01)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.take() as ours:
            assert ours
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    for _ in range(3):
        with turns.take() as ours:
            assert not ours
    done.set()
    holder.join()
    with turns.take() as ours:
        assert ours


def test_activity_names_what_serves_it(driver_process: DriverProcess) -> None:
    activity(driver_process)
    activity(driver_process)
    served = driver_process.evaluate("gpu.served")
    assert served["sm_active_seconds_total"] == "GPM 2"
    assert served["dram_active_seconds_total"] == "GPM 10"
    assert served["pipe_active_seconds_total"] == "GPM 5, 11, 12, 13, 4"


class Metrics:
    """A driver's library that has GPM and nothing else: metrics by id, set by hand."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}
        self.knows = 1000
        """A call that requests this id or a higher one fails as a whole."""
        self.queried: list[tuple[int, ...]] = []
        self.held = 0
        """Samples that were not given back."""
        self.on_sample: Callable[[], None] = lambda: None

    def load(self) -> None:
        """Nothing to load."""

    def call(self, name: str, *arguments: Any) -> Any:
        self.held += (name == "nvmlGpmSampleAlloc") - (name == "nvmlGpmSampleFree")
        if name == "nvmlGpmSampleGet":
            self.on_sample()
        if name == "nvmlGpmSampleAlloc" or name == "nvmlDeviceGetHandleByIndex":
            return Handle(len(self.queried) + 1)
        if name == "nvmlGpmQueryDeviceSupport" or name == "nvmlDeviceGetCount":
            return 1
        if name == "nvmlGpmMetricsGet":
            ids = arguments[2]
            self.queried.append(ids)
            if max(ids) >= self.knows:
                raise NvmlFailure(2, "Invalid Argument")
            return [(0, self.values[metric]) if metric in self.values else (3, 0.0) for metric in ids]
        return None


def meter(metrics: Metrics) -> Device:
    """A GPU of that library, a second after its first sample."""
    seconds = itertools.count()
    driver = NvmlDriver(metrics, monotonic=lambda: next(seconds) // 2)
    driver.open()
    device = driver.devices()[0]
    device.activity()
    return device


def test_a_driver_that_refuses_unknown_ids_is_queried_only_for_the_old_ones() -> None:
    metrics = Metrics()
    metrics.knows = 100
    metrics.values = {2: 50.0}
    gpu = meter(metrics)
    assert gpu.activity() == activity_of(1.0, sm=0.5)
    assert [max(ids) for ids in metrics.queried] == [260, 61]
    gpu.activity()
    assert metrics.queried[2] == (2,)


def test_a_driver_without_any_metric_has_no_activity() -> None:
    gpu = meter(Metrics())
    with pytest.raises(Unsupported):
        gpu.activity()


def test_cycles_that_contradict_the_percentage_are_not_believed() -> None:
    metrics = Metrics()
    metrics.values = {2: 50.0, 248: 1e9, 249: 1e9}
    gpu = meter(metrics)
    gpu.activity()
    metrics.values |= {248: 2e9, 249: 1.52e9}
    assert gpu.activity() == activity_of(1.0, sm=0.52)
    metrics.values |= {248: 3e9, 249: 1.53e9}
    assert gpu.activity() == activity_of(1.0, sm=0.5)
    assert gpu.served["sm_active_seconds_total"] == "GPM 2"


def test_cycles_that_go_back_leave_the_percentage() -> None:
    metrics = Metrics()
    metrics.values = {2: 50.0, 248: 5e9, 249: 1e9}
    gpu = meter(metrics)
    gpu.activity()
    metrics.values |= {248: 1e9, 249: 0.5e9}
    assert gpu.activity() == activity_of(1.0, sm=0.5)


def test_link_counters_serve_where_there_are_no_totals() -> None:
    metrics = Metrics()
    metrics.values = {2: 50.0, 248: 1.0} | dict.fromkeys(range(261, 297), 1000.0)
    gpu = meter(metrics)
    gpu.activity()
    gpu.activity()
    metrics.values |= {261: 1100.0, 263: 1200.0, 262: 1010.0}
    found = gpu.activity()
    assert found is not None
    assert (found.nvlink_received, found.nvlink_transmitted) == (300.0, 10.0)
    assert gpu.served["nvlink_receive_bytes_total"] == "GPM 261"


def test_a_byte_counter_that_stands_still_under_traffic_is_not_one() -> None:
    metrics = Metrics()
    metrics.values = {21: 3.0, 256: 77.0}
    gpu = meter(metrics)
    gpu.activity()
    found = gpu.activity()
    assert found is not None
    assert found.pcie_received == 3 * 1024 * 1024


def test_samples_are_given_back_where_a_call_fails_while_the_instance_is_taken_apart() -> None:
    metrics = Metrics()
    metrics.values = {2: 50.0}
    gpu = meter(metrics)
    assert isinstance(gpu, NvmlDevice)
    assert metrics.held == 2

    def taken_apart() -> None:
        gpu.retire()
        raise NvmlFailure(2, "Invalid Argument")

    metrics.on_sample = taken_apart
    with pytest.raises(DriverError):
        gpu.activity()
    assert metrics.held == 0


def activity_of(seconds: float, sm: float | None = None) -> Activity:
    """Activity of the SMs alone."""
    return Activity(seconds, sm=sm)
