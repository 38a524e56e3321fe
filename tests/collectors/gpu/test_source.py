"""The life of a source of GPUs: sessions, losses, instances, events, release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.gpu.source import GpuCollector
from stallscope.node.drivers.device import (
    Device,
    DeviceLost,
    Driver,
    DriverError,
    DriverUnavailable,
    Event,
    Listener,
)
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from tests.collectors.gpu.scripted_driver import ScriptedDevice, ScriptedDriver


class ScriptedSource(GpuCollector):
    name: ClassVar[str] = "scripted"
    summary: ClassVar[str] = "GPUs of a test."
    kernel: frozenset[str] = frozenset()

    def make_driver(self, environment: Environment) -> Driver:
        assert environment.driver is not None
        return environment.driver()

    def hardware(self) -> frozenset[str]:
        return self.kernel


class Node:
    """A source and a sampler on a scripted clock, a round a second."""

    def __init__(self, *devices: ScriptedDevice) -> None:
        self.driver = ScriptedDriver(*devices)
        self.clock = ScriptedClock()
        self.environment = Environment(clock=self.clock, driver=lambda: self.driver)
        self.source = ScriptedSource(self.environment)
        self.sampler = Sampler(clock=self.clock)
        self.sampler.add(self.source)

    def after(self, seconds: int = 1) -> dict[str, float]:
        """The page after so many rounds: `name{labels}` to value, without `stallscope_` and with UUIDs alone."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.sampler.run_round()
        lines = self.sampler.page(openmetrics=False, gzip=False).decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def holds_the_driver(self) -> bool:
        return self.driver.is_open


def up(page: dict[str, float], uuid: str = "GPU-0") -> float | None:
    found = [value for name, value in page.items() if name.startswith("stallscope_gpu_up{") and f'"{uuid}"' in name]
    return found[0] if found else None


def reason(page: dict[str, float], uuid: str = "GPU-0") -> str | None:
    found = [name for name in page if name.startswith("stallscope_gpu_lost_info{") and f'"{uuid}"' in name]
    assert len(found) <= 1
    return found[0].split('reason="')[1].split('"')[0] if found else None


def source_up(page: dict[str, float]) -> float | None:
    return page.get('stallscope_exporter_source_up{source="scripted"}')


def instance(parent: ScriptedDevice, number: int, profile: str = "1g.10gb") -> ScriptedDevice:
    made = ScriptedDevice(parent.index, temperature={"gpu": 1.0})
    made.uuid, made.mig, made.parent_uuid = f"MIG-{number}", profile, parent.uuid
    return made


def test_a_released_driver_marks_its_gpus_and_is_reopened_by_itself() -> None:
    node = Node(ScriptedDevice(power=1.0))
    assert up(node.after()) == 1
    node.sampler.release(60)
    page = node.after(2)
    assert not node.holds_the_driver()
    assert (up(page), reason(page)) == (0, "released")
    assert source_up(page) is None, "a requested release is no failure"
    assert not [name for name in page if "power_watts" in name]
    page = node.after(61)
    assert node.holds_the_driver()
    assert (up(page), reason(page)) == (1, None)


def test_a_released_driver_is_reopened_at_once_on_request() -> None:
    node = Node(ScriptedDevice(power=1.0))
    node.after()
    node.sampler.release(600)
    node.after(2)
    node.sampler.release(0)
    assert up(node.after(2)) == 1


def test_a_gpu_that_came_to_the_kernel_opens_a_new_session_and_readings_go_on() -> None:
    node = Node(ScriptedDevice(power=1.0))
    node.source.kernel = frozenset({"0000:10:00.0"})
    node.after()
    node.driver.shown.append(ScriptedDevice(1, power=1.0))
    node.source.kernel = frozenset({"0000:10:00.0", "0000:11:00.0"})
    page = node.after(12)
    assert node.driver.opened == 2
    assert (up(page, "GPU-0"), up(page, "GPU-1")) == (1, 1)


def test_a_gpu_that_stays_lost_is_looked_for_in_new_sessions_at_growing_pauses() -> None:
    device = ScriptedDevice(power=DeviceLost("gpu_lost", "GPU is lost"))
    node = Node(device, ScriptedDevice(1, power=1.0))
    node.after(50)
    assert node.driver.opened == 1
    node.after(20)
    assert node.driver.opened == 2
    node.after(600)
    assert 3 <= node.driver.opened <= 5
    page = node.after()
    assert (up(page), reason(page), up(page, "GPU-1")) == (0, "gpu_lost", 1)
    for _ in range(8):
        opened = node.driver.opened
        node.clock.advance(600)
        node.after()
    assert node.driver.opened == opened + 1, "at least every ten minutes, however long it is lost"
    device.answers["power"] = 1.0
    assert up(node.after(3)) == 1
    opened = node.driver.opened
    node.clock.advance(1200)
    node.after(2)
    assert node.driver.opened == opened, "nothing is lost any more"


