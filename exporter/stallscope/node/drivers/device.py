"""The interface to a GPU driver: what collectors may query, in base units, and the errors that it raises.

Implemented by `drivers.nvidia.nvml` (through pynvml), `drivers.amd.kernel` (through the kernel's files) and
`simulation.driver`. A method raises `Unsupported` if the signal is not supported, `DeviceLost` if this one
GPU is gone, and `DriverUnavailable` if the whole driver is; any other failure is a plain `DriverError`. No method
returns a sentinel: implausible values are left out and counted in `rejected`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

SampleKind = Literal["gpu", "memory", "encoder", "decoder", "jpeg", "ofa"]
ENGINES: tuple[SampleKind, ...] = ("encoder", "decoder", "jpeg", "ofa")
"""Fixed-function engines; each has its own kind of samples."""
ProcessKind = Literal["compute", "graphics", "mps"]
ComputeMode = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]
"""Who may compute on a GPU: all processes, one thread, no process, one process."""
Readings = Mapping[str, "float | Mapping[str, float]"]
"""Values of a query's signals by name, for a signal with a label of its own by label; unknown values are missing."""
Rejection = Literal[
    "sentinel", "not_a_number", "out_of_range", "zero_timestamp", "future_timestamp", "backwards", "malformed_text"
]
"""Reason why a value of the driver was rejected."""


class DriverError(Exception):
    """A driver call failed. `reason` is a short word fit for a label; the message is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Unsupported(DriverError):
    """This GPU or driver does not support the signal, permanently or for now."""

    def __init__(self, message: str) -> None:
        super().__init__("not_supported", message)


class DeviceLost(DriverError):
    """This GPU has fallen off the bus, needs a reset, or is otherwise gone; other GPUs may work."""


class DriverUnavailable(DriverError):
    """No library, no loaded driver, or a connection that must be opened again."""


@dataclass(frozen=True)
class SystemInfo:
    """Versions that all GPUs of the node share."""

    driver_version: str
    cuda_version: str
    """The highest CUDA version that the driver supports, such as `13.0`."""


@dataclass(frozen=True)
class Identity:
    """Identity of a GPU; constant while the driver stays loaded. Unknown strings are empty."""

    index: int
    uuid: str
    model: str
    serial: str
    pci_bus_id: str
    vbios_version: str
    architecture: str
    compute_capability: str
    mig: str = ""
    """Profile of a MIG instance, such as `1g.10gb`; its `index` and `pci_bus_id` are those of the GPU it belongs to."""
    parent_uuid: str = ""
    """UUID of the GPU that contains a MIG instance; empty for a whole GPU."""
    gpu_instance: int | None = None
    """Number of the GPU instance that contains a MIG instance; several compute instances may share one."""


class Utilization(NamedTuple):
    """The driver's snapshot over its own window (1/6 to 1 s), as ratios."""

    gpu: float
    memory: float


class TimedSample(NamedTuple):
    """One entry of the driver's sample buffer."""

    timestamp_us: int
    """The driver's clock in microseconds: for differences and for requesting newer samples; not the wall clock."""
    value: float
    """A ratio 0-1."""


class GpuProcess(NamedTuple):
    """A process with a context on the GPU; `memory` in bytes, None if unknown."""

    pid: int
    memory: int | None
    kind: ProcessKind = "compute"


class ProcessUtilization(NamedTuple):
    """How busy one process kept the GPU up to the timestamp, as ratios."""

    pid: int
    timestamp_us: int
    """The driver's clock, as in `TimedSample`."""
    gpu: float
    memory: float


class Activity(NamedTuple):
    """Mean ratios since the previous sample (NVIDIA GPM); None or missing if unknown."""

    seconds: float
    """Length of that time; 0 for the first sample, which holds nothing else."""
    graphics: float | None = None
    """Share of time with any work; serves as utilisation on a MIG instance."""
    sm: float | None = None
    occupancy: float | None = None
    dram: float | None = None
    pipes: Mapping[str, float] = {}
    """By `pipe` of the catalogue."""
    engines: Mapping[str, float] = {}
    """By `engine` of the catalogue."""
    pcie_received: float | None = None
    """Bytes in that time."""
    pcie_transmitted: float | None = None
    nvlink_received: float | None = None
    nvlink_transmitted: float | None = None


