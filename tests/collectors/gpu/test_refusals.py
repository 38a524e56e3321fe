"""A driver that refuses for a while what it answered before: nothing disappears for good, nothing jumps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from stallscope.node.drivers.device import (
    Activity,
    DriverError,
    Identity,
    ProcessUtilization,
    Unsupported,
    Utilization,
)
from tests.collectors.gpu.readings import Readings
from tests.collectors.gpu.scripted_driver import ScriptedDevice, counters, memory

REFUSED = Unsupported("nvmlDeviceGetFoo: Not Supported")


@contextmanager
def refusing(device: ScriptedDevice, *names: str) -> Iterator[None]:
    """Let the device refuse these queries in the block."""
    before = {name: device.answers[name] for name in names}
    device.answers.update(dict.fromkeys(names, REFUSED))
    yield
    device.answers.update(before)


def counting(readings: Readings, watts: float = 400.0, joules: float = 1e9) -> Any:
    """Counters of a GPU that uses so much power and is held by its power cap half of the time."""
    return lambda: counters(
        energy=joules + watts * readings.clock.monotonic(),
        throttled={"power_cap": 5000.0 + readings.clock.monotonic() / 2},
        nvlink_received=10**15 + 10**9 * int(readings.clock.monotonic()),
    )


def machine() -> Readings:
    """A GPU with memory, power, counters and errors."""
    device = ScriptedDevice(
        power=400.0,
        memory=memory(1 << 37, 1 << 30),
        throttle_reasons=frozenset({"hw_slowdown"}),
        utilization=Utilization(0.5, 0.1),
        health={"ecc_errors_total": {"corrected": 7}},
    )
    readings = Readings(device)
    device.answers["counters"] = counting(readings)
    return readings


def test_what_is_refused_for_a_moment_returns_within_seconds() -> None:
    readings = machine()
    before = readings.after(30)
    with refusing(readings.device, "memory", "counters", "throttle_reasons", "health"):
        during = readings.after(3)
    assert ("memory_used_bytes",) not in during
    assert ("nvlink_receive_bytes_total",) not in readings.after(1), "a counter that stands still looks idle"
    after = readings.after(3)
    assert before.keys() <= after.keys()


def test_what_is_refused_for_long_returns_within_minutes() -> None:
    readings = machine()
    before = readings.after(30)
    with refusing(readings.device, "memory", "counters"):
        readings.after(3600)
    after = readings.after(300)
    assert before.keys() <= after.keys()


def test_a_counter_that_returns_has_grown_by_what_happened_meanwhile_and_no_more() -> None:
    readings = machine()
    before = readings.after(30)
    with refusing(readings.device, "counters"):
        readings.after(100)
    after = readings.after(170)
    assert after["energy_joules_total",] - before["energy_joules_total",] == pytest.approx(400 * 270)
    power_cap = ("throttled_seconds_total", "power_cap")
    assert after[power_cap] - before[power_cap] == pytest.approx(135)
    received = ("nvlink_receive_bytes_total",)
    assert after[received] - before[received] == pytest.approx(270e9)


def test_energy_is_integrated_while_its_counter_is_refused_and_never_goes_back() -> None:
    readings = machine()
    readings.device.answers["power"] = 500.0  # the counter says 400
    values = [readings.after(1)["energy_joules_total",] for _ in range(30)]
    with refusing(readings.device, "counters"):
        pages = [readings.after(1) for _ in range(60)]
    missing = [page for page in pages if ("energy_joules_total",) not in page]
    assert len(missing) <= 3, "a reading or two may merely have failed"
    values += [page["energy_joules_total",] for page in pages[len(missing) :]]
    values += [readings.after(1)["energy_joules_total",] for _ in range(120)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(1e9 + 400 * 210)


def test_a_counter_that_comes_after_integrals_adds_no_lifetime_at_once() -> None:
    readings = machine()
    with refusing(readings.device, "counters"):
        before = readings.after(12)
    assert before["energy_joules_total",] < 5000
    assert before["throttled_seconds_total", "power_cap"] == 0
    after = readings.after(60)
    assert after["energy_joules_total",] - before["energy_joules_total",] <= 400 * 61
    assert after["throttled_seconds_total", "power_cap"] <= 31


def test_a_new_session_in_the_middle_of_a_refusal_makes_no_counter_jump() -> None:
    readings = machine()
    before = readings.after(30)
    with refusing(readings.device, "counters"):
        readings.reopen()
        during = readings.after(20)
    after = readings.after(60)
    for page in (during, after):
        grown = page["energy_joules_total",] - before["energy_joules_total",]
        assert 0 <= grown <= 400 * 81


def test_a_refused_query_is_repeated_ever_more_rarely() -> None:
    readings = machine()
    readings.after(5)
    queried = readings.device.queried
    queried.clear()
    with refusing(readings.device, "memory"):
        readings.after(1000)
        assert 8 <= queried.count("memory") <= 12
        assert 4 <= queried.count("bar1") <= 6, "it was never answered"
        queried.clear()
        readings.after(3000)
        assert queried.count("memory") == queried.count("bar1") == 10


def test_a_query_that_is_refused_time_and_again_is_repeated_rarely_too() -> None:
    readings = machine()
    answer = readings.device.answers["memory"]
    queries = 0

    def flapping() -> Any:
        nonlocal queries
        queries += 1
        if queries % 2:
            raise REFUSED
        return answer

    readings.device.answers["memory"] = flapping
    readings.after(3000)
    assert queries <= 50


def test_whether_a_signal_is_supported_is_true_at_each_moment() -> None:
    readings = machine()
    signals = ("memory_used_bytes", "nvlink_receive_bytes_total", "ecc_errors_total")
    page = readings.after(30)
    assert [page["signal_supported", signal] for signal in signals] == [1, 1, 1]
    with refusing(readings.device, "memory", "counters", "health"):
        page = readings.after(12)
        assert [page["signal_supported", signal] for signal in signals] == [0, 0, 0]
    page = readings.after(40)
    assert [page["signal_supported", signal] for signal in signals] == [1, 1, 1]


def test_a_part_of_an_answer_that_stays_away_is_no_longer_supported() -> None:
    readings = machine()
    readings.device.answers["memory"] = memory(1 << 37, 1 << 30, 1 << 20)
    assert readings.after(5)["signal_supported", "memory_reserved_bytes"] == 1
    readings.device.answers["memory"] = memory(1 << 37, 1 << 30)
    assert readings.after(1)["signal_supported", "memory_reserved_bytes"] == 1, "it may be implausible just once"
    assert readings.after(5)["signal_supported", "memory_reserved_bytes"] == 0
    readings.device.answers["memory"] = memory(1 << 37, 1 << 30, 1 << 20)
    assert readings.after(1)["signal_supported", "memory_reserved_bytes"] == 1


def test_the_log_says_what_stopped_and_what_returned(caplog: pytest.LogCaptureFixture) -> None:
    readings = machine()
    with caplog.at_level(logging.INFO, logger="stallscope"):
        readings.after(30)
        assert not caplog.records, "what was never answered is no news"
        with refusing(readings.device, "memory"):
            readings.after(60)
            (lost,) = caplog.records
            assert lost.levelno == logging.WARNING
            assert "memory_total_bytes, memory_used_bytes" in lost.getMessage()
            assert "nvmlDeviceGetFoo: Not Supported" in lost.getMessage()
        readings.after(100)
    assert "memory_total_bytes, memory_used_bytes" in caplog.records[1].getMessage()
    assert len(caplog.records) == 2


def test_a_query_that_fails_otherwise_is_repeated_at_once() -> None:
    readings = machine()
    readings.after(5)
    answer, readings.device.answers["memory"] = readings.device.answers["memory"], DriverError("timeout", "not now")
    assert ("memory_used_bytes",) not in readings.after(5)
    readings.device.answers["memory"] = answer
    assert ("memory_used_bytes",) in readings.after(1)


def test_activity_that_is_refused_for_a_moment_goes_on_where_it_stopped() -> None:
    readings = machine()
    answers = iter([Activity(0.0), *[Activity(1.0, sm=0.5)] * 1000])
    readings.device.answers["activity"] = lambda: next(answers)
    before = readings.after(10)["sm_active_seconds_total",]
    with refusing(readings.device, "activity"):
        assert ("sm_active_seconds_total",) not in readings.after(3)
    readings.after(9)
    assert readings.after(1)["sm_active_seconds_total",] > before


def test_a_share_that_activity_no_longer_has_is_absent_instead_of_standing_still() -> None:
    readings = machine()
    readings.device.answers["activity"] = Activity(1.0, sm=0.5, dram=0.1, pipes={"tensor": 0.2, "fp64": 0.1})
    readings.after(5)
    readings.device.answers["activity"] = Activity(1.0, sm=0.5, pipes={"tensor": 0.2}, engines={"decoder": 0.5})
    page = readings.after(1)
    assert {("sm_active_seconds_total",), ("pipe_active_seconds_total", "tensor")} <= page.keys()
    assert not {("dram_active_seconds_total",), ("pipe_active_seconds_total", "fp64")} & page.keys()
    readings.device.answers["activity"] = Activity(1.0, sm=0.5)
    assert ("engine_busy_seconds_total", "decoder") not in readings.after(6)


def test_what_a_gpu_is_becomes_known_once_the_driver_says_so() -> None:
    device = ScriptedDevice(power=1.0)
    plain = device.identity()
    readings = Readings(device)
    readings.after(5)
    assert readings.gpu.info().labels[3] == ""
    device.answers["identity"] = lambda: Identity(
        plain.index, plain.uuid, plain.model, "1652923", "00:10", "96.00", "Hopper", "9.0"
    )
    readings.after(61)
    assert readings.gpu.info().labels[3:5] == ("1652923", "00:10")
    device.answers["identity"] = REFUSED
    readings.after(61)
    assert readings.gpu.info().labels[3:5] == ("1652923", "00:10")


def test_processes_are_credited_again_after_the_drivers_clock_went_back() -> None:
    step = 0.0

    def utilization(newer: int) -> list[ProcessUtilization]:
        now = round((1e6 + readings.clock.monotonic() + step) * 1e6)
        held = range(now - 15_000_000, now + 1, 1_000_000)
        return [ProcessUtilization(11, at, 0.5, 0.1) for at in held if at > newer]

    device = ScriptedDevice(process_utilization=utilization)
    readings = Readings(device)
    readings.after(60)
    before = readings.gpu.occupancy.busy[11]
    step = -3600.0
    readings.after(120)
    assert readings.gpu.occupancy.busy[11] - before == pytest.approx(0.5 * 120, abs=12)


def test_a_new_session_is_no_news_of_what_is_supported(caplog: pytest.LogCaptureFixture) -> None:
    readings = machine()
    answers = iter([Activity(0.0), *[Activity(1.0, sm=0.5, engines={"decoder": 0.5})] * 20, Activity(0.0)])
    last = Activity(1.0, sm=0.5, engines={"decoder": 0.5})
    readings.device.answers["activity"] = lambda: next(answers, last)
    with caplog.at_level(logging.INFO, logger="stallscope"):
        readings.after(21)
        readings.reopen()
        pages = [readings.after(1) for _ in range(10)]
    assert [page["signal_supported", "engine_busy_seconds_total"] for page in pages] == [1] * 10
    assert not caplog.records


def test_measured_throughput_stands_in_for_a_refused_counter_without_a_jump() -> None:
    device = ScriptedDevice(pcie_throughput=(1e9, 1e9))
    readings = Readings(device, pcie_throughput=True)
    device.answers["counters"] = lambda: counters(pcie_received=1 << 40 | int(readings.clock.monotonic() * 1e9))
    values = [readings.after(1)["pcie_receive_bytes_total",] for _ in range(30)]
    with refusing(device, "counters"):
        pages = [readings.after(1) for _ in range(60)]
    values += [page["pcie_receive_bytes_total",] for page in pages if ("pcie_receive_bytes_total",) in page]
    assert len(values) > 70
    values += [readings.after(1)["pcie_receive_bytes_total",] for _ in range(120)]
    assert values == sorted(values)
    assert values[-1] - values[0] == pytest.approx(209e9)


def test_measured_throughput_gives_way_to_activity_and_leaves_no_second_series() -> None:
    answers = iter([Activity(0.0), *[Activity(1.0, pcie_received=5.0, pcie_transmitted=5.0)] * 50])
    device = ScriptedDevice(pcie_throughput=(1e9, 1e9), activity=lambda: next(answers))
    readings = Readings(device, pcie_throughput=True)
    readings.after(20)
    readings.clock.advance(1.0)
    found = [sample for sample in readings.gpu.read() if sample.family.signal == "pcie_receive_bytes_total"]
    assert len(found) == 1


@pytest.mark.parametrize("seed", range(12))
def test_counters_stay_true_whatever_is_refused_or_fails_for_however_long(seed: int) -> None:
    random = Random(seed)
    readings = machine()
    device = readings.device
    sound = dict(device.answers)
    before = page = readings.after(30)
    began = readings.clock.monotonic()
    for _ in range(40):
        broken = random.sample(sorted(sound), random.randint(1, len(sound) - 1))
        faults = [REFUSED, DriverError("timeout", "not now")]
        device.answers.update({name: random.choice(faults) for name in broken})
        if random.random() < 0.2:
            readings.reopen()
        for _ in range(random.choice([1, 3, 10, 60])):
            try:
                newer = readings.after(1)
            except DriverError:
                continue
            falling = [key for key in newer if key[0].endswith("_total") and newer[key] < page.get(key, 0.0)]
            assert not falling
            page = {**page, **newer}
        device.answers.update(sound)
        page = {**page, **readings.after(random.choice([1, 20]))}
    after = readings.after(320)
    assert before.keys() <= after.keys()
    elapsed = readings.clock.monotonic() - began
    energy, throttled = ("energy_joules_total",), ("throttled_seconds_total", "power_cap")
    assert after[energy] - before[energy] == pytest.approx(400 * elapsed, rel=0.02)
    assert after[throttled] - before[throttled] == pytest.approx(elapsed / 2, rel=0.02)
    received = ("nvlink_receive_bytes_total",)
    assert after[received] - before[received] == pytest.approx(1e9 * elapsed, rel=0.02)
