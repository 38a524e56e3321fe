from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping

import pytest

from stallscope.lab.simulation.driver import SimulatedDriver
from stallscope.lab.simulation.gpu import POWER_LIMIT_WATTS
from stallscope.lab.simulation.node import Node
from stallscope.lab.simulation.scenarios import scenario
from stallscope.lab.simulation.workload import EFFECTS, Step
from stallscope.model.catalogue.metrics import GPU_FAMILIES
from stallscope.node.drivers.device import Device, DeviceLost, Driver, DriverUnavailable, Unsupported
from stallscope.node.sampling.clock import ScriptedClock
from tests.simulation.numbers import celsius, clock, highest_clock, memory, number, watts

CALLS: tuple[Callable[[Device], object], ...] = (
    lambda device: device.identity(),
    lambda device: device.utilization(),
    lambda device: device.utilization_samples("gpu", 0),
    lambda device: device.read("memory"),
    lambda device: device.read("bar1"),
    lambda device: device.read("power"),
    lambda device: device.read("power_limits"),
    lambda device: device.read("counters"),
    lambda device: device.read("health"),
    lambda device: device.activity(),
    lambda device: device.read("temperature"),
    lambda device: device.read("temperature_limits"),
    lambda device: device.read("fans"),
    lambda device: device.read("clocks"),
    lambda device: device.read("clocks_max"),
    lambda device: device.read("clocks_configured"),
    lambda device: device.throttle_reasons(),
    lambda device: device.read("pcie_link"),
    lambda device: device.pcie_throughput(),
    lambda device: device.processes(),
    lambda device: device.process_utilization(0),
    lambda device: device.read("persistence_mode"),
    lambda device: device.instances(),
)


class World:
    """A node on a scripted clock, with one open driver."""

    def __init__(self, name: str, *, onset: float | None = None, seed: int = 1, gpus: int = 8) -> None:
        self.clock = ScriptedClock()
        self.node = Node(scenario(name, onset=onset), self.clock, seed=seed, gpus=gpus)
        self.steps: list[Step] = []
        self.node.listen(self.steps.append)
        self.driver: Driver = SimulatedDriver(self.node)
        self.driver.open()
        self.devices = list(self.driver.devices())


def energy(device: Device) -> float:
    return number(device, "counters", "energy_joules_total")


def readings(world: World) -> list[object]:
    world.clock.advance(30.0)
    return [
        (
            device.identity(),
            device.utilization(),
            tuple(device.utilization_samples("memory", 0)),
            device.read("memory"),
            device.read("power"),
            device.read("counters"),
            device.read("health"),
            device.activity(),
            device.read("temperature"),
            tuple(device.process_utilization(0)),
        )
        for device in world.devices
    ]


def test_eight_gpus_look_like_h100s() -> None:
    world = World("healthy")
    assert [device.identity().index for device in world.devices] == list(range(8))
    device = world.devices[0]
    assert device.read("memory")["memory_total_bytes"] == 81_559 * 1024**2
    assert device.read("power_limits")["power_limit_watts"] == 700.0
    assert highest_clock(device, "sm") == 1_980e6
    assert highest_clock(device, "memory") == 2_619e6
    assert list(device.read("pcie_link").values()) == [5, 5, 16, 16]


def test_a_simulated_gpu_cannot_be_mistaken_for_a_real_one() -> None:
    world = World("healthy")
    assert world.driver.simulated
    assert world.driver.system().driver_version == "simulated"
    for device in world.devices:
        identity = device.identity()
        assert identity.model == "Simulated NVIDIA H100 80GB HBM3"
        assert identity.uuid.startswith("GPU-simulated-")
        assert identity.serial == "simulated"


def test_uuids_and_bus_addresses_identify_gpus() -> None:
    world = World("healthy")
    assert len({device.identity().uuid for device in world.devices}) == 8
    assert len({device.identity().pci_bus_id for device in world.devices}) == 8


