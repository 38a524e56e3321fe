"""A driver of GPUs that answers from a story's world, as the exporter's sources read any other.

The card itself (its power, heat and clocks) is that of `page_gpu.py`: its values at each second. The driver's samples,
the processes and their use come from the world.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stallscope.lab.replay.series import Series
from stallscope.model.catalogue.metrics import family
from stallscope.node.drivers.device import (
    Activity,
    Device,
    DeviceLost,
    Event,
    GpuProcess,
    Identity,
    ProcessUtilization,
    Readings,
    SampleKind,
    SystemInfo,
    TimedSample,
    Unsupported,
)
from stallscope.node.drivers.signals import QUERIES
from stallscope.node.sampling.clock import ScriptedClock
from tests.scenarios.disturbance import Floats
from tests.scenarios.page_gpu import held_by, owner_named, owner_of, show_gpus
from tests.scenarios.sheet import Sheet
from tests.scenarios.utilization import Utilization
from tests.scenarios.world import BEGIN, World

_UNCOUNTED = ("hw_slowdown", "other")
"""Reasons of low clocks that a driver names but does not count."""
_KEPT = 15
"""Seconds of samples in a driver's buffer."""


def sheet_at(world: World, node: int, times: Sequence[float]) -> Sheet:
    """An empty page of a node at other times than those of scrapes."""
    moments = copy.copy(world.disturbance)
    grid: Floats = np.array(times, dtype=np.float64)
    moments.grid = grid
    moments.times = [grid] * len(moments.times)
    moments.scraped = np.ones(len(times), dtype=np.bool_)
    moments.answered = [moments.scraped] * len(moments.times)
    return Sheet(node, moments, absent=(), down=None)


@dataclass(frozen=True)
class Program:
    """A process on a GPU."""

    pid: int
    owner: dict[str, str]
    lives: Callable[[Floats], Floats]
    memory: Callable[[Floats], Floats]
    busy: Callable[[Floats], Floats]
    """The integral of the time that it keeps the GPU busy."""


def programs_on(world: World, gpu: int) -> list[Program]:
    """Return the ranks on a GPU, and other users' processes there."""
    card = world.node(gpu).card
    found = [
        Program(
            1000 * (claim.number + 1) + claim.rank,
            owner_of(claim.run, claim.rank),
            claim.lives,
            lambda times, claim=claim: held_by(claim, card.memory, times),  # type: ignore[misc]
            lambda times, claim=claim: claim.course.effect(claim.rank, "busy", times) * claim.share,  # type: ignore[misc]
        )
        for claim in world.claims(gpu)
    ]
    users = sorted({user for each in world.story.gpus for user in each.state.foreign})
    for number, user in enumerate(users):
        states = [each for each in world.story.gpus if user in each.state.foreign]
        if any(each.only is None or gpu in each.only for each in states):
            found.append(
                Program(
                    100 + number,
                    owner_named(user),
                    lambda times, user=user: world.gpu_state(gpu, lambda state: float(user in state.foreign), times),  # type: ignore[misc]
                    lambda times: world.gpu_state(gpu, lambda state: state.foreign_memory, times) * card.memory,
                    lambda times, user=user: world.foreign_busy(gpu, user, times),  # type: ignore[misc]
                )
            )
    return found


