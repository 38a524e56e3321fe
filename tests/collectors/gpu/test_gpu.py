"""One GPU's answers, and what becomes of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.model.catalogue.metrics import family
from stallscope.node.drivers.device import (
    Activity,
    DeviceLost,
    DriverError,
    DriverUnavailable,
    GpuProcess,
    ProcessUtilization,
    SystemInfo,
    TimedSample,
    Unsupported,
    Utilization,
)
from tests.collectors.gpu.readings import Readings
from tests.collectors.gpu.scripted_driver import ScriptedDevice, counters, memory


def growing(per_second: float, first: float = 0.0) -> Any:
    """Return a query whose result grows by `per_second` at each call."""
    count = iter(range(1_000_000))
    return lambda: first + per_second * next(count)


def counters_of(**answers: Any) -> Any:
    """Counters whose fields are functions or values."""
    return lambda: counters(**{name: each() if callable(each) else each for name, each in answers.items()})


def test_energy_is_the_drivers_counter_where_it_counts() -> None:
    readings = Readings(ScriptedDevice(power=500.0, counters=counters_of(energy=growing(600, 1000))))
    assert readings.after(1)["energy_joules_total",] == 1000
    assert readings.after(10)["energy_joules_total",] == 7000


def test_energy_is_integrated_power_where_nothing_counts() -> None:
    readings = Readings(ScriptedDevice(power=500.0, counters=counters()))
    readings.after(1)
    assert readings.after(10)["energy_joules_total",] == pytest.approx(5000)
    assert readings.gpu.served["energy_joules_total"] == "integrated power"


def test_counters_that_fail_once_are_absent_once_and_never_replaced_by_integrals() -> None:
    device = ScriptedDevice(power=500.0, throttle_reasons=frozenset({"power_cap"}))
    good = counters_of(energy=growing(600, 1000), throttled={"power_cap": 3.0})
    device.answers["counters"] = good
    readings = Readings(device)
    assert readings.after(2)["throttled_seconds_total", "power_cap"] == 3.0
    device.answers["counters"] = DriverError("driver_error", "not now")
    page = readings.after(1)
    assert ("energy_joules_total",) not in page
    assert ("throttled_seconds_total", "power_cap") not in page
    assert ("power_watts",) in page
    assert page["signal_supported", "energy_joules_total"] == 1
    device.answers["counters"] = good
    assert readings.after(1)["energy_joules_total",] == 2200


def test_a_counter_that_is_missing_once_is_absent_once_and_never_replaced_by_integrals() -> None:
    reported = iter([counters(energy=1000.0, throttled={"power_cap": 3.0}), counters(temperature={"memory": 40.0})])
    device = ScriptedDevice(power=500.0, throttle_reasons=frozenset({"power_cap"}), counters=lambda: next(reported))
    readings = Readings(device)
    assert readings.after(1)["energy_joules_total",] == 1000
    page = readings.after(1)
    assert ("energy_joules_total",) not in page
    assert ("throttled_seconds_total", "power_cap") not in page
    assert ("power_watts",) in page


def test_a_counter_that_goes_back_adds_nothing_and_is_counted() -> None:
    reported = iter([1000.0, 1600.0, 3.0, 2200.0])
    readings = Readings(ScriptedDevice(power=500.0, counters=lambda: counters(energy=next(reported))))
    values = [readings.after(1)["energy_joules_total",] for _ in range(4)]
    assert values == sorted(values)
    assert values[-1] - values[0] <= 1200
    assert readings.gpu.rejected == {"backwards": 1}


def test_a_new_session_forgets_what_was_lacking_and_keeps_what_was_integrated() -> None:
    device = ScriptedDevice(power=500.0)
    readings = Readings(device)
    before = readings.after(5)
    assert ("memory_used_bytes",) not in before
    device.answers["memory"] = memory(100, 40)
    assert ("memory_used_bytes",) not in readings.after(5)
    readings.gpu.meet(device.identity(), SystemInfo("600.1", "13.2"), device)
    after = readings.after(1)
    assert after["memory_used_bytes",] == 40
    assert after["energy_joules_total",] >= before["energy_joules_total",]


def test_throttling_is_timed_by_bits_only_for_reasons_without_a_counter() -> None:
    readings = Readings(
        ScriptedDevice(
            counters=counters(throttled={"power_cap": 7.0}), throttle_reasons=frozenset({"power_cap", "hw_slowdown"})
        )
    )
    readings.after(1)
    page = readings.after(10)
    assert page["throttled_seconds_total", "power_cap"] == 7.0
    assert page["throttled_seconds_total", "hw_slowdown"] == pytest.approx(10)
    assert page["throttled_seconds_total", "sync_boost"] == 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.sampled_from(["ok", "no counters", "part", "reset", "reopened", "no reasons", "all fail", "late"]),
        max_size=40,
    )
)
def test_throttled_seconds_never_exceed_the_time_that_passed_whatever_fails(events: list[str]) -> None:
    device = ScriptedDevice(throttle_reasons=frozenset({"power_cap", "hw_slowdown"}))
    readings = Readings(device)
    reported = 7.0
    first: dict[tuple[str, ...], tuple[float, float]] = {}
    for event in events:
        reported = 0.5 if event == "reset" else reported + 1.0
        if event in {"reset", "reopened"}:
            readings.reopen()
        failed = DriverError("driver_error", "not now")
        throttled = {} if event == "part" else {"power_cap": reported + 0.9 * (event == "late")}
        device.answers["counters"] = (
            failed if event in {"no counters", "all fail"} else counters_of(throttled=throttled)
        )
        device.answers["throttle_reasons"] = (
            failed if event in {"no reasons", "all fail"} else frozenset({"power_cap", "hw_slowdown"})
        )
        with contextlib.suppress(DriverError):
            page = readings.after(1)
            now = readings.clock.monotonic()
            for key, value in page.items():
                if key[0] == "throttled_seconds_total":
                    began, base = first.setdefault(key, (now, value))
                    assert value - base <= now - began + 1e-6, (events, key)


def activity(**values: Any) -> Iterator[Activity | None]:
    yield Activity(0.0)
    while True:
        yield Activity(1.0, **values)


def test_activity_is_integrated_over_the_time_that_it_covers() -> None:
    answers = activity(sm=0.5, dram=0.25, pipes={"tensor": 0.1}, engines={"decoder": 0.2})
    readings = Readings(ScriptedDevice(activity=lambda: next(answers)))
    first = readings.after(1)
    assert ("sm_active_seconds_total",) not in first
    assert ("signal_supported", "sm_active_seconds_total") not in first, "not known before there is a difference"
    page = readings.after(10)
    assert page["sm_active_seconds_total",] == pytest.approx(5)
    assert page["dram_active_seconds_total",] == pytest.approx(2.5)
    assert page["pipe_active_seconds_total", "tensor"] == pytest.approx(1)
    assert page["engine_busy_seconds_total", "decoder"] == pytest.approx(2)
    assert ("sm_occupancy_seconds_total",) not in page
    assert page["signal_supported", "sm_occupancy_seconds_total"] == 0


def test_a_turn_that_was_in_the_way_loses_no_activity() -> None:
    answers = iter([Activity(0.0), Activity(1.0, sm=0.5), None, None, Activity(3.0, sm=0.5)])
    readings = Readings(ScriptedDevice(activity=lambda: next(answers)))
    assert readings.after(5)["sm_active_seconds_total",] == pytest.approx(2.0)


def test_activity_that_waits_long_for_its_gpus_turn_is_absent_until_the_next_value() -> None:
    answers = iter([Activity(0.0), Activity(1.0, sm=0.5, graphics=0.5), *[None] * 8, Activity(9.0, sm=0.5)])
    readings = Readings(ScriptedDevice(activity=lambda: next(answers), power=1.0))
    page = readings.after(4)
    assert {("sm_active_seconds_total",), ("busy_seconds_total",)} <= page.keys()
    page = readings.after(6)
    assert not {("sm_active_seconds_total",), ("busy_seconds_total",)} & page.keys(), "a standing counter looks idle"
    assert page["signal_supported", "sm_active_seconds_total"] == 1
    assert readings.after()["sm_active_seconds_total",] == pytest.approx(5.0)


def test_pcie_bytes_come_from_the_counters_before_activity_and_activity_before_throughput() -> None:
    moved = {"pcie_received": 100.0, "pcie_transmitted": 10.0}
    slow: dict[str, Any] = {"pcie_throughput": (7.0, 7.0)}
    counted = activity(**moved)
    both = Readings(
        ScriptedDevice(
            activity=lambda: next(counted),
            counters=counters(pcie_received=1 << 40, pcie_transmitted=1 << 40),
            **slow,
        ),
        pcie_throughput=True,
    )
    assert both.after(30)["pcie_receive_bytes_total",] == 1 << 40
    only = activity(**moved)
    active = Readings(ScriptedDevice(activity=lambda: next(only), **slow), pcie_throughput=True)
    assert active.after(31)["pcie_receive_bytes_total",] == pytest.approx(3000)
    assert "pcie_throughput" not in active.device.queried[40:]
    measured = Readings(ScriptedDevice(**slow), pcie_throughput=True)
    assert measured.after(31)["pcie_receive_bytes_total",] == pytest.approx(7 * 30)


def test_the_slow_throughput_is_read_only_on_request() -> None:
    readings = Readings(ScriptedDevice(pcie_throughput=(7.0, 7.0), power=1.0, counters=counters()))
    page = readings.after(60)
    assert "pcie_throughput" not in readings.device.queried
    assert page["signal_supported", "pcie_receive_bytes_total"] == 0


def test_where_utilisation_is_unsupported_the_share_of_time_with_work_stands_for_it() -> None:
    answers = activity(graphics=0.75)
    readings = Readings(ScriptedDevice(activity=lambda: next(answers)))
    readings.after(1)
    page = readings.after(20)
    assert page["busy_seconds_total",] == pytest.approx(15)
    assert page["utilization_ratio",] == pytest.approx(0.75)
    assert page["signal_supported", "busy_seconds_total"] == 1
    assert page["signal_supported", "memory_busy_seconds_total"] == 0
    assert "GPM" in readings.gpu.served["busy_seconds_total"]


def test_a_gpu_without_any_measure_of_its_work_reports_it_as_unsupported() -> None:
    page = Readings(ScriptedDevice(power=1.0)).after(2)
    assert page["signal_supported", "busy_seconds_total"] == 0
    assert ("busy_seconds_total",) not in page


def test_engines_that_activity_leaves_out_are_read_from_their_buffers() -> None:
    answers = activity(engines={"decoder": 0.5})
    device = ScriptedDevice(activity=lambda: next(answers))
    readings = Readings(device)

    def buffered(newer: int) -> list[TimedSample]:
        now = round(readings.clock.monotonic() * 1e6)
        return [TimedSample(at, 0.4) for at in range(now - 15_000_000, now + 1, 200_000) if at > max(newer, 0)]

    device.answers["encoder samples"] = buffered
    page = readings.after(60)
    assert page["engine_busy_seconds_total", "decoder"] == pytest.approx(29.5)
    assert page["engine_busy_seconds_total", "encoder"] == pytest.approx(0.4 * 55, rel=0.1)
    assert "decoder samples" not in device.queried


def test_processes_are_credited_with_the_time_that_they_kept_the_gpu_busy() -> None:
    def utilization(newer: int) -> list[ProcessUtilization]:
        now = newer + 5_000_000 if newer else 1_000_000
        return [ProcessUtilization(11, now, 0.6, 0.1), ProcessUtilization(12, now, 0.2, 0.1)]

    device = ScriptedDevice(
        memory=memory(100, 40), process_utilization=utilization, processes=[GpuProcess(11, 30), GpuProcess(12, 5)]
    )
    readings = Readings(device)
    readings.after(21)
    occupancy = readings.gpu.occupancy
    assert occupancy.busy == {11: pytest.approx(0.6 * 20), 12: pytest.approx(0.2 * 20)}
    assert occupancy.memory_used == 40
    assert [process.pid for process in occupancy.processes] == [11, 12]


@pytest.mark.parametrize(("refused", "at_most"), [(False, 5), (True, 12)])
def test_a_process_that_was_silent_for_long_is_credited_with_no_more_than_a_sample_can_speak_for(
    refused: bool, at_most: int
) -> None:
    """Since the last reading, which showed that it was idle; where readings failed, as long as a sample can cover."""
    reported = iter([1_000_000, 61_000_000])
    device = ScriptedDevice(
        power=1.0, process_utilization=lambda _: [ProcessUtilization(11, next(reported, 0), 0.5, 0.1)]
    )
    readings = Readings(device)
    readings.after(1)
    device.answers["process_utilization"], later = (
        DriverError("driver_error", "no answer") if refused else [],
        device.answers["process_utilization"],
    )
    readings.after(59)
    device.answers["process_utilization"] = later
    readings.after(5)
    assert readings.gpu.occupancy.busy[11] == pytest.approx(0.5 * at_most)


def test_no_time_of_a_process_is_credited_twice_when_the_driver_is_opened_again() -> None:
    def utilization(newer: int) -> list[ProcessUtilization]:
        now = round((1000 + readings.clock.monotonic()) * 1e6)
        return [
            ProcessUtilization(11, at, 1.0, 0.1) for at in range(now - 15_000_000, now + 1, 1_000_000) if at > newer
        ]

    readings = Readings(ScriptedDevice(process_utilization=utilization, processes=[GpuProcess(11, 30)]))
    readings.after(61)
    before = readings.gpu.occupancy.busy[11]
    readings.reopen()
    readings.after(60)
    assert readings.gpu.occupancy.busy[11] - before == pytest.approx(60, abs=5)


def test_a_process_sample_from_the_future_neither_counts_nor_silences_those_that_follow() -> None:
    def utilization(newer: int) -> list[ProcessUtilization]:
        now = round(readings.clock.monotonic() * 1e6) + 1
        ahead = [now + 3_000_000_000] if newer else []
        return [ProcessUtilization(11, at, 0.5, 0.1) for at in (now, *ahead) if at > newer]

    device = ScriptedDevice(process_utilization=utilization)
    readings = Readings(device)
    readings.after(21)
    assert readings.gpu.occupancy.busy[11] == pytest.approx(0.5 * 20)


def test_calls_and_rejections_stay_counted_over_sessions() -> None:
    reported = iter([1000.0, 1600.0, 3.0])
    first = ScriptedDevice(counters=lambda: counters(energy=next(reported)))
    first.rejections["sentinel"] = 2
    readings = Readings(first)
    readings.after(3)
    calls = readings.gpu.calls
    again = ScriptedDevice(power=1.0)
    again.rejections["sentinel"] = 1
    readings.gpu.meet(again.identity(), SystemInfo("600.1", "13.2"), again)
    assert readings.gpu.calls == calls
    assert readings.gpu.rejected == {"backwards": 1, "sentinel": 3}


def test_mps_clients_count_as_compute_and_show_how_the_gpu_is_shared() -> None:
    readings = Readings(ScriptedDevice(processes=[GpuProcess(1, 1, "mps"), GpuProcess(2, 1, "graphics")]))
    page = readings.after(1)
    assert (page["processes", "compute"], page["processes", "graphics"]) == (1, 1)
    assert readings.gpu.sharing() == "mps"


def test_sharing_is_mig_first_and_then_as_the_orchestrator_reports() -> None:
    device = ScriptedDevice(power=1.0, instances=None)
    readings = Readings(device)
    readings.after(1)
    assert readings.gpu.sharing() == "exclusive"
    readings.environment.occupancies.set_sharing({"GPU-0": "time_sliced"})
    assert readings.gpu.info().labels[-1] == "time_sliced"
    device.answers["instances"] = []
    readings.after(11)
    assert readings.gpu.sharing() == "mig"


def test_what_a_gpu_has_is_known_at_once_after_it_was_cut_up() -> None:
    device = ScriptedDevice(power=1.0, bar1={"bar1_total_bytes": 2, "bar1_used_bytes": 1}, instances=None)
    readings = Readings(device)
    readings.after(1)
    device.answers["instances"] = []
    page = readings.after(12)
    assert readings.gpu.sharing() == "mig"
    assert page["signal_supported", "bar1_total_bytes"] == 1


def test_no_reading_mixes_values_from_before_and_after_a_gpu_was_split() -> None:
    device = ScriptedDevice(power=1.0, counters=counters(pcie_received=1 << 40), utilization=Utilization(0.5, 0.1))
    device.answers["instances"] = None
    readings = Readings(device)
    readings.after(9)
    device.answers |= {"instances": [], "utilization": Unsupported("not on a GPU that is cut up")}
    for page in (readings.after(1) for _ in range(5)):
        assert page["signal_supported", "pcie_receive_bytes_total"] == 1
        reported = ("busy_seconds_total",) in page
        assert page["signal_supported", "busy_seconds_total"] == int(reported)
    assert not reported


def test_time_that_activity_spoke_for_while_a_gpu_was_cut_up_is_not_credited_again_to_samples() -> None:
    answers = activity(graphics=1.0)
    device = ScriptedDevice(activity=lambda: next(answers), instances=None)
    readings = Readings(device)

    def buffered(newer: int) -> list[TimedSample]:
        now = round(readings.clock.monotonic() * 1e6)
        return [TimedSample(at, 1.0) for at in range(now - 15_000_000, now + 1, 200_000) if at > max(newer, 0)]

    device.answers["gpu samples"] = buffered
    before = readings.after(10)["busy_seconds_total",]
    whole = device.answers.pop("gpu samples")
    device.answers["instances"] = []
    readings.after(12)
    device.answers |= {"gpu samples": whole, "instances": None}
    after = readings.after(20)["busy_seconds_total",]
    assert 30 <= after - before <= 32.5


def test_a_mig_instance_carries_its_profile_on_every_series_and_no_peak() -> None:
    device = ScriptedDevice(memory=memory(100, 40))
    device.mig, device.uuid = "1g.10gb", "MIG-1"
    readings = Readings(device)
    readings.after(1)
    samples = list(readings.gpu.read())
    assert {sample.labels[-1] for sample in samples} == {"1g.10gb"}
    assert not [sample for sample in samples if sample.family is family("stallscope_gpu_peak_flops")]


def test_persistence_mode_that_is_off_is_said_once_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    readings = Readings(ScriptedDevice(persistence_mode=0))
    with caplog.at_level(logging.WARNING):
        page = readings.after(200)
    assert page["persistence_mode",] == 0
    (said,) = [record.getMessage() for record in caplog.records if "persistence" in record.getMessage()]
    assert "nvidia-smi -pm 1" in said


def test_persistence_mode_is_said_again_only_where_it_was_on_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    device = ScriptedDevice(persistence_mode=0)
    readings = Readings(device)
    readings.after(2)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        readings.gpu.meet(device.identity(), SystemInfo("590.48.01", "13.1"), device)
        readings.after(2)
        assert not caplog.records, "a new session with the driver is no news"
        device.answers["persistence_mode"] = 1
        readings.after(61)
        device.answers["persistence_mode"] = 0
        readings.after(61)
    assert len(caplog.records) == 1


def test_missing_health_is_absent_and_flags_are_numbers() -> None:
    health = {
        "ecc_errors_total": {"corrected": 2},
        "row_remap_pending": 1,
        "nvlink_links": 18,
        "nvlink_links_active": 17,
    }
    page = Readings(ScriptedDevice(health=health)).after(1)
    assert page["ecc_errors_total", "corrected"] == 2
    assert ("ecc_errors_total", "uncorrected") not in page
    assert page["row_remap_pending",] == 1
    assert ("row_remap_failed",) not in page
    assert (page["nvlink_links",], page["nvlink_links_active",]) == (18, 17)
    assert page["signal_supported", "retired_pages"] == 0


def test_slow_questions_keep_their_own_cadence() -> None:
    device = ScriptedDevice(power=1.0, temperature={"gpu": 40.0}, processes=[], bar1=Unsupported("no"), fans={"0": 0.5})
    readings = Readings(device)
    readings.after(60)
    queried = {name: device.queried.count(name) for name in ("power", "temperature", "processes", "fans")}
    assert queried == {"power": 60, "temperature": 30, "processes": 6, "fans": 6}


def test_a_lost_gpu_ends_the_reading_and_a_failing_call_only_its_own_series() -> None:
    device = ScriptedDevice(power=1.0, memory=memory(10, 1), utilization=Utilization(0.5, 0.1))
    readings = Readings(device)
    readings.after(1)
    device.answers["memory"] = DriverError("driver_error", "Unknown Error")
    page = readings.after(1)
    assert ("memory_used_bytes",) not in page
    assert ("power_watts",) in page
    device.answers["memory"] = DeviceLost("gpu_lost", "GPU is lost")
    with pytest.raises(DeviceLost):
        readings.after(1)


def test_a_gpu_that_lacks_all_at_once_has_lost_its_session_and_one_that_lacks_some_has_not() -> None:
    device = ScriptedDevice(power=500.0, temperature={"gpu": 40.0})
    readings = Readings(device)
    readings.after(3)
    del device.answers["temperature"]
    assert ("power_watts",) in readings.after(3)
    device.answers.clear()
    with pytest.raises(DriverUnavailable, match="refuses all queries"):
        readings.after(3)


def test_a_gpu_that_never_had_anything_is_no_failure() -> None:
    assert Readings(ScriptedDevice()).after(5)
