"""A driver without hardware: the node's GPUs behind the same interface as NVML, each named as simulated.

Shapes (memory, clocks, limits, links) are those of an H100 80GB HBM3 as its own tools report them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from stallscope.lab.simulation.gpu import MEMORY_BYTES, POWER_LIMIT_WATTS, SAMPLES_KEPT, SAMPLES_PER_SECOND, GpuState
from stallscope.lab.simulation.node import Node, uuid
from stallscope.lab.simulation.scenarios import HardwareFault
from stallscope.lab.simulation.workload import PhaseEffect
from stallscope.node.drivers.device import (
    Activity,
    ComputeMode,
    Device,
    DeviceLost,
    DriverUnavailable,
    Event,
    GpuProcess,
    Identity,
    Listener,
    ProcessUtilization,
    Readings,
    SampleKind,
    SystemInfo,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.node.sampling.clock import ScriptedClock

MODEL = "Simulated NVIDIA H100 80GB HBM3"
_MIB = 1024**2
_MEMORY_RESERVED = 479 * _MIB
_BAR1_TOTAL = 131_072 * _MIB
_CLOCKS = {"sm": 1_980e6, "memory": 2_619e6, "graphics": 1_980e6, "video": 1_545e6}
_CLOCK_STEP_HERTZ = 15e6
_NONE_OF_EITHER = {"corrected": 0, "uncorrected": 0}
_CONSTANT: Mapping[str, Readings] = {
    "health": {
        "ecc_errors_total": _NONE_OF_EITHER,
        "remapped_rows": _NONE_OF_EITHER,
        "row_remap_pending": 0,
        "row_remap_failed": 0,
        "pcie_replays_total": 0,
        "nvlink_errors_total": {"replay": 0, "recovery": 0, "crc": 0},
        "nvlink_links": 18,
        "nvlink_links_active": 18,
    },
    "pcie_link": {
        "pcie_link_generation": 5,
        "pcie_link_generation_max": 5,
        "pcie_link_width": 16,
        "pcie_link_width_max": 16,
    },
    "power_limits": {"power_limit_watts": POWER_LIMIT_WATTS, "power_limit_default_watts": POWER_LIMIT_WATTS},
    "clocks_configured": {"clock_configured_hertz": {}},  # none is set below its maximum
    "temperature_limits": {
        "temperature_limit_celsius": {"slowdown": 89.0, "shutdown": 95.0, "gpu_max": 87.0, "memory_max": 95.0}
    },
    "clocks_max": {"clock_max_hertz": _CLOCKS},
    "persistence_mode": {"persistence_mode": 1},
}
"""Constant values, by query."""
_THROUGHPUT_SECONDS = 0.02
_SAMPLE_SIGNALS: Mapping[SampleKind, str] = {"gpu": "busy_seconds_total", "memory": "memory_busy_seconds_total"}
_LOST_XID = 79
"""The GPU has fallen off the bus."""


class SimulatedDriver:
    """A connection to the simulated node. Several may be open at the same time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._devices: tuple[SimulatedDevice, ...] = ()
        self._calls = 0
        self.is_open = False
        """True while the connection is open."""

    @property
    def simulated(self) -> bool:
        """Always: no hardware is behind it."""
        return True

    @property
    def calls(self) -> int:
        """Calls so far that concern no particular GPU."""
        return self._calls

    def open(self) -> None:
        """Connect."""
        if not self.is_open:
            self._devices = tuple(SimulatedDevice(self, self._node, index) for index in range(self._node.gpu_count))
        self.is_open = True

    def close(self) -> None:
        """Close; devices stop responding."""
        self.is_open = False

    def system(self) -> SystemInfo:
        """Return a driver version that no real driver has."""
        self._require_open()
        return SystemInfo(driver_version="simulated", cuda_version="13.1")

    def devices(self) -> Sequence[Device]:
        """The GPUs that are not lost."""
        self._require_open()
        return [device for device in self._devices if not self._node.lost(device.index)]

    def listen(self, devices: Sequence[Device]) -> Listener:
        """Receive GPUs that fall off the bus."""
        self._require_open()
        return SimulatedListener(self._node, {device.index: device for device in self._devices if device in devices})

    def _require_open(self) -> None:
        self._calls += 1
        if not self.is_open:
            raise DriverUnavailable("not_open", "the simulated driver is not open; call open() first")


