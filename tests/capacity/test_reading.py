"""Two looks at scripted GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stallscope.node.drivers.device import (
    Activity,
    DeviceLost,
    DriverError,
    DriverUnavailable,
    GpuProcess,
    Identity,
    TimedSample,
    Utilization,
)
from stallscope.tools.capacity.gpu import GpuNow
from stallscope.tools.capacity.reading import read
from tests.collectors.gpu.scripted_driver import ScriptedDevice, ScriptedDriver, memory
from tests.waiting import giving_up_on

GIB = 1 << 30
MEMORY = memory(80 * GIB, 10 * GIB, GIB)


def looked_at(*devices: ScriptedDevice, root: Path = Path("/nowhere"), limit: float = 60.0) -> list[GpuNow]:
    driver = ScriptedDriver(*devices)
    return read(driver, root=root, limit=limit, pause=lambda seconds: None)


def ring(values: Sequence[float], later: Sequence[float] = ()) -> Callable[[int], list[TimedSample]]:
    """A buffer with a sample a second from second 1 on, to which the later ones come after the first look."""
    shown = [TimedSample(second * 1_000_000, value) for second, value in enumerate([*values, *later], start=1)]

    def samples(newer_than_us: int) -> list[TimedSample]:
        known = shown if newer_than_us else shown[: len(values)]
        return [sample for sample in known if sample.timestamp_us > newer_than_us]

    return samples


def test_a_gpu_between_two_steps_is_not_idle() -> None:
    device = ScriptedDevice(**{"gpu samples": ring([1.0, 0.0] * 10, [0.0, 0.0])}, utilization=Utilization(0, 0))
    (gpu,) = looked_at(device)
    assert gpu.busy == pytest.approx(7 / 16)
    assert gpu.busy_seconds == 16
    assert gpu.busy_now == 0


def test_what_was_long_ago_does_not_count() -> None:
    (gpu,) = looked_at(ScriptedDevice(**{"gpu samples": ring([1.0] * 30 + [0.0] * 15, [0.0, 0.0])}))
    assert gpu.busy == 0


def test_a_record_with_nothing_new_is_an_old_one() -> None:
    device = ScriptedDevice(**{"gpu samples": ring([1.0] * 20)}, utilization=Utilization(0.25, 0))
    (gpu,) = looked_at(device)
    assert (gpu.busy, gpu.busy_seconds, gpu.busy_now) == (0.25, 1.0, 0.25)


def test_a_gpu_that_reports_nothing_has_no_values() -> None:
    (gpu,) = looked_at(ScriptedDevice())
    assert (gpu.trouble, gpu.busy, gpu.memory_free, gpu.sm_active, gpu.compute_mode) == ("", None, None, None, None)


def test_room_is_what_is_neither_used_nor_reserved() -> None:
    (gpu,) = looked_at(ScriptedDevice(memory=MEMORY))
    assert (gpu.memory_total, gpu.memory_free, gpu.memory_reserved) == (80 * GIB, 69 * GIB, GIB)
    assert gpu.memory_used == 10 * GIB


def test_what_the_hosts_programs_use_of_unified_memory_is_neither_free_nor_in_use_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {120 << 20} kB\nMemAvailable: {90 << 20} kB\n")
    identity = Identity(0, "GPU-0", "NVIDIA GB10", "", "", "", "blackwell", "12.1")
    device = ScriptedDevice(identity=identity, processes=[GpuProcess(1, 20 * GIB)])
    (gpu,) = looked_at(device, root=tmp_path)
    assert (gpu.memory_total, gpu.memory_free, gpu.memory_used) == (120 * GIB, 90 * GIB, 20 * GIB)
    device.answers["processes"] = []
    (gpu,) = looked_at(device, root=tmp_path)
    assert (gpu.memory_free, gpu.memory_used, gpu.memory_reserved) == (90 * GIB, 0, 30 * GIB)


def test_faults_compute_mode_and_slowdown_are_reported() -> None:
    device = ScriptedDevice(
        health={"row_remap_pending": 1, "row_remap_failed": 1},
        compute_mode="exclusive_process",
        throttle_reasons=frozenset({"hw_thermal", "power_cap"}),
    )
    (gpu,) = looked_at(device)
    assert [ill.split(":")[0] for ill in gpu.faults] == [
        "a memory row waits to be remapped",
        "a memory row could not be remapped",
    ]
    assert gpu.compute_mode == "exclusive_process"
    assert gpu.throttled == {"hw_thermal"}, "a power cap is what a busy GPU has"


def test_instances_are_listed_with_the_faults_of_their_gpu() -> None:
    instance = ScriptedDevice(memory=MEMORY, activity=Activity(2.0, graphics=0.5, sm=0.4))
    instance.uuid, instance.mig, instance.parent_uuid = "MIG-0", "1g.10gb", "GPU-0"
    whole = ScriptedDevice(instances=[instance], health={"row_remap_failed": 1})
    parent, part = looked_at(whole)
    assert (parent.cut, part.cut) == (True, False)
    assert (part.identity.mig, part.busy, part.busy_seconds, part.sm_active) == ("1g.10gb", 0.5, 2.0, 0.4)
    assert part.faults == parent.faults != ()


def test_a_gpu_with_mig_on_and_no_instances_can_not_be_used() -> None:
    assert looked_at(ScriptedDevice(instances=[]))[0].cut


def test_processes_are_listed_with_user_name_and_ancestors(tmp_path: Path) -> None:
    for pid, parent, name in ((70, 60, "pt (main) x"), (60, 1, "torchrun"), (1, 0, "init")):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} " + "0 " * 17 + "123 0\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "status").write_text("Name: x\nUid:\t1001\t1001\t1001\t1001\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("alice:x:1001:1001::/home/alice:/bin/sh\n")
    (gpu,) = looked_at(ScriptedDevice(processes=[GpuProcess(70, GIB), GpuProcess(99, None)]), root=tmp_path)
    seen, unseen = gpu.holders
    assert (seen.user, seen.command, seen.ancestors) == ("alice", "pt (main) x", frozenset({70, 60, 1}))
    assert (unseen.user, unseen.command, unseen.ancestors) == ("", "", frozenset({99}))


def test_gpus_in_trouble_hide_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallscope.tools.capacity.reading.run_concurrently", giving_up_on("1"))
    still = threading.Event()
    hanging = ScriptedDevice(1, identity=lambda: still.wait(60))
    lost = ScriptedDevice(2, memory=DeviceLost("gpu_lost", "it fell off the bus"))
    strange = ScriptedDevice(3, identity=DriverError("implausible", "it gives no UUID"))
    passing = ScriptedDevice(4, memory=DriverError("timeout", "not now"))
    found = looked_at(ScriptedDevice(0, memory=MEMORY), hanging, lost, strange, passing, limit=2.0)
    still.set()
    assert [gpu.trouble for gpu in found] == [
        "",
        "it did not answer within 2 s",
        "gpu_lost: it fell off the bus",
        "implausible: it gives no UUID",
        "",
    ]
    assert [gpu.identity.index for gpu in found] == [0, 1, 2, 3, 4]


def test_the_driver_is_closed_after_the_reading() -> None:
    driver = ScriptedDriver(ScriptedDevice())
    read(driver, pause=lambda seconds: None)
    assert driver.opened == 1
    assert not driver.is_open


def test_the_reason_is_reported_when_no_driver_responds() -> None:
    driver = ScriptedDriver()
    driver.refusal = DriverUnavailable("driver_not_loaded", "the NVIDIA driver does not answer")
    with pytest.raises(DriverUnavailable, match="does not answer"):
        read(driver)


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    still = threading.Event()

    class Hanging(ScriptedDriver):
        def open(self) -> None:
            still.wait(60)

    with pytest.raises(DriverUnavailable, match=r"did not answer within 0\.1 s"):
        read(Hanging(), limit=0.1)
    still.set()