def test_the_same_seed_gives_the_same_readings() -> None:
    assert readings(World("healthy", seed=5)) == readings(World("healthy", seed=5))


def test_another_seed_gives_other_uuids_and_readings() -> None:
    one, other = World("healthy", seed=5), World("healthy", seed=6)
    assert one.devices[0].identity().uuid != other.devices[0].identity().uuid
    assert readings(one) != readings(other)


def test_readings_do_not_depend_on_the_polling_interval() -> None:
    often, rarely = World("thermal_throttle"), World("thermal_throttle")
    for _ in range(300):
        often.clock.advance(1.0)
        for device in often.devices:
            watts(device)
    rarely.clock.advance(300.0)
    assert [energy(device) for device in often.devices] == [energy(device) for device in rarely.devices]
    assert [celsius(device) for device in often.devices] == [celsius(device) for device in rarely.devices]


def test_energy_is_the_integral_of_power() -> None:
    world = World("healthy", gpus=1)
    device = world.devices[0]
    world.clock.advance(10.0)
    before, integral, tick = energy(device), 0.0, 0.005
    for _ in range(4000):
        world.clock.advance(tick)
        integral += watts(device) * tick
    assert energy(device) - before == pytest.approx(integral, rel=0.005)


def test_power_follows_utilisation_and_stays_under_its_limit() -> None:
    busy, idle = World("compute_bound"), World("underused")
    for world in (busy, idle):
        world.clock.advance(60.0)
    watts = [(energy(world.devices[0])) / 60.0 for world in (busy, idle)]
    assert POWER_LIMIT_WATTS > watts[0] > 400
    assert watts[1] < 300


def test_busy_samples_add_up_to_the_compute_share_of_the_steps() -> None:
    world = World("input_cpu_saturated", onset=0.0)
    values: list[float] = []
    newest = 0
    for _ in range(60):
        world.clock.advance(10.0)
        for sample in world.devices[2].utilization_samples("gpu", newest):
            assert sample.timestamp_us > newest
            newest = sample.timestamp_us
            values.append(sample.value)
    compute = sum(
        seconds for step in world.steps for phase, seconds in step.ranks[2] if EFFECTS[phase].busy and step.end <= 600.0
    )
    assert len(values) == 3600
    assert sum(values) / len(values) == pytest.approx(compute / 600.0, abs=0.01)


def test_waiting_for_data_shows_as_idle_samples() -> None:
    world = World("input_cpu_saturated", onset=0.0)
    world.clock.advance(16.0)
    values = [sample.value for sample in world.devices[0].utilization_samples("gpu", 0)]
    assert 0.2 < sum(value < 0.1 for value in values) / len(values) < 0.45


def test_the_sample_buffer_is_short_like_the_driver_s() -> None:
    world = World("healthy")
    world.clock.advance(600.0)
    samples = world.devices[0].utilization_samples("gpu", 0)
    assert len(samples) == 100
    assert samples[-1].timestamp_us - samples[0].timestamp_us == pytest.approx(99 / 6 * 1e6, abs=2)


def test_nothing_newer_is_an_empty_answer() -> None:
    world = World("healthy")
    world.clock.advance(5.0)
    newest = world.devices[0].utilization_samples("gpu", 0)[-1].timestamp_us
    assert world.devices[0].utilization_samples("gpu", newest) == []


def test_a_node_that_has_only_begun_answers_every_call() -> None:
    world = World("healthy")
    assert world.devices[0].utilization() == (0.0, 0.0)
    assert world.devices[0].utilization_samples("gpu", 0) == []
    assert 60 < watts(world.devices[0]) < 700


def test_a_healthy_node_is_busy_warm_and_not_throttled() -> None:
    world = World("healthy")
    world.clock.advance(1800.0)
    for device in world.devices:
        assert device.utilization().gpu > 0.9
        assert 55 < celsius(device) < 75
        assert device.throttle_reasons() == frozenset()
        throttled = device.read("counters")["throttled_seconds_total"]
        assert isinstance(throttled, Mapping)
        assert set(throttled.values()) == {0.0}
        assert clock(device, "sm") == highest_clock(device, "sm")


