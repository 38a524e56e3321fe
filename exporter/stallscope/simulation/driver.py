"""A driver without hardware: the node's GPUs behind the same interface as NVML, each named as simulated.

Shapes (memory, clocks, limits, links) are those of an H100 80GB HBM3 as its own tools report them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

from stallscope.drivers.device import (
    Activity,
    Bar1,
    ClockKind,
    ComputeMode,
    Counters,
    Device,
    DeviceLost,
    DriverUnavailable,
    Event,
    GpuProcess,
    Health,
    Identity,
    Listener,
    Memory,
    PcieLink,
    PowerLimits,
    ProcessUtilization,
    Rejection,
    SampleKind,
    SystemInfo,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.sampling.clock import ScriptedClock
from stallscope.simulation.gpu import POWER_LIMIT_WATTS, SAMPLES_KEPT, SAMPLES_PER_SECOND, GpuState
from stallscope.simulation.node import Node, uuid
from stallscope.simulation.workload import PhaseEffect

MODEL = "Simulated NVIDIA H100 80GB HBM3"
_MIB = 1024**2
_MEMORY_TOTAL = 81_559 * _MIB
_MEMORY_RESERVED = 479 * _MIB
_BAR1_TOTAL = 131_072 * _MIB
_SM_HERTZ, _MEMORY_HERTZ, _VIDEO_HERTZ = 1_980e6, 2_619e6, 1_545e6
_CLOCK_STEP_HERTZ = 15e6
_NVLINKS = 18
_THROUGHPUT_SECONDS = 0.02
_SAMPLE_SIGNALS: Mapping[SampleKind, str] = {"gpu": "busy_seconds_total", "memory": "memory_busy_seconds_total"}
_LOST_XID = 79
"""The GPU has fallen off the bus."""


class SimulatedDriver:
    """A connection to the simulated node. Several may be open at a time, each with its own life."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._devices: tuple[SimulatedDevice, ...] = ()
        self._calls = 0
        self.is_open = False
        """Whether the connection stands."""

    @property
    def simulated(self) -> bool:
        """Always: no hardware is behind it."""
        return True

    @property
    def calls(self) -> int:
        """Questions about no certain GPU so far."""
        return self._calls

    def open(self) -> None:
        """Connect."""
        if not self.is_open:
            self._devices = tuple(SimulatedDevice(self, self._node, index) for index in range(self._node.gpu_count))
        self.is_open = True

    def close(self) -> None:
        """Let go; devices handed out stop answering."""
        self.is_open = False

    def system(self) -> SystemInfo:
        """A driver version that nobody mistakes for a real one."""
        self._require_open()
        return SystemInfo(driver_version="simulated", cuda_version="13.1")

    def devices(self) -> Sequence[Device]:
        """The GPUs that are not lost."""
        self._require_open()
        return [device for device in self._devices if not self._node.lost(device.index)]

    def listen(self, devices: Sequence[Device]) -> Listener:
        """Hear of GPUs that fall off the bus."""
        self._require_open()
        return SimulatedListener(self._node, {device.index: device for device in self._devices if device in devices})

    def _require_open(self) -> None:
        self._calls += 1
        if not self.is_open:
            raise DriverUnavailable("not_open", "the simulated driver is not open; call open() first")


class SimulatedListener:
    """Tells the Xid event of each GPU that is lost from now on."""

    def __init__(self, node: Node, devices: Mapping[int, Device]) -> None:
        self._node = node
        self.devices = list(devices.values())
        """The GPUs that it hears of."""
        self._awaited = {index: device for index, device in devices.items() if not node.lost(index)}
        self._closed = threading.Event()

    def wait(self, timeout: float) -> Sequence[Event]:
        """The GPUs that were lost since the call before; scripted time does not pass while one waits for it."""
        # A GPU that is lost while we wait is told of at the end of the wait, which is short.
        if not self._any_lost() and not isinstance(self._node.clock, ScriptedClock):
            self._closed.wait(timeout)
        lost = [index for index in self._awaited if self._node.lost(index)]
        return [Event(self._awaited.pop(index), _LOST_XID) for index in lost]

    def close(self) -> None:
        """Stop listening, and let a wait end."""
        self._closed.set()

    def _any_lost(self) -> bool:
        return any(self._node.lost(index) for index in self._awaited)