class Event(NamedTuple):
    """Event that the driver reports without being polled."""

    device: Device | None
    """The GPU (never a MIG instance); None if the driver does not name it."""
    xid: int | None
    """The code of an Xid event; None for a change of the MIG configuration."""


class Listener(Protocol):
    """Registered for events of some GPUs. Belongs to one thread."""

    @property
    def devices(self) -> Sequence[Device]:
        """GPUs whose events it receives; GPUs that report no events are left out."""

    def wait(self, timeout: float) -> Sequence[Event]:
        """Return pending events, or wait up to `timeout` seconds for one; empty if none arrives."""

    def close(self) -> None:
        """Stop listening; never raises."""


class Device:
    """One GPU. A driver overrides what its GPUs have; all else is unsupported.

    Calls may block for as long as the driver pleases; only sampling threads make them.
    """

    def identity(self) -> Identity:
        """Return the identity of this GPU."""
        raise NotImplementedError

    def read(self, query: str) -> Readings:
        """The signals of a query of `signals.QUERIES`.

        Raises:
            Unsupported: the GPU has none of them.
            DriverError: it has, but none could be read now.
        """
        raise Unsupported(f"this driver does not report {query}")

    def utilization(self) -> Utilization:
        """The snapshot utilisation."""
        raise Unsupported("this driver does not report utilisation")

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:  # noqa: ARG002
        """Buffered utilisation samples newer than the timestamp, oldest first; empty when there is nothing new."""
        raise Unsupported(f"this driver keeps no samples of {kind} utilisation")

    def activity(self) -> Activity | None:
        """Return the activity since the previous call; None if another GPU is being sampled: call again later."""
        raise Unsupported("this driver does not report which units are active")

    def throttle_reasons(self) -> frozenset[str]:
        """The throttle reasons in force, in the catalogue's words; idle and application clocks are not among them."""
        raise Unsupported("this driver does not report throttle reasons")

    def pcie_throughput(self) -> tuple[float, float]:
        """Bytes a second received and transmitted, measured on the spot: takes tens of milliseconds."""
        raise Unsupported("this driver does not measure PCIe throughput")

    def processes(self) -> Sequence[GpuProcess]:
        """Return the processes with a context; a process with several kinds is listed once for each kind."""
        raise Unsupported("this driver does not list processes")

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:  # noqa: ARG002
        """Samples by process newer than the timestamp, oldest first; idle processes have none."""
        raise Unsupported("this driver does not report utilisation by process")

    def compute_mode(self) -> ComputeMode:
        """Return who may compute on the GPU, as set by its administrator."""
        raise Unsupported("this driver has no compute mode")

    def instances(self) -> Sequence[Device] | None:
        """Return the MIG instances of this GPU, as the same objects while they exist; None if MIG is off."""
        return None

    @property
    def served(self) -> Mapping[str, str]:
        """Driver call that serves each signal queried so far, by signal (a family's name without its prefix)."""
        return {}

    @property
    def calls(self) -> int:
        """Driver calls made for this GPU so far."""
        return 0

    @property
    def rejected(self) -> Mapping[Rejection, int]:
        """Implausible values that this GPU reported, counted by reason."""
        return {}


class Driver(Protocol):
    """A connection to a driver. `open` and `close` may be called repeatedly."""

    @property
    def simulated(self) -> bool:
        """True where no real hardware is behind it."""

    def open(self) -> None:
        """Connect; raises DriverUnavailable with the reason where that fails. Does nothing when open."""

    def close(self) -> None:
        """Close the driver and its device files; never raises."""

    def system(self) -> SystemInfo:
        """Versions."""

    def devices(self) -> Sequence[Device]:
        """The GPUs that the driver shows now, by index; a GPU that can't be opened is left out.

        A GPU stays the same object for the whole session.
        """

    def listen(self, devices: Sequence[Device]) -> Listener:
        """Register for events of these GPUs; earlier events are not reported.

        Raises:
            Unsupported: this driver reports no events.
        """

    @property
    def calls(self) -> int:
        """Driver calls so far that concern no particular GPU."""