def test_a_gpu_without_cooling_gets_hot_slows_down_and_counts_it() -> None:
    world = World("thermal_throttle", onset=300.0)
    hot, peer = world.devices[3], world.devices[2]
    world.clock.advance(299.0)
    before = celsius(hot)
    assert hot.throttle_reasons() == frozenset()
    world.clock.advance(301.0)
    assert celsius(hot) > before + 15
    assert celsius(hot) < number(hot, "temperature_limits", "temperature_limit_celsius", "slowdown")
    assert hot.throttle_reasons() == {"sw_thermal"}
    assert clock(hot, "sm") < 0.85 * clock(peer, "sm")
    assert clock(hot, "memory") == clock(peer, "memory")
    counted = number(hot, "counters", "throttled_seconds_total", "sw_thermal")
    world.clock.advance(100.0)
    assert number(hot, "counters", "throttled_seconds_total", "sw_thermal") - counted == pytest.approx(100.0)


def test_throttling_of_one_gpu_leaves_the_others_clocks_alone() -> None:
    world = World("thermal_throttle", onset=0.0)
    world.clock.advance(600.0)
    throttled = [device.identity().index for device in world.devices if device.throttle_reasons()]
    assert throttled == [3]


def test_heat_comes_with_inertia() -> None:
    world = World("thermal_throttle", onset=100.0)
    world.clock.advance(100.0)
    temperatures = []
    for _ in range(30):
        world.clock.advance(1.0)
        temperatures.append(celsius(world.devices[3]))
    assert temperatures == sorted(temperatures)
    assert max(b - a for a, b in itertools.pairwise(temperatures)) <= 4


@pytest.mark.parametrize("call", CALLS)
def test_a_lost_gpu_fails_every_call_and_the_others_none(call: Callable[[Device], object]) -> None:
    world = World("gpu_lost", onset=10.0)
    world.clock.advance(11.0)
    with pytest.raises(DeviceLost) as caught:
        call(world.devices[5])
    assert caught.value.reason == "gpu_lost"
    for device in world.devices[:5] + world.devices[6:]:
        with contextlib.suppress(Unsupported):
            call(device)


def test_a_lost_gpu_is_well_before_its_time() -> None:
    world = World("gpu_lost", onset=10.0)
    world.clock.advance(9.0)
    assert watts(world.devices[5]) > 0
    assert len(world.driver.devices()) == 8


def test_a_driver_opened_afresh_shows_no_lost_gpu() -> None:
    world = World("gpu_lost", onset=0.0)
    world.driver.close()
    world.driver.open()
    assert [device.identity().index for device in world.driver.devices()] == [0, 1, 2, 3, 4, 6, 7]


def test_while_one_gpu_is_lost_the_others_spin_at_little_power() -> None:
    world = World("gpu_lost", onset=0.0)
    world.clock.advance(120.0)
    assert world.devices[0].utilization().gpu == 1.0
    assert watts(world.devices[0]) < 0.5 * POWER_LIMIT_WATTS


@pytest.mark.parametrize(("name", "busy"), [("stalled", 0.0), ("hang_spin", 1.0)])
def test_a_job_that_stands_still_idles_or_spins(name: str, busy: float) -> None:
    world = World(name, onset=20.0)
    world.clock.advance(200.0)
    for device in world.devices:
        assert device.utilization().gpu == busy
        assert watts(device) < 0.5 * POWER_LIMIT_WATTS
        assert memory(device, "used") > 0.5 * memory(device, "total")
    assert world.steps[-1].end < 23.0


def test_an_underused_gpu_is_low_in_every_sample() -> None:
    world = World("underused")
    world.clock.advance(60.0)
    values = [sample.value for sample in world.devices[0].utilization_samples("gpu", 0)]
    assert max(values) < 0.65
    assert 0.2 < sum(values) / len(values) < 0.45