def test_mig_instances_are_gpus_of_their_own_beside_the_one_they_are_cut_from() -> None:
    parent = ScriptedDevice(power=1.0)
    parent.answers["instances"] = [instance(parent, 1), instance(parent, 2, "2g.20gb")]
    page = Node(parent).after(3)
    assert page['stallscope_gpu_up{gpu="0",uuid="GPU-0"}'] == 1
    assert page['stallscope_gpu_up{gpu="0",uuid="MIG-1",mig="1g.10gb"}'] == 1
    assert page['stallscope_gpu_up{gpu="0",uuid="MIG-2",mig="2g.20gb"}'] == 1
    assert len([name for name in page if name.startswith("stallscope_gpu_info{") and 'sharing="mig"' in name]) == 3


def test_an_instance_that_was_taken_apart_is_down_for_that_reason_and_then_forgotten() -> None:
    parent = ScriptedDevice(power=1.0)
    parent.answers["instances"] = [instance(parent, 1)]
    node = Node(parent)
    node.after(3)
    parent.answers["instances"] = [instance(parent, 2)]
    page = node.after(30)
    assert (up(page, "MIG-1"), reason(page, "MIG-1")) == (0, "mig_reconfigured")
    assert up(page, "MIG-2") == 1
    page = node.after(700)
    assert up(page, "MIG-1") is None
    assert up(page, "MIG-2") == 1


def test_a_gpu_that_left_the_node_is_shown_as_gone_for_a_week_and_then_forgotten() -> None:
    device = ScriptedDevice(power=1.0)
    node = Node(device, ScriptedDevice(1, power=1.0))
    node.after(2)
    device.rejections["sentinel"] = 3
    node.driver.shown.pop(0)
    page = node.after(12)
    assert (up(page), reason(page)) == (0, "not_enumerated")
    node.clock.advance(6 * 86400)
    page = node.after(12)
    assert up(page) == 0
    calls = page['stallscope_exporter_driver_calls_total{source="scripted"}']
    node.clock.advance(86400)
    page = node.after(12)
    assert (up(page), up(page, "GPU-1")) == (None, 1)
    assert page['stallscope_exporter_driver_calls_total{source="scripted"}'] > calls, "what it cost stays counted"
    assert page['stallscope_exporter_values_rejected_total{source="scripted",reason="sentinel"}'] == 3


def test_of_ever_new_gpus_the_newest_that_are_gone_stay_shown() -> None:
    node = Node()
    for number in range(100):
        node.driver.shown = [ScriptedDevice(number, power=1.0)]
        page = node.after(11)
    assert up(page, "GPU-99") == 1
    gone = {name for name, value in page.items() if name.startswith("stallscope_gpu_up{") and value == 0}
    assert gone == {f'stallscope_gpu_up{{gpu="{number}",uuid="GPU-{number}"}}' for number in range(35, 99)}


def test_a_gpu_that_comes_back_is_not_gone_any_more() -> None:
    device = ScriptedDevice(power=1.0)
    node = Node(device, ScriptedDevice(1, power=1.0))
    node.after(2)
    shown, node.driver.shown = node.driver.shown, node.driver.shown[1:]
    node.after(12)
    node.driver.shown = shown
    assert up(node.after(12)) == 1
    node.clock.advance(8 * 86400)
    assert up(node.after(12)) == 1


def test_instances_of_a_lost_gpu_are_lost_for_its_reason() -> None:
    parent = ScriptedDevice(power=1.0)
    cut = instance(parent, 1)
    parent.answers["instances"] = [cut]
    node = Node(parent)
    node.after(3)
    for device in (parent, cut):
        device.answers = dict.fromkeys(("power", "temperature", "instances"), DeviceLost("gpu_lost", "lost"))
    node.after(3)
    node.driver.shown.clear()
    page = node.after(30)
    assert (reason(page, "GPU-0"), reason(page, "MIG-1")) == ("gpu_lost", "gpu_lost")


def test_xids_are_counted_by_code_and_stay_while_the_gpu_is_down() -> None:
    device = ScriptedDevice(power=1.0)
    node = Node(device)
    assert node.after(2)['stallscope_gpu_signal_supported{gpu="0",uuid="GPU-0",signal="xid_events_total"}'] == 1
    node.driver.listeners[-1].events += [Event(device, 79), Event(device, 31), Event(device, 79), Event(None, 13)]
    device.answers["power"] = DeviceLost("gpu_lost", "lost")
    page = node.after(2)
    assert page['stallscope_gpu_xid_events_total{gpu="0",uuid="GPU-0",xid="79"}'] == 2
    assert page['stallscope_gpu_xid_events_total{gpu="0",uuid="GPU-0",xid="31"}'] == 1
    timestamp = page['stallscope_gpu_xid_last_timestamp_seconds{gpu="0",uuid="GPU-0",xid="79"}']
    assert node.clock.time() - 2 <= timestamp <= node.clock.time()
    assert up(page) == 0


