"""A driver whose every answer a test sets: for decisions that no library, real or stand-in, shows in isolation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stallscope.drivers.device import (
    Activity,
    Bar1,
    ClockKind,
    ComputeMode,
    Counters,
    Device,
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


class ScriptedDevice:
    """Lacks everything that the test did not set. `answers` holds values, exceptions, or functions of the arguments."""

    def __init__(self, index: int = 0, /, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.uuid = f"GPU-{index}"
        self.index = index
        self.mig = ""
        self.parent_uuid = ""
        self.mute = False
        """Whether it refuses to be listened to."""
        self.rejections: dict[Rejection, int] = {}

    def _answer(self, name: str, *arguments: object) -> Any:
        self.asked.append(name)
        answer = self.answers.get(name, Unsupported(f"no {name}"))
        if isinstance(answer, Callable):  # type: ignore[arg-type]
            answer = answer(*arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def identity(self) -> Identity:
        if "identity" in self.answers:
            answer: Identity | None = self._answer("identity")
            if answer is not None:
                return answer
        model = "NVIDIA H100 80GB HBM3"
        return Identity(
            self.index, self.uuid, model, "", f"00:{self.index}", "", "", "", mig=self.mig, parent_uuid=self.parent_uuid
        )

    def utilization(self) -> Utilization:
        answer: Utilization = self._answer("utilization")
        return answer

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        answer: Sequence[TimedSample] = self._answer(f"{kind} samples", newer_than_us)
        return answer

    def memory(self) -> Memory:
        answer: Memory = self._answer("memory")
        return answer

    def bar1(self) -> Bar1:
        answer: Bar1 = self._answer("bar1")
        return answer

    def power(self) -> float:
        answer: float = self._answer("power")
        return answer

    def power_limits(self) -> PowerLimits:
        answer: PowerLimits = self._answer("power_limits")
        return answer

    def counters(self) -> Counters:
        answer: Counters = self._answer("counters")
        return answer

    def health(self) -> Health:
        answer: Health = self._answer("health")
        return answer

    def activity(self) -> Activity | None:
        answer: Activity | None = self._answer("activity")
        return answer

    def temperature(self) -> float:
        answer: float = self._answer("temperature")
        return answer

    def temperature_limits(self) -> Mapping[str, float]:
        answer: Mapping[str, float] = self._answer("temperature_limits")
        return answer

    def fans(self) -> Mapping[int, float]:
        answer: Mapping[int, float] = self._answer("fans")
        return answer

    def clocks(self) -> Mapping[ClockKind, float]:
        answer: Mapping[ClockKind, float] = self._answer("clocks")
        return answer

    def clocks_max(self) -> Mapping[ClockKind, float]:
        answer: Mapping[ClockKind, float] = self._answer("clocks_max")
        return answer

    def clocks_configured(self) -> Mapping[ClockKind, float]:
        answer: Mapping[ClockKind, float] = self._answer("clocks_configured")
        return answer

    def throttle_reasons(self) -> frozenset[str]:
        answer: frozenset[str] = self._answer("throttle_reasons")
        return answer

    def pcie_link(self) -> PcieLink:
        answer: PcieLink = self._answer("pcie_link")
        return answer

    def pcie_throughput(self) -> tuple[float, float]:
        answer: tuple[float, float] = self._answer("pcie_throughput")
        return answer

    def processes(self) -> Sequence[GpuProcess]:
        answer: Sequence[GpuProcess] = self._answer("processes")
        return answer

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:
        answer: Sequence[ProcessUtilization] = self._answer("process_utilization", newer_than_us)
        return answer

    def persistence_mode(self) -> bool:
        answer: bool = self._answer("persistence_mode")
        return answer

    def compute_mode(self) -> ComputeMode:
        answer: ComputeMode = self._answer("compute_mode")
        return answer

    def instances(self) -> Sequence[Device] | None:
        answer: Sequence[Device] | None = self._answer("instances")
        return answer

    @property
    def served(self) -> Mapping[str, str]:
        return {}

    @property
    def calls(self) -> int:
        return len(self.asked)

    @property
    def rejected(self) -> Mapping[Rejection, int]:
        return self.rejections


class ScriptedListener:
    """Hears what the test puts into `events`."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = [device for device in devices if isinstance(device, ScriptedDevice) and not device.mute]
        self.events: list[Event] = []
        self.failure: Exception | None = None
        self.closed = False

    def wait(self, timeout: float) -> Sequence[Event]:
        if self.failure is not None:
            raise self.failure
        heard, self.events = self.events, []
        return heard

    def close(self) -> None:
        self.closed = True


class ScriptedDriver:
    """Shows the devices that the test gives it."""

    simulated = False

    def __init__(self, *devices: ScriptedDevice) -> None:
        self.shown = list(devices)
        self.refusal: DriverUnavailable | None = None
        self.opened = 0
        self.is_open = False
        self.listeners: list[ScriptedListener] = []
        self.deaf = False

    def open(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        if not self.is_open:
            self.opened += 1
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def system(self) -> SystemInfo:
        return SystemInfo("590.48.01", "13.1")

    def devices(self) -> Sequence[Device]:
        if not self.is_open:
            raise DriverUnavailable("uninitialized", "not open")
        return list(self.shown)

    def listen(self, devices: Sequence[Device]) -> Listener:
        if self.deaf:
            raise Unsupported("no events here")
        self.listeners.append(ScriptedListener(devices))
        return self.listeners[-1]

    @property
    def calls(self) -> int:
        return self.opened