class WorldDriver:
    """The GPUs of one node, as their driver reports them in each second of a time."""

    simulated = False
    calls = 0

    def __init__(self, world: World, node: int, clock: ScriptedClock, begin: int, end: int) -> None:
        self.world = world
        self.now = clock.time
        self.begin = begin - 1
        self.seconds = np.arange(self.begin, end + 1.0)
        self.said: dict[tuple[str, str], list[Series]] = {}
        """Series by UUID and signal, with a value each second."""
        sheet = sheet_at(world, node, self.seconds.tolist())
        show_gpus(sheet, world, polled=False)
        for each in sheet.series:
            self.said.setdefault((each.labels["uuid"], each.name.removeprefix("stallscope_gpu_")), []).append(each)
        gpus = [gpu for gpu, (number, _index) in enumerate(world.gpus) if number == node]
        self._devices = [WorldDevice(self, gpu) for gpu in gpus]
        if world.node(gpus[0]).card.mig:
            self._devices = [WorldDevice(self, gpus[0], self._devices)]

    def open(self) -> None: ...

    def close(self) -> None: ...

    def system(self) -> SystemInfo:
        return SystemInfo("590.48.01", "13.1")

    def devices(self) -> Sequence[Device]:
        return self._devices

    def listen(self, devices: Sequence[Device]) -> WorldListener:
        return WorldListener(self, [each for each in devices if isinstance(each, WorldDevice)])


class WorldListener:
    """Reports the Xid events of some GPUs from now on."""

    def __init__(self, driver: WorldDriver, devices: Sequence[WorldDevice]) -> None:
        self._driver = driver
        self.devices = devices
        self._read_until = driver.now()

    def wait(self, timeout: float) -> Sequence[Event]:
        since, self._read_until = self._read_until, self._driver.now()
        return [
            Event(device, code)
            for device in self.devices
            for each in self._driver.world.story.gpus
            if (each.only is None or device.gpu in each.only) and since < each.minute * 60 <= self._read_until
            for code in each.state.xids
        ]

    def close(self) -> None: ...