def test_fans_are_unsupported_on_a_module_without_them() -> None:
    with pytest.raises(Unsupported):
        World("healthy").devices[0].read("fans")


def test_processes_hold_the_memory_in_use_under_a_pid_that_no_kernel_hands_out() -> None:
    device = World("healthy").devices[0]
    (process,) = device.processes()
    assert process.memory == memory(device, "used")
    assert process.pid > 2**22
    assert process.kind == "compute"


def test_a_closed_driver_is_unavailable() -> None:
    world = World("healthy")
    world.driver.close()
    with pytest.raises(DriverUnavailable, match="open"):
        world.driver.devices()
    with pytest.raises(DriverUnavailable):
        watts(world.devices[0])


def test_connections_live_apart() -> None:
    world = World("healthy")
    other = SimulatedDriver(world.node)
    other.open()
    other.close()
    assert watts(world.devices[0]) > 0


def test_a_hanging_gpu_blocks_only_its_caller_until_released() -> None:
    world = World("healthy")
    world.node.answering[4].clear()
    answers: list[float] = []
    caller = threading.Thread(target=lambda: answers.append(watts(world.devices[4])))
    caller.start()
    assert watts(world.devices[3]) > 0
    assert not answers
    world.node.answering[4].set()
    caller.join(timeout=60)
    assert len(answers) == 1


def phase_seconds(world: World, gpu: int, until: float, *phases: str) -> float:
    return sum(
        seconds for step in world.steps if step.end <= until for phase, seconds in step.ranks[gpu] if phase in phases
    )


def test_bytes_from_the_host_follow_the_copies() -> None:
    world = World("healthy")
    world.clock.advance(600.0)
    received = number(world.devices[2], "counters", "pcie_receive_bytes_total")
    assert received is not None
    copied = phase_seconds(world, 2, 600.0, "host_copy")
    assert received == pytest.approx(copied * EFFECTS["host_copy"].pcie_received, rel=0.01)


def test_bytes_between_gpus_follow_the_collective_and_not_the_wait_for_slower_ranks() -> None:
    world = World("thermal_throttle", onset=0.0)
    world.clock.advance(1200.0)
    moved = [number(device, "counters", "nvlink_receive_bytes_total") for device in world.devices]
    waits = [phase_seconds(world, gpu, 1200.0, "communication") for gpu in range(8)]
    assert max(waits) > 1.5 * min(waits)
    assert all(each == pytest.approx(moved[0], rel=0.01) for each in moved)


def test_counters_only_grow_and_count_what_throughput_measures() -> None:
    world = World("healthy", gpus=1)
    device, tick = world.devices[0], 0.02
    world.clock.advance(10.0)
    before, measured = number(device, "counters", "pcie_receive_bytes_total"), 0.0
    joules = energy(device)
    for _ in range(500):
        world.clock.advance(tick)
        measured += device.pcie_throughput()[0] * tick
    after = number(device, "counters", "pcie_receive_bytes_total")
    assert after - before == pytest.approx(measured, rel=1e-6)
    assert energy(device) > joules


def test_activity_is_the_mean_since_the_last_query() -> None:
    world = World("healthy")
    device = world.devices[0]
    first = device.activity()
    assert first is not None
    assert first == (0.0, None, None, None, None, {}, {}, None, None, None, None)
    world.clock.advance(25.0)
    mean = device.activity()
    assert mean is not None
    assert mean.sm is not None
    assert mean.graphics is not None
    assert mean.seconds == 25.0
    assert mean.graphics > 0.9
    total = sum(seconds * EFFECTS[phase].sm for step in world.steps for phase, seconds in step.ranks[0]) / (
        world.steps[-1].end
    )
    assert mean.sm == pytest.approx(total, abs=0.03)


