"""A driver without hardware: the node's GPUs behind the same interface as NVML, each named as simulated.

Shapes (memory, clocks, limits, links) are those of an H100 80GB HBM3 as its own tools report them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stallscope.gpus.driver import (
    Bar1,
    ClockKind,
    Device,
    DeviceLost,
    DriverUnavailable,
    GpuProcess,
    Identity,
    Memory,
    PcieLink,
    PowerLimits,
    ProcessKind,
    SampleKind,
    SystemInfo,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.simulation.gpu import POWER_LIMIT_WATTS, SAMPLES_KEPT, SAMPLES_PER_SECOND, GpuState
from stallscope.simulation.node import Node

MODEL = "Simulated NVIDIA H100 80GB HBM3"
_MIB = 1024**2
_MEMORY_TOTAL = 81_559 * _MIB
_MEMORY_RESERVED = 479 * _MIB
_BAR1_TOTAL = 131_072 * _MIB
_SM_HERTZ, _MEMORY_HERTZ, _VIDEO_HERTZ = 1_980e6, 2_619e6, 1_545e6
_CLOCK_STEP_HERTZ = 15e6
_FIRST_PID = 4_194_305
"""Above the kernel's highest possible pid, so that a simulated process is never taken for a real one."""


def uuid(seed: int, gpu: int) -> str:
    """The UUID of a simulated GPU."""
    return f"GPU-simulated-{seed:08x}-{gpu:04d}"


def pid(gpu: int) -> int:
    """The process on a simulated GPU."""
    return _FIRST_PID + gpu