def test_failing_events_fail_the_source_until_a_new_listener_receives_them() -> None:
    device = ScriptedDevice(power=1.0)
    node = Node(device)
    node.after(2)
    listener = node.driver.listeners[-1]
    listener.failure = DriverError("driver_error", "Unknown Error")
    page = node.after()
    assert (source_up(page), up(page)) == (0, 1)
    assert listener.closed
    assert source_up(node.after()) == 1
    supported = 'stallscope_gpu_signal_supported{gpu="0",uuid="GPU-0",signal="xid_events_total"}'
    assert supported not in page, "a GPU whose events are unavailable for a moment still supports them"
    node.driver.listeners[-1].events.append(Event(device, 13))
    assert node.after()['stallscope_gpu_xid_events_total{gpu="0",uuid="GPU-0",xid="13"}'] == 1


def test_a_lost_gpu_is_listened_to_again_once_it_is_back() -> None:
    device = ScriptedDevice(power=DeviceLost("gpu_lost", "lost"))
    node = Node(device, ScriptedDevice(1, power=1.0))
    node.after(3)
    node.driver.listeners[-1].failure = DriverError("driver_error", "GPU is lost")
    node.after(2)
    assert [each.identity().uuid for each in node.driver.listeners[-1].devices] == ["GPU-1"]
    device.answers["power"] = 1.0
    node.after(3)
    assert {each.identity().uuid for each in node.driver.listeners[-1].devices} == {"GPU-0", "GPU-1"}


def test_events_are_received_although_a_gpu_that_is_back_requires_a_new_listener() -> None:
    device, well = ScriptedDevice(power=DeviceLost("gpu_lost", "lost")), ScriptedDevice(1, power=1.0)
    node = Node(device, well)
    node.after(3)
    node.driver.listeners[-1].failure = DriverError("driver_error", "GPU is lost")
    node.after(2)
    device.answers["power"] = 1.0
    node.after()
    listener = node.driver.listeners[-1]
    listener.events.append(Event(well, 94))
    page = node.after()
    assert listener.closed
    assert page['stallscope_gpu_xid_events_total{gpu="1",uuid="GPU-1",xid="94"}'] == 1


def test_no_listener_outlives_its_session() -> None:
    node = Node(ScriptedDevice(power=1.0))
    node.after(2)
    node.sampler.release(60)
    node.after(2)
    assert [listener.closed for listener in node.driver.listeners] == [True]


def test_a_driver_without_events_is_queried_once_and_the_signal_is_unsupported() -> None:
    node = Node(ScriptedDevice(power=1.0))
    node.driver.deaf = True
    page = node.after(5)
    assert page['stallscope_gpu_signal_supported{gpu="0",uuid="GPU-0",signal="xid_events_total"}'] == 0
    assert source_up(page) == 1


def test_a_change_of_mig_configuration_is_looked_at_without_waiting_for_the_next_enumeration() -> None:
    parent = ScriptedDevice(power=1.0)
    node = Node(parent)
    node.after(12)
    parent.answers["instances"] = [instance(parent, 1)]
    node.driver.listeners[-1].events.append(Event(None, None))
    assert up(node.after(3), "MIG-1") == 1


def _hang() -> Callable[[], None]:
    def never() -> None:
        raise DriverError("timeout", "no answer")

    return never


def test_an_unidentified_gpu_fails_the_source_unless_its_own_series_report_it() -> None:
    silent = ScriptedDevice(1, power=1.0, identity=_hang())
    node = Node(ScriptedDevice(power=1.0), silent)
    assert source_up(node.after(2)) == 0
    del silent.answers["identity"]
    assert source_up(node.after(4)) == 1
    # Known now: after a new session its own series say that it is gone.
    silent.answers["identity"] = _hang()
    node.sampler.release(2)
    page = node.after(6)
    assert (up(page, "GPU-0"), up(page, "GPU-1")) == (1, 0)
    assert source_up(page) == 1


def test_driver_calls_and_refused_values_are_counted_over_sessions() -> None:
    device = ScriptedDevice(power=1.0)
    node = Node(device)
    device.rejections["sentinel"] = 3
    before = node.after(5)
    calls = 'stallscope_exporter_driver_calls_total{source="scripted"}'
    refused = 'stallscope_exporter_values_rejected_total{source="scripted",reason="sentinel"}'
    assert before[calls] > 5
    assert before[refused] == 3
    node.sampler.release(1)
    node.after(3)
    after = node.after(1)
    assert after[calls] > before[calls]
    assert after[refused] >= 3