class WorldDevice(Device):
    """One GPU, one MIG instance, or with `parts` the GPU that these instances are parts of."""

    def __init__(self, driver: WorldDriver, gpu: int, parts: Sequence[WorldDevice] | None = None) -> None:
        self.gpu = gpu
        self._driver = driver
        self._world = driver.world
        self._card = driver.world.node(gpu).card
        self._parts = parts
        self._gpus = [gpu] if parts is None else [part.gpu for part in parts]
        self._uuid = driver.world.uuid(gpu) if parts is None else driver.world.uuid(gpu).replace("MIG", "GPU")
        self._programs = [program for each in self._gpus for program in programs_on(driver.world, each)]
        moments = np.arange(BEGIN, driver.world.horizon + 1, self._card.sample_seconds)
        self._samples = Utilization(driver.world.busy([gpu], moments), moments)
        self._busy = driver.world.busy(self._gpus, driver.seconds)
        self._active_at = driver.now()

    def identity(self) -> Identity:
        self._require_answer()
        labels = self._driver.said[self._uuid, "info"][0].labels
        whole = self._world.uuid(self.gpu - self._world.gpus[self.gpu][1]).replace("MIG", "GPU")
        return Identity(
            index=int(labels["gpu"]),
            uuid=self._uuid,
            model=labels["model"],
            serial=labels.get("serial", ""),
            pci_bus_id=labels["pci_bus_id"],
            vbios_version=labels["vbios_version"],
            architecture=labels["architecture"],
            compute_capability=labels["compute_capability"],
            mig=labels.get("mig", ""),
            parent_uuid=whole if "mig" in labels else "",
        )

    def instances(self) -> Sequence[Device] | None:
        self._require_answer()
        return self._parts

    def read(self, query: str) -> Readings:
        self._require_answer()
        found: dict[str, float | dict[str, float]] = {}
        for name in QUERIES[query]:
            said = self._said(name)
            if name == "temperature_celsius":
                said = {sensor: heat for sensor, heat in said.items() if (sensor == "memory") == (query == "counters")}
            if name == "throttled_seconds_total":
                said = {reason: seconds for reason, seconds in said.items() if reason not in _UNCOUNTED}
            if "pcie" in name and query == "counters" and self._card.profiled:
                continue  # activity has them
            if said or (name == "clock_configured_hertz" and self._said("signal_supported")[name]):
                found[name] = said.get("", said)
        if not found:
            raise Unsupported(f"no {query}")
        return found

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        self._require_answer()
        if self._card.mig:
            raise Unsupported("no samples with MIG")
        ends, values = self._samples.ends, self._samples.samples
        if kind != "gpu":
            busy = self._mean("memory_busy_seconds_total", self._driver.now() - 1)[""] if kind == "memory" else 0.0
            values = np.full_like(ends, round(busy, 2))
        first, last = np.searchsorted(ends, [self._driver.now() - _KEPT, self._driver.now()], side="right")
        found = zip(ends[first:last].tolist(), values[first:last].tolist(), strict=True)
        return [TimedSample(_us(end), value) for end, value in found if _us(end) > newer_than_us]

    def activity(self) -> Activity | None:
        self._require_answer()
        if not self._said("sm_active_seconds_total"):
            raise Unsupported("no activity")
        since, self._active_at = self._active_at, self._driver.now()
        seconds = self._active_at - since
        if not seconds:
            return Activity(0.0)
        before, now = (self._busy[int(at) - self._driver.begin] for at in (since, self._active_at))
        into, out = (self._mean(f"pcie_{way}_bytes_total", since).get("") for way in ("receive", "transmit"))
        return Activity(
            seconds,
            graphics=min(1.0, float(now - before) / seconds),
            sm=self._mean("sm_active_seconds_total", since)[""],
            occupancy=self._mean("sm_occupancy_seconds_total", since)[""],
            dram=self._mean("dram_active_seconds_total", since)[""],
            pipes=self._mean("pipe_active_seconds_total", since),
            engines={
                name: mean for name, mean in self._mean("engine_busy_seconds_total", since).items() if name[0] != "e"
            },
            pcie_received=None if into is None else into * seconds,
            pcie_transmitted=None if out is None else out * seconds,
        )

    def throttle_reasons(self) -> frozenset[str]:
        self._require_answer()
        now, before = (self._said("throttled_seconds_total", self._driver.now() - ago) for ago in (0, 1))
        if not now:
            raise Unsupported("no throttle reasons")
        return frozenset(reason for reason, total in now.items() if int(total) > int(before[reason]))

    def processes(self) -> Sequence[GpuProcess]:
        self._require_answer()
        now = np.array([self._driver.now()])
        return [GpuProcess(each.pid, int(each.memory(now)[0])) for each in self._programs if each.lives(now)[0]]

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:
        self._require_answer()
        if self._card.mig:
            raise Unsupported("no process utilisation with MIG")
        seconds = np.arange(self._driver.now() - _KEPT - 1, self._driver.now() + 1)
        return [
            ProcessUtilization(each.pid, _us(end), round(busy, 2), 0.0)
            for each in self._programs
            for end, busy in zip(
                seconds[1:].tolist(), (np.diff(each.busy(seconds)) * each.lives(seconds[1:])).tolist(), strict=True
            )
            if _us(end) > newer_than_us and round(busy, 2)
        ]

    def _said(self, signal: str, at: float | None = None) -> dict[str, float]:
        """Return the values of a signal by its own label, which may be empty; none where it is absent."""
        second = int(self._driver.now() if at is None else at) - self._driver.begin
        own = family(f"stallscope_gpu_{signal}").labels[2:]
        series = self._driver.said.get((self._uuid, signal), ())
        values = {each.labels[own[0]] if own else "": each.values[second] for each in series}
        return {label: value for label, value in values.items() if value is not None}

    def _mean(self, signal: str, since: float) -> dict[str, float]:
        before, seconds = self._said(signal, since), self._driver.now() - since
        return {label: (value - before[label]) / seconds for label, value in self._said(signal).items()}

    def _require_answer(self) -> None:
        now = np.array([self._driver.now()])
        if not self._world.gpu_state(self.gpu, lambda state: float(state.present), now)[0]:
            raise DeviceLost(
                next(each.state.lost_reason for each in self._world.story.gpus if not each.state.present), ""
            )


def _us(second: float) -> int:
    """The driver's clock, which began before every story."""
    return round((second + 1e5) * 1e6)