@pytest.mark.parametrize("name", ["healthy", "underused", "hang_spin", "stalled", "input_cpu_saturated"])
def test_no_unit_is_active_for_longer_than_the_gpu_has_work(name: str) -> None:
    world = World(name, onset=5.0) if name not in ("healthy", "underused") else World(name)
    device = world.devices[0]
    device.activity()
    world.clock.advance(60.0)
    mean = device.activity()
    assert mean is not None
    assert mean.graphics is not None
    assert mean.sm is not None
    assert mean.occupancy is not None
    assert 0 <= mean.occupancy <= mean.sm <= mean.graphics <= 1
    assert all(0 <= pipe <= mean.sm for pipe in mean.pipes.values())


def test_a_job_that_spins_keeps_its_gpu_busy_and_its_tensor_pipes_idle() -> None:
    world = World("hang_spin", onset=0.0)
    world.clock.advance(60.0)
    device = world.devices[0]
    device.activity()
    world.clock.advance(10.0)
    mean = device.activity()
    assert mean is not None
    assert mean.sm is not None
    assert mean.graphics == pytest.approx(1.0)
    assert mean.sm < 0.3
    assert mean.pipes["tensor"] == 0.0


def test_a_simulated_gpu_is_in_good_health_with_all_links_up() -> None:
    health = World("healthy").devices[0].read("health")
    assert health["nvlink_links"] == health["nvlink_links_active"] == 18
    assert health["row_remap_pending"] == 0
    assert health["ecc_errors_total"] == {"corrected": 0, "uncorrected": 0}


def test_the_process_did_all_that_its_gpu_did() -> None:
    world = World("underused")
    world.clock.advance(10.0)
    device = world.devices[0]
    busy = [(sample.timestamp_us, sample.value) for sample in device.utilization_samples("gpu", 0) if sample.value]
    used = [(sample.timestamp_us, sample.gpu) for sample in device.process_utilization(0) if sample.gpu]
    assert used == busy
    assert device.process_utilization(used[-1][0]) == []


def test_an_idle_process_has_no_samples() -> None:
    world = World("stalled", onset=0.0)
    world.clock.advance(60.0)
    newest = world.devices[0].utilization_samples("gpu", 0)[0].timestamp_us
    assert world.devices[0].process_utilization(newest) == []


def test_engines_are_idle_and_an_encoder_is_lacking() -> None:
    world = World("healthy")
    world.clock.advance(10.0)
    assert {sample.value for sample in world.devices[0].utilization_samples("decoder", 0)} == {0.0}
    with pytest.raises(Unsupported, match="encoder"):
        world.devices[0].utilization_samples("encoder", 0)


def test_a_gpu_that_falls_off_the_bus_is_one_event() -> None:
    world = World("gpu_lost", onset=10.0)
    listener = world.driver.listen(world.devices)
    assert listener.wait(1.0) == []
    world.clock.advance(11.0)
    (event,) = listener.wait(1.0)
    assert (event.device, event.xid) == (world.devices[5], 79)
    assert listener.wait(1.0) == []
    listener.close()


def test_a_listener_receives_only_later_events_of_its_own_gpus() -> None:
    world = World("gpu_lost", onset=10.0)
    elsewhere = world.driver.listen(world.devices[:5])
    world.clock.advance(11.0)
    late = world.driver.listen(world.devices)
    assert elsewhere.wait(1.0) == late.wait(1.0) == []


def test_a_healthy_node_has_no_events() -> None:
    world = World("healthy")
    listener = world.driver.listen(world.devices)
    world.clock.advance(3600.0)
    assert listener.wait(1.0) == []


def test_queries_are_counted_and_every_signal_queried_is_served() -> None:
    world = World("healthy")
    device = world.devices[0]
    assert device.calls == 0
    assert device.served == {}
    for call in CALLS:
        with contextlib.suppress(Unsupported):
            call(device)
    assert device.calls == len(CALLS)
    assert set(device.served) <= {family.signal for family in GPU_FAMILIES}
    assert device.rejected == {}


def test_the_same_gpu_is_the_same_object_until_the_driver_is_opened_again() -> None:
    world = World("healthy")
    assert list(world.driver.devices()) == world.devices
    world.driver.close()
    world.driver.open()
    assert world.driver.devices()[0] is not world.devices[0]