class SimulatedListener:
    """Reports the Xid event of each GPU that is lost, or has another fault with one, from now on."""

    def __init__(self, node: Node, devices: Mapping[int, Device]) -> None:
        self._node = node
        self.devices = list(devices.values())
        """The GPUs with events."""
        self._awaited = {index: device for index, device in devices.items() if self._xid(index) is None}
        self._closed = threading.Event()

    def wait(self, timeout: float) -> Sequence[Event]:
        """Return the GPUs lost since the previous call, without waiting: scripted time does not pass meanwhile."""
        # A GPU that is lost during the wait is reported at its end, which is soon.
        if not self._any_event() and not isinstance(self._node.clock, ScriptedClock):
            self._closed.wait(timeout)
        found = {index: xid for index in self._awaited if (xid := self._xid(index)) is not None}
        return [Event(self._awaited.pop(index), xid) for index, xid in found.items()]

    def close(self) -> None:
        """Stop listening, and let a wait end."""
        self._closed.set()

    def _any_event(self) -> bool:
        return any(self._xid(index) is not None for index in self._awaited)

    def _xid(self, index: int) -> int | None:
        if self._node.lost(index):
            return _LOST_XID
        fault = self._node.hardware_fault(index)
        return None if fault is None else fault.xid


class SimulatedDevice(Device):
    """A simulated GPU. Every call fails while the GPU is lost, and blocks while the driver hangs."""

    def __init__(self, driver: SimulatedDriver, node: Node, index: int) -> None:
        self.index = index
        self._driver = driver
        self._node = node
        self._calls = 0
        self._served: dict[str, str] = {}
        self._activity: tuple[float, PhaseEffect] | None = None  # time of the last query, and the totals then

    @property
    def served(self) -> Mapping[str, str]:
        """The simulation serves every signal."""
        return dict(self._served)

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._calls

    def identity(self) -> Identity:
        """Labelled as simulated wherever a text is shown."""
        self._require_answer()
        return Identity(
            index=self.index,
            uuid=uuid(self._node.seed, self.index),
            model=MODEL,
            serial="simulated",
            pci_bus_id=f"00000000:{0x10 + 0x10 * self.index:02X}:00.0",
            vbios_version="simulated",
            architecture="Hopper",
            compute_capability="9.0",
        )

    def utilization(self) -> Utilization:
        """The mean of the last second, in whole per cent like the driver's."""
        self._require_answer("busy_seconds_total", "memory_busy_seconds_total")
        now = self._node.now()
        earlier, present = self._node.states(self.index, (max(now - 1.0, 0.0), now))
        seconds = min(max(now, 1e-3), 1.0)
        return Utilization(
            _per_cent((present.totals.busy - earlier.totals.busy) / seconds),
            _per_cent((present.totals.memory - earlier.totals.memory) / seconds),
        )

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """The means of successive sixths of a second, the newest hundred of them; the job uses no engine."""
        self._require_answer(_SAMPLE_SIGNALS.get(kind, "engine_busy_seconds_total"))
        if kind == "encoder":
            raise Unsupported(f"{MODEL} has no encoder")
        return [
            TimedSample(at_us, busy if kind == "gpu" else memory if kind == "memory" else 0.0)
            for at_us, busy, memory in self._samples(newer_than_us)
        ]

    def read(self, query: str) -> Readings:
        """Everything that an H100 SXM reports; it has no fans of its own."""
        self._require_answer()
        found = self._readings(query)
        fault = self._node.hardware_fault(self.index)
        if fault is not None:
            minutes = (self._node.now() - self._node.scenario.onset) / 60.0
            found = {**found, **fault.readings.get(query, {})}
            for signal, growth in fault.per_minute.get(query, {}).items():
                found[signal] = (
                    {**_labelled(found[signal]), **{label: int(each * minutes) for label, each in growth.items()}}
                    if isinstance(growth, Mapping)
                    else int(growth * minutes)
                )
        self._served.update(dict.fromkeys(found, "simulation"))
        return found

    def _readings(self, query: str) -> Readings:
        state = self._node.state(self.index)
        if query == "counters":
            return {
                "energy_joules_total": round(state.joules, 3),
                "throttled_seconds_total": {
                    **dict.fromkeys(("sw_thermal", "hw_thermal", "power_cap", "power_brake", "sync_boost"), 0.0),
                    **dict.fromkeys(self._throttle_reasons(), round(state.throttled_seconds, 6)),
                },
                "temperature_celsius": {"memory": round(30.0 + 0.45 * state.celsius)},
                "pcie_receive_bytes_total": int(state.totals.pcie_received),
                "pcie_transmit_bytes_total": int(state.totals.pcie_transmitted),
                "nvlink_receive_bytes_total": int(state.totals.nvlink),
                "nvlink_transmit_bytes_total": int(state.totals.nvlink),
            }
        if query == "memory":
            return {
                "memory_total_bytes": MEMORY_BYTES,
                "memory_used_bytes": self._memory_used(),
                "memory_reserved_bytes": _MEMORY_RESERVED,
            }
        if query == "bar1":  # the aperture maps what is in use, and a little more
            return {"bar1_total_bytes": _BAR1_TOTAL, "bar1_used_bytes": self._memory_used() + _MIB}
        if query == "power":
            return {"power_watts": round(state.watts, 3)}
        if query == "temperature":
            return {"temperature_celsius": {"gpu": round(state.celsius)}}
        if query == "clocks":  # down while throttled; memory keeps its clock
            down = {clock: _CLOCKS[clock] * (1.0 - state.clock_ratio) for clock in ("sm", "graphics", "video")}
            steps = {clock: _CLOCK_STEP_HERTZ * round(hertz / _CLOCK_STEP_HERTZ) for clock, hertz in down.items()}
            return {"clock_hertz": {clock: hertz - steps.get(clock, 0.0) for clock, hertz in _CLOCKS.items()}}
        if query in _CONSTANT:
            return _CONSTANT[query]
        raise Unsupported(f"{MODEL} does not report {query}")

    def activity(self) -> Activity | None:
        """Return the phases' use of the units, as means since the last call."""
        self._require_answer(
            "sm_active_seconds_total",
            "sm_occupancy_seconds_total",
            "pipe_active_seconds_total",
            "dram_active_seconds_total",
            "engine_busy_seconds_total",
        )
        now = self._node.now()
        (state,) = self._node.states(self.index, (now,))
        before, self._activity = self._activity, (now, state.totals)
        if before is None or now <= before[0]:
            return Activity(0.0)
        seconds = now - before[0]
        moved = PhaseEffect(*[total - earlier for total, earlier in zip(state.totals, before[1], strict=True)])
        mean = PhaseEffect(*[round(total / seconds, 6) for total in moved])
        return Activity(
            seconds,
            graphics=mean.busy,
            sm=mean.sm,
            occupancy=mean.occupancy,
            dram=mean.dram,
            pipes={
                "tensor": mean.tensor,
                "fp64": 0.0,
                "fp32": mean.fp32,
                "fp16": mean.fp16,
                "integer": mean.integer,
            },
            engines={"decoder": 0.0, "jpeg": 0.0, "ofa": 0.0},
            pcie_received=moved.pcie_received,
            pcie_transmitted=moved.pcie_transmitted,
            nvlink_received=moved.nvlink,
            nvlink_transmitted=moved.nvlink,
        )

    def throttle_reasons(self) -> frozenset[str]:
        """Heat, or the reason of the scenario's fault."""
        throttled = self._state("throttled_seconds_total").throttled
        return self._throttle_reasons() if throttled else frozenset()

    def pcie_throughput(self) -> tuple[float, float]:
        """The mean over the driver's 20 ms."""
        self._require_answer("pcie_receive_bytes_total", "pcie_transmit_bytes_total")
        now = self._node.now()
        earlier, present = self._node.states(self.index, (max(now - _THROUGHPUT_SECONDS, 0.0), now))
        return (
            (present.totals.pcie_received - earlier.totals.pcie_received) / _THROUGHPUT_SECONDS,
            (present.totals.pcie_transmitted - earlier.totals.pcie_transmitted) / _THROUGHPUT_SECONDS,
        )

    def processes(self) -> Sequence[GpuProcess]:
        """The jobs' processes on this GPU, with equal parts of its memory."""
        self._require_answer("processes")
        pids = self._node.pids(self.index)
        return [GpuProcess(pid, self._memory_used() // len(pids)) for pid in pids]

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:
        """All work of the GPU is that of the job's process, the first of several."""
        self._require_answer()
        return [
            ProcessUtilization(pid, at_us, busy, memory)
            for pid in self._node.pids(self.index)[:1]
            for at_us, busy, memory in self._samples(newer_than_us)
            if busy or memory
        ]

    def compute_mode(self) -> ComputeMode:
        """Every process may compute."""
        self._require_answer()
        return "default"

    def instances(self) -> Sequence[Device] | None:
        """MIG is off."""
        self._require_answer()
        return None

    def _samples(self, newer_than_us: int) -> list[tuple[int, float, float]]:
        newest = math.floor(self._node.now() * SAMPLES_PER_SECOND)
        kept = range(max(newest - SAMPLES_KEPT + 1, 1), newest + 1)
        numbers = [number for number in kept if self._sample_us(number) > newer_than_us]
        if not numbers:
            return []
        edges = tuple(number / SAMPLES_PER_SECOND for number in (numbers[0] - 1, *numbers))
        totals = [state.totals for state in self._node.states(self.index, edges)]
        return [
            (
                self._sample_us(number),
                _per_cent((after.busy - before.busy) * SAMPLES_PER_SECOND),
                _per_cent((after.memory - before.memory) * SAMPLES_PER_SECOND),
            )
            for number, before, after in zip(numbers, totals, totals[1:], strict=False)
        ]

    def _throttle_reasons(self) -> frozenset[str]:
        """Return the only reason for low clocks in this scenario."""
        fault = self._node.scenario.fault
        if not isinstance(fault, HardwareFault):
            return frozenset({"sw_thermal"})
        return frozenset({fault.reason} if fault.reason else ())

    def _memory_used(self) -> int:
        return round((MEMORY_BYTES - _MEMORY_RESERVED) * self._node.memory_share(self.index) / _MIB) * _MIB

    def _sample_us(self, number: int) -> int:
        return round((self._node.epoch + number / SAMPLES_PER_SECOND) * 1e6)

    def _state(self, *signals: str) -> GpuState:
        self._require_answer(*signals)
        return self._node.state(self.index)

    def _require_answer(self, *signals: str) -> None:
        self._calls += 1
        self._node.answering[self.index].wait()
        if not self._driver.is_open:
            raise DriverUnavailable("not_open", "the simulated driver was closed")
        if self._node.lost(self.index):
            raise DeviceLost("gpu_lost", f"simulated GPU {self.index} has fallen off the bus")
        for signal in signals:
            self._served[signal] = "simulation"


def _labelled(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _per_cent(ratio: float) -> float:
    return round(min(max(ratio, 0.0), 1.0), 2)
