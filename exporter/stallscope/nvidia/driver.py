"""The narrow interface to a GPU driver: what sources may ask, in base units, and how it may fail.

Two implementations stand behind it: `nvidia.nvml` (the real driver, through pynvml) and `simulation.driver`. A method
raises `Unsupported` where this GPU or driver lacks the signal, `DeviceLost` where this one GPU is gone, and
`DriverUnavailable` where the whole driver is; any other failure is a plain `DriverError`. None returns a sentinel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

ClockKind = Literal["sm", "memory", "graphics", "video"]
SampleKind = Literal["gpu", "memory"]
ProcessKind = Literal["compute", "graphics"]


class DriverError(Exception):
    """A driver call failed. `reason` is a short word fit for a label; the message is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Unsupported(DriverError):
    """This GPU or driver does not have the signal; asking again will not help."""

    def __init__(self, message: str) -> None:
        super().__init__("not_supported", message)


class DeviceLost(DriverError):
    """This GPU has fallen off the bus, needs a reset, or is otherwise gone; others may be well."""


class DriverUnavailable(DriverError):
    """No library, no loaded driver, or a connection that must be opened again."""


@dataclass(frozen=True)
class SystemInfo:
    """What is the same for all GPUs of the node."""

    driver_version: str
    cuda_version: str
    """The highest CUDA version that the driver supports, such as `13.0`."""


@dataclass(frozen=True)
class Identity:
    """What a GPU is; constant while the driver stays loaded. Unknown texts are empty."""

    index: int
    uuid: str
    model: str
    serial: str
    pci_bus_id: str
    vbios_version: str
    architecture: str
    compute_capability: str


class Utilization(NamedTuple):
    """The driver's snapshot over its own window (1/6 to 1 s), as ratios."""

    gpu: float
    memory: float


class TimedSample(NamedTuple):
    """One entry of the driver's sample buffer."""

    timestamp_us: int
    """The driver's clock in microseconds: good for differences and for asking for newer ones, not wall clock."""
    value: float
    """A ratio 0-1."""


class Memory(NamedTuple):
    """Frame buffer in bytes. `reserved` is None where only the first version of the call exists."""

    total: int
    used: int
    reserved: int | None


class Bar1(NamedTuple):
    """BAR1 aperture in bytes."""

    total: int
    used: int


class PowerLimits(NamedTuple):
    """Watts; None where the driver does not tell."""

    enforced: float | None
    default: float | None


class PcieLink(NamedTuple):
    """Generation and lanes, now and at most."""

    generation: int
    generation_max: int
    width: int
    width_max: int


class GpuProcess(NamedTuple):
    """A process with a context on the GPU; `memory` in bytes, None where the driver does not tell."""

    pid: int
    memory: int | None


class Device(Protocol):
    """One GPU. Calls may block as long as the driver pleases; only sampling threads make them."""

    def identity(self) -> Identity:
        """What this GPU is."""

    def utilization(self) -> Utilization:
        """The snapshot utilisation."""

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """Buffered utilisation samples newer than the timestamp, oldest first; empty when there is nothing new."""

    def memory(self) -> Memory:
        """Frame buffer."""

    def bar1(self) -> Bar1:
        """BAR1 aperture."""

    def power(self) -> float:
        """Board power in watts."""

    def power_limits(self) -> PowerLimits:
        """Power limits in watts."""

    def energy(self) -> float:
        """Energy in joules since the driver was loaded."""

    def temperatures(self) -> Mapping[str, float]:
        """Celsius by sensor (`gpu`, `memory`); sensors that the GPU lacks are missing."""

    def temperature_limits(self) -> Mapping[str, float]:
        """Celsius by limit (`slowdown`, `shutdown`, `gpu_max`, `memory_max`); unknown limits are missing."""

    def fans(self) -> Sequence[float]:
        """Speed of each fan as a ratio."""

    def clocks(self) -> Mapping[ClockKind, float]:
        """Hertz by clock; missing where the GPU does not tell."""

    def clocks_max(self) -> Mapping[ClockKind, float]:
        """Hertz by clock."""

    def clocks_configured(self) -> Mapping[ClockKind, float]:
        """Hertz by clock, only clocks that are set below their maximum."""

    def throttle_reasons(self) -> frozenset[str]:
        """The throttle reasons in force, in the catalogue's words; idle and application clocks are not among them."""

    def throttle_seconds(self) -> Mapping[str, float]:
        """Cumulative seconds by throttle reason, for the reasons that the driver counts."""

    def pcie_link(self) -> PcieLink:
        """The PCIe link."""

    def processes(self, kind: ProcessKind) -> Sequence[GpuProcess]:
        """Processes with a context of that kind."""


class Driver(Protocol):
    """A connection to a driver. `open` and `close` may be called again and again."""

    @property
    def simulated(self) -> bool:
        """True where no real hardware is behind it."""

    def open(self) -> None:
        """Connect; raises DriverUnavailable with the reason where that fails. Does nothing when open."""

    def close(self) -> None:
        """Let go of the driver and its device files; never raises."""

    def system(self) -> SystemInfo:
        """Versions."""

    def devices(self) -> Sequence[Device]:
        """The GPUs that the driver shows now, by index; a GPU that can't be opened at all is left out."""