class SimulatedDevice:
    """One simulated GPU. Every call fails while it is lost and blocks while the driver is told to hang."""

    def __init__(self, driver: SimulatedDriver, node: Node, index: int) -> None:
        self.index = index
        self._driver = driver
        self._node = node
        self._calls = 0
        self._served: dict[str, str] = {}
        self._activity: tuple[float, PhaseEffect] | None = None  # when it was last asked for, and the totals then

    @property
    def served(self) -> Mapping[str, str]:
        """Every signal asked for comes from the simulation."""
        return dict(self._served)

    @property
    def calls(self) -> int:
        """Questions so far."""
        return self._calls

    @property
    def rejected(self) -> Mapping[Rejection, int]:
        """A simulated GPU talks no nonsense."""
        return {}

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

    def memory(self) -> Memory:
        """What the job holds of the frame buffer."""
        self._require_answer("memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes")
        return Memory(_MEMORY_TOTAL, self._memory_used(), _MEMORY_RESERVED)

    def bar1(self) -> Bar1:
        """The aperture maps what is in use, and a little more."""
        self._require_answer("bar1_total_bytes", "bar1_used_bytes")
        return Bar1(_BAR1_TOTAL, self._memory_used() + _MIB)

    def power(self) -> float:
        """Board power, to the milliwatt like the driver's."""
        return round(self._state("power_watts").watts, 3)

    def power_limits(self) -> PowerLimits:
        """The factory's limit is in force."""
        self._require_answer("power_limit_watts", "power_limit_default_watts")
        return PowerLimits(POWER_LIMIT_WATTS, POWER_LIMIT_WATTS)

    def counters(self) -> Counters:
        """Since the simulation began: the units in which an H100's driver counts."""
        self._require_answer(
            "energy_joules_total",
            "throttled_seconds_total",
            "pcie_receive_bytes_total",
            "pcie_transmit_bytes_total",
            "nvlink_receive_bytes_total",
            "nvlink_transmit_bytes_total",
        )
        state = self._node.state(self.index)
        nvlink = int(state.totals.nvlink)
        return Counters(
            energy=round(state.joules, 3),
            throttled={
                "sw_thermal": round(state.throttled_seconds, 6),
                "hw_thermal": 0.0,
                "power_cap": 0.0,
                "power_brake": 0.0,
                "sync_boost": 0.0,
            },
            memory_temperature=float(round(30.0 + 0.45 * state.celsius)),
            pcie_received=int(state.totals.pcie_received),
            pcie_transmitted=int(state.totals.pcie_transmitted),
            nvlink_received=nvlink,
            nvlink_transmitted=nvlink,
        )

    def health(self) -> Health:
        """Nothing is wrong with memory and links."""
        self._require_answer(
            "ecc_errors_total",
            "remapped_rows",
            "row_remap_pending",
            "row_remap_failed",
            "pcie_replays_total",
            "nvlink_errors_total",
            "nvlink_links",
            "nvlink_links_active",
        )
        return Health(
            ecc_errors={"corrected": 0, "uncorrected": 0},
            remapped_rows={"corrected": 0, "uncorrected": 0},
            row_remap_pending=False,
            row_remap_failed=False,
            pcie_replays=0,
            nvlink_errors={"replay": 0, "recovery": 0, "crc": 0},
            nvlink_links=_NVLINKS,
            nvlink_links_active=_NVLINKS,
        )

    def activity(self) -> Activity | None:
        """What the phases ask of the units, as means since the call before."""
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

    def temperature(self) -> float:
        """Whole degrees like the driver's."""
        return float(round(self._state("temperature_celsius").celsius))

    def temperature_limits(self) -> Mapping[str, float]:
        """The limits of an H100 SXM."""
        self._require_answer("temperature_limit_celsius")
        return {"slowdown": 89.0, "shutdown": 95.0, "gpu_max": 87.0, "memory_max": 95.0}

    def fans(self) -> Mapping[int, float]:
        """SXM modules have none of their own."""
        self._require_answer()
        raise Unsupported(f"{MODEL} has no fans")

    def clocks(self) -> Mapping[ClockKind, float]:
        """Down while throttled, in the driver's steps of 15 MHz; memory keeps its clock."""
        ratio = self._state("clock_hertz").clock_ratio
        sm = _SM_HERTZ - _CLOCK_STEP_HERTZ * round(_SM_HERTZ * (1.0 - ratio) / _CLOCK_STEP_HERTZ)
        video = _VIDEO_HERTZ - _CLOCK_STEP_HERTZ * round(_VIDEO_HERTZ * (1.0 - ratio) / _CLOCK_STEP_HERTZ)
        return {"sm": sm, "memory": _MEMORY_HERTZ, "graphics": sm, "video": video}

    def clocks_max(self) -> Mapping[ClockKind, float]:
        """The highest clocks of an H100 SXM."""
        self._require_answer("clock_max_hertz")
        return {"sm": _SM_HERTZ, "memory": _MEMORY_HERTZ, "graphics": _SM_HERTZ, "video": _VIDEO_HERTZ}

    def clocks_configured(self) -> Mapping[ClockKind, float]:
        """None is set below its maximum."""
        self._require_answer("clock_configured_hertz")
        return {}

    def throttle_reasons(self) -> frozenset[str]:
        """Heat is the only reason that is simulated."""
        return frozenset({"sw_thermal"} if self._state("throttled_seconds_total").throttled else ())

    def pcie_link(self) -> PcieLink:
        """Generation 5 with 16 lanes, both at their maximum."""
        self._require_answer(
            "pcie_link_generation", "pcie_link_generation_max", "pcie_link_width", "pcie_link_width_max"
        )
        return PcieLink(5, 5, 16, 16)

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
        """The job's process on this GPU."""
        self._require_answer("processes")
        return [GpuProcess(pid, self._memory_used()) for pid in self._node.pids(self.index)]

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:
        """All that the GPU does is the doing of the job's process, the first where there are several."""
        self._require_answer()
        return [
            ProcessUtilization(pid, at_us, busy, memory)
            for pid in self._node.pids(self.index)[:1]
            for at_us, busy, memory in self._samples(newer_than_us)
            if busy or memory
        ]

    def persistence_mode(self) -> bool:
        """On."""
        self._require_answer("persistence_mode")
        return True

    def compute_mode(self) -> ComputeMode:
        """Anybody may compute."""
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

    def _memory_used(self) -> int:
        return round((_MEMORY_TOTAL - _MEMORY_RESERVED) * self._node.memory_share(self.index) / _MIB) * _MIB

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


def _per_cent(ratio: float) -> float:
    return round(min(max(ratio, 0.0), 1.0), 2)