@pytest.mark.parametrize("why", ["driver_not_loaded", "version_mismatch"])
def test_a_driver_that_goes_takes_all_down_for_its_own_reason(why: str) -> None:
    devices = [ScriptedDevice(index, power=1.0) for index in range(2)]
    node = Node(*devices)
    node.after(2)
    node.driver.refusal = DriverUnavailable(why, "gone")
    for device in devices:
        device.answers["power"] = DriverUnavailable("uninitialized", "gone")
    node.driver.close()
    page = node.after(3)
    assert [reason(page, f"GPU-{index}") for index in range(2)] == [why, why]
    assert source_up(page) == 0
    node.driver.refusal = None
    for device in devices:
        device.answers["power"] = 1.0
    page = node.after(12)
    assert [up(page, f"GPU-{index}") for index in range(2)] == [1, 1]
    opened = node.driver.opened
    node.after(30)
    assert node.driver.opened == opened, "a session that stands is kept"


def test_processes_of_gpus_that_are_up_are_published_for_their_owners() -> None:
    device = ScriptedDevice(power=1.0, processes=[])
    node = Node(device)
    node.after(2)
    assert set(node.environment.occupancies.current()) == {"GPU-0"}
    device.answers["power"] = DeviceLost("gpu_lost", "lost")
    node.after(2)
    assert not node.environment.occupancies.current()


def test_a_gpu_that_is_cut_up_leaves_its_processes_to_the_instances() -> None:
    parent = ScriptedDevice(power=1.0, processes=[])
    parent.answers["instances"] = [instance(parent, 1)]
    node = Node(parent)
    node.after(3)
    assert set(node.environment.occupancies.current()) == {"MIG-1"}


def test_a_gpu_that_reports_no_events_beside_others_that_do_lacks_the_signal() -> None:
    mute = ScriptedDevice(1, power=1.0)
    mute.mute = True
    page = Node(ScriptedDevice(power=1.0), mute).after(3)
    assert page['stallscope_gpu_signal_supported{gpu="0",uuid="GPU-0",signal="xid_events_total"}'] == 1
    assert page['stallscope_gpu_signal_supported{gpu="1",uuid="GPU-1",signal="xid_events_total"}'] == 0


def test_a_gpu_that_was_missing_is_queried_for_everything_again() -> None:
    device = ScriptedDevice(power=1.0, fans={"0": 0.5})
    node = Node(device, ScriptedDevice(1, power=1.0))
    fan = 'stallscope_gpu_fan_speed_ratio{gpu="0",uuid="GPU-0",fan="0"}'
    assert node.after(2)[fan] == 0.5
    node.driver.shown.remove(device)
    page = node.after(11)
    assert (up(page), fan in page) == (0, False)
    node.driver.shown.insert(0, device)
    assert node.after(11)[fan] == 0.5


XID_SUPPORTED = 'stallscope_gpu_signal_supported{{gpu="{0}",uuid="GPU-{0}",signal="xid_events_total"}}'


def test_a_driver_that_refuses_events_for_a_moment_is_listened_to_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stallscope")
    device = ScriptedDevice(power=1.0)
    node = Node(device)
    node.driver.deaf = True
    page = node.after(5)
    assert page[XID_SUPPORTED.format(0)] == 0
    node.driver.deaf = False
    page = node.after(60)
    assert page[XID_SUPPORTED.format(0)] == 1
    node.driver.listeners[-1].events.append(Event(device, 79))
    assert 'stallscope_gpu_xid_events_total{gpu="0",uuid="GPU-0",xid="79"}' in node.after(1)
    said = [record.getMessage() for record in caplog.records if "events" in record.getMessage()]
    assert said == [
        "GPU GPU-0: the driver reports no events; the refusal: no events here",
        "GPU GPU-0: the driver reports events again",
    ]


def test_a_gpu_that_refuses_events_for_a_moment_is_listened_to_afterwards() -> None:
    mute = ScriptedDevice(1, power=1.0)
    mute.mute = True
    node = Node(ScriptedDevice(power=1.0), mute)
    node.after(5)
    mute.mute = False
    page = node.after(60)
    assert [page[XID_SUPPORTED.format(index)] for index in (0, 1)] == [1, 1]
    made = len(node.driver.listeners)
    node.after(1000)
    assert len(node.driver.listeners) == made, "a listener that covers all GPUs is kept"


def test_a_driver_without_events_is_queried_for_them_rarely() -> None:
    node = Node(ScriptedDevice(power=1.0))
    node.driver.deaf = True
    listened = 0
    listen = node.driver.listen

    def counted(devices: Sequence[Device]) -> Listener:
        nonlocal listened
        listened += 1
        return listen(devices)

    node.driver.listen = counted  # type: ignore[method-assign]
    node.after(1000)
    assert 3 <= listened <= 8
