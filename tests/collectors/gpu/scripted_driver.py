"""A driver whose every answer a test sets: for decisions that no library, real or stand-in, shows in isolation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stallscope.node.drivers.device import (
    Activity,
    ComputeMode,
    Device,
    DriverUnavailable,
    Event,
    GpuProcess,
    Identity,
    Listener,
    ProcessUtilization,
    Readings,
    Rejection,
    SampleKind,
    SystemInfo,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.node.drivers.signals import QUERIES

_COUNTERS = {
    "energy": "energy_joules_total",
    "throttled": "throttled_seconds_total",
    "pcie_received": "pcie_receive_bytes_total",
    "pcie_transmitted": "pcie_transmit_bytes_total",
    "nvlink_received": "nvlink_receive_bytes_total",
    "nvlink_transmitted": "nvlink_transmit_bytes_total",
    "temperature": "temperature_celsius",
}


def counters(**values: Any) -> Readings:
    """Return an answer to the query `counters`."""
    return {_COUNTERS[name]: value for name, value in values.items()}


def memory(total: int, used: int, reserved: int | None = None) -> Readings:
    """Return an answer to the query `memory`."""
    more = {} if reserved is None else {"memory_reserved_bytes": reserved}
    return {"memory_total_bytes": total, "memory_used_bytes": used, **more}


class ScriptedDevice(Device):
    """Lacks everything that the test did not set. `answers` holds values, exceptions, or functions of the arguments."""

    def __init__(self, index: int = 0, /, **answers: Any) -> None:
        self.answers = answers
        self.queried: list[str] = []
        self.uuid = f"GPU-{index}"
        self.index = index
        self.mig = ""
        self.parent_uuid = ""
        self.mute = False
        """True if the device does not support events."""
        self.rejections: dict[Rejection, int] = {}

    def _answer(self, name: str, *arguments: object) -> Any:
        self.queried.append(name)
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

    def read(self, query: str) -> Readings:
        answer = self._answer(query)
        names = QUERIES[query].keys()
        if isinstance(answer, Mapping) and answer.keys() <= names:
            return answer
        (name,) = names
        return {name: answer}

    def activity(self) -> Activity | None:
        answer: Activity | None = self._answer("activity")
        return answer

    def throttle_reasons(self) -> frozenset[str]:
        answer: frozenset[str] = self._answer("throttle_reasons")
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

    def compute_mode(self) -> ComputeMode:
        answer: ComputeMode = self._answer("compute_mode")
        return answer

    def instances(self) -> Sequence[Device] | None:
        answer: Sequence[Device] | None = self._answer("instances")
        return answer

    @property
    def calls(self) -> int:
        return len(self.queried)

    @property
    def rejected(self) -> Mapping[Rejection, int]:
        return self.rejections


class ScriptedListener:
    """Receive the events that the test puts into `events`."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = [device for device in devices if isinstance(device, ScriptedDevice) and not device.mute]
        self.events: list[Event] = []
        self.failure: Exception | None = None
        self.closed = False

    def wait(self, timeout: float) -> Sequence[Event]:
        if self.failure is not None:
            raise self.failure
        pending, self.events = self.events, []
        return pending

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