class SimulatedDriver:
    """A connection to the simulated node. Several may be open at a time, each with its own life."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.is_open = False
        """Whether the connection stands."""

    @property
    def simulated(self) -> bool:
        """Always: no hardware is behind it."""
        return True

    def open(self) -> None:
        """Connect."""
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
        return [
            SimulatedDevice(self, self._node, index)
            for index in range(self._node.gpu_count)
            if not self._node.lost(index)
        ]

    def _require_open(self) -> None:
        if not self.is_open:
            raise DriverUnavailable("not_open", "the simulated driver is not open; call open() first")


class SimulatedDevice:
    """One simulated GPU. Every call fails while it is lost and blocks while the driver is told to hang."""

    def __init__(self, driver: SimulatedDriver, node: Node, index: int) -> None:
        self._driver = driver
        self._node = node
        self._index = index

    def identity(self) -> Identity:
        """Labelled as simulated wherever a text is shown."""
        self._require_answer()
        return Identity(
            index=self._index,
            uuid=uuid(self._node.seed, self._index),
            model=MODEL,
            serial="simulated",
            pci_bus_id=f"00000000:{0x10 + 0x10 * self._index:02X}:00.0",
            vbios_version="simulated",
            architecture="Hopper",
            compute_capability="9.0",
        )

    def utilization(self) -> Utilization:
        """The mean of the last second, in whole per cent like the driver's."""
        self._require_answer()
        now = self._node.now()
        earlier, present = self._node.states(self._index, (max(now - 1.0, 0.0), now))
        seconds = min(max(now, 1e-3), 1.0)
        return Utilization(
            _per_cent((present.busy_seconds - earlier.busy_seconds) / seconds),
            _per_cent((present.memory_seconds - earlier.memory_seconds) / seconds),
        )

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """The means of successive sixths of a second, the newest hundred of them."""
        self._require_answer()
        newest = math.floor(self._node.now() * SAMPLES_PER_SECOND)
        kept = range(max(newest - SAMPLES_KEPT + 1, 1), newest + 1)
        numbers = [number for number in kept if self._sample_us(number) > newer_than_us]
        if not numbers:
            return []
        edges = tuple(number / SAMPLES_PER_SECOND for number in (numbers[0] - 1, *numbers))
        totals = [
            state.busy_seconds if kind == "gpu" else state.memory_seconds
            for state in self._node.states(self._index, edges)
        ]
        return [
            TimedSample(self._sample_us(number), _per_cent((after - before) * SAMPLES_PER_SECOND))
            for number, before, after in zip(numbers, totals, totals[1:], strict=False)
        ]

    def memory(self) -> Memory:
        """What the job holds of the frame buffer."""
        self._require_answer()
        return Memory(_MEMORY_TOTAL, self._memory_used(), _MEMORY_RESERVED)

    def bar1(self) -> Bar1:
        """The aperture maps what is in use, and a little more."""
        self._require_answer()
        return Bar1(_BAR1_TOTAL, self._memory_used() + _MIB)

    def power(self) -> float:
        """Board power, to the milliwatt like the driver's."""
        return round(self._state().watts, 3)

    def power_limits(self) -> PowerLimits:
        """The factory's limit is in force."""
        self._require_answer()
        return PowerLimits(POWER_LIMIT_WATTS, POWER_LIMIT_WATTS)

    def energy(self) -> float:
        """Energy since the simulation began, to the millijoule like the driver's."""
        return round(self._state().joules, 3)

    def temperatures(self) -> Mapping[str, float]:
        """Whole degrees like the driver's."""
        celsius = self._state().celsius
        return {"gpu": float(round(celsius)), "memory": float(round(30.0 + 0.45 * celsius))}

    def temperature_limits(self) -> Mapping[str, float]:
        """The limits of an H100 SXM."""
        self._require_answer()
        return {"slowdown": 89.0, "shutdown": 95.0, "gpu_max": 87.0, "memory_max": 95.0}

    def fans(self) -> Sequence[float]:
        """SXM modules have none of their own."""
        self._require_answer()
        raise Unsupported(f"{MODEL} has no fans")

    def clocks(self) -> Mapping[ClockKind, float]:
        """Down while throttled, in the driver's steps of 15 MHz; memory keeps its clock."""
        ratio = self._state().clock_ratio
        sm = _SM_HERTZ - _CLOCK_STEP_HERTZ * round(_SM_HERTZ * (1.0 - ratio) / _CLOCK_STEP_HERTZ)
        video = _VIDEO_HERTZ - _CLOCK_STEP_HERTZ * round(_VIDEO_HERTZ * (1.0 - ratio) / _CLOCK_STEP_HERTZ)
        return {"sm": sm, "memory": _MEMORY_HERTZ, "graphics": sm, "video": video}

    def clocks_max(self) -> Mapping[ClockKind, float]:
        """The highest clocks of an H100 SXM."""
        self._require_answer()
        return {"sm": _SM_HERTZ, "memory": _MEMORY_HERTZ, "graphics": _SM_HERTZ, "video": _VIDEO_HERTZ}

    def clocks_configured(self) -> Mapping[ClockKind, float]:
        """None is set below its maximum."""
        self._require_answer()
        return {}

    def throttle_reasons(self) -> frozenset[str]:
        """Heat is the only reason that is simulated."""
        return frozenset({"sw_thermal"} if self._state().throttled else ())

    def throttle_seconds(self) -> Mapping[str, float]:
        """The reasons that an H100's driver counts."""
        return {
            "sw_thermal": round(self._state().throttled_seconds, 6),
            "hw_thermal": 0.0,
            "power_cap": 0.0,
            "power_brake": 0.0,
            "sync_boost": 0.0,
        }

    def pcie_link(self) -> PcieLink:
        """Generation 5 with 16 lanes, both at their maximum."""
        self._require_answer()
        return PcieLink(5, 5, 16, 16)

    def processes(self, kind: ProcessKind) -> Sequence[GpuProcess]:
        """The job's process on this GPU, under a pid that no kernel hands out."""
        self._require_answer()
        return [GpuProcess(pid(self._index), self._memory_used())] if kind == "compute" else []

    def _memory_used(self) -> int:
        return round((_MEMORY_TOTAL - _MEMORY_RESERVED) * self._node.memory_share(self._index) / _MIB) * _MIB

    def _sample_us(self, number: int) -> int:
        return round((self._node.epoch + number / SAMPLES_PER_SECOND) * 1e6)

    def _state(self) -> GpuState:
        self._require_answer()
        return self._node.state(self._index)

    def _require_answer(self) -> None:
        self._node.answering[self._index].wait()
        if not self._driver.is_open:
            raise DriverUnavailable("not_open", "the simulated driver was closed")
        if self._node.lost(self._index):
            raise DeviceLost("gpu_lost", f"simulated GPU {self._index} has fallen off the bus")


def _per_cent(ratio: float) -> float:
    return round(min(max(ratio, 0.0), 1.0), 2)
