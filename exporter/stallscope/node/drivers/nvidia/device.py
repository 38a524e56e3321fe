"""One NVIDIA GPU behind the driver interface: which driver calls a query makes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.node.drivers.device import (
    Activity,
    ComputeMode,
    Device,
    DeviceLost,
    DriverError,
    GpuProcess,
    Identity,
    ProcessKind,
    ProcessUtilization,
    Readings,
    Rejection,
    SampleKind,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.node.drivers.nvidia.fields import NVLINKS, Answers, FieldBatch, LinkHealth, LinkTraffic
from stallscope.node.drivers.nvidia.gpm import ActivityMeter
from stallscope.node.drivers.nvidia.library import Handle
from stallscope.node.drivers.nvidia.session import NotFound, Session
from stallscope.node.drivers.nvidia.signals import Call, fields, rows
from stallscope.node.drivers.plausibility import Plausibility
from stallscope.node.drivers.retry import Retry

if TYPE_CHECKING:
    from stallscope.node.drivers.nvidia.mig import MigInstances

_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_SAMPLES: Mapping[SampleKind, int] = {"gpu": 1, "memory": 2, "encoder": 3, "decoder": 4, "jpeg": 8, "ofa": 9}
_SAMPLE_SIGNALS: Mapping[SampleKind, str] = {"gpu": "busy_seconds_total", "memory": "memory_busy_seconds_total"}
_ONLY_CALLS: Mapping[str, str] = {
    "processes": "nvmlDeviceGetComputeRunningProcesses",
    "xid_events_total": "nvmlEventSetWait",
    "xid_last_timestamp_seconds": "nvmlEventSetWait",
}
"""Calls of signals that are not plain numbers, and that have the same call on each GPU and driver."""
_PROCESS_LISTS: Mapping[ProcessKind, str] = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_COMPUTE_MODES: Sequence[ComputeMode] = ("default", "exclusive_thread", "prohibited", "exclusive_process")
"""By the number of nvmlComputeMode_t."""
_PCIE_TRANSMITTED, _PCIE_RECEIVED = 0, 1

# Bits of nvmlClocksEventReasons. The general slowdown bit is set next to the one with the cause; idle (0x1),
# application clocks (0x2) and display (0x100) are harmless. Bits that only newer drivers have are `other`.
_THROTTLE_BITS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
_NO_THROTTLING = 0x1 | 0x2 | 0x100
_NAMED_BITS = sum(_THROTTLE_BITS) | _NO_THROTTLING
_MOST_REASONS = (1 << 48) - 1

_MOST_BYTES = 1 << 44
_MOST_FANS = 64
_MOST_FAN_PERCENT = 200
_MOST_KILOBYTES = 5 * 10**8
_MOST_PID = 1 << 30
_MEMORY_UNAVAILABLE = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE, which nvmlProcessInfo_t.usedGpuMemory is documented to hold."""
_LINKS: Mapping[str, type[LinkTraffic | LinkHealth]] = {"counters": LinkTraffic, "health": LinkHealth}
"""Readers of the fields of NVLinks, by query."""


class Surroundings(NamedTuple):
    """State shared by all GPUs of a session."""

    session: Session
    monotonic: Callable[[], float]
    wall: Callable[[], float]


class NvmlDevice(Device):
    """One GPU."""

    def __init__(self, surroundings: Surroundings, index: int, retry: Retry) -> None:
        """Take the GPU's index; the driver is not queried yet.

        Args:
            surroundings: the session.
            index: the GPU's place in the driver's list.
            retry: refusals of the GPU's functions, fields and metrics; may come from an earlier session.
        """
        self.surroundings = surroundings
        self._retry = retry
        self._session = surroundings.session
        self._index = index
        self._calls = 0
        self._handle: Handle | None = None
        self._identity: Identity | None = None
        self._texts: dict[str, str] = {}
        """Fields of the identity that the driver has answered."""
        self._links_seen = 0
        """NVLinks whose state was ever read by the older call."""
        self.replaced = False
        """True if another GPU now has its place."""
        self._plausibility = Plausibility(surroundings.monotonic, surroundings.wall)
        self._served: dict[str, str] = {}
        self._lasting: dict[tuple[Any, ...], float] = {}
        """Values that stay the same, by their call."""
        self._instances: MigInstances | None = None
        self._meter: ActivityMeter | None = None
        self._retired = False
        self.forget()

    def forget(self) -> None:
        """Query all functions again, such as after a change of the MIG mode."""
        self._retry.forget()
        self._batches: dict[str, tuple[FieldBatch | None, LinkTraffic | LinkHealth | None]] = {}
        if self._meter is not None:
            self._meter.release()
            self._meter = None

    def retire(self) -> None:
        """Release the driver's handles: another object, or none, represents this GPU from now on."""
        self._retired = True
        if self._meter is not None:
            self._meter.close()
        if self._instances is not None:
            self._instances.retire()

    def identity(self) -> Identity:
        """Return the GPU's identity; each part of it is queried until it is known."""
        self._identity = self._query_identity()
        return self._identity

    @property
    def known_identity(self) -> Identity:
        """The identity as last read, without a driver call unless it was never read."""
        return self._identity if self._identity is not None else self.identity()

    def utilization(self) -> Utilization:
        """The driver's snapshot over its own window."""
        rates = self.call("nvmlDeviceGetUtilizationRates")
        needed = self._plausibility.needed
        found = Utilization(
            gpu=needed("GPU utilisation", rates.gpu, 100) / 100,
            memory=needed("memory utilisation", rates.memory, 100) / 100,
        )
        for signal in _SAMPLE_SIGNALS.values():
            self._served.setdefault(signal, "nvmlDeviceGetUtilizationRates")
        return found

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """Buffered samples newer than the timestamp, oldest first; without impossible ones."""
        try:
            entries = self.call("nvmlDeviceGetSamples", _SAMPLES[kind], newer_than_us)
        except NotFound:
            entries = []
        self._served[_SAMPLE_SIGNALS.get(kind, "engine_busy_seconds_total")] = "nvmlDeviceGetSamples"
        number = self._plausibility.number
        found: list[TimedSample] = []
        for timestamp, percent in self._plausibility.timely(entries):
            if timestamp > newer_than_us and number(percent, 100) is not None:
                found.append(TimedSample(timestamp, percent / 100))
        return found

    def read(self, query: str) -> Readings:
        """Return the signals of a query: those of its table, and those that need code."""
        rejected, self._retry.refusal = self._plausibility.total, ""
        batch, links = self._batch(query)
        answers = batch.query() if batch is not None else {}
        found = self._read_table(query, answers)
        if batch is not None and links is not None:
            found |= links.read(answers, batch, self._plausibility, self._served)
        if isinstance(links, LinkHealth) and "nvlink_links" not in found and not links.counts_links:
            found |= self._link_states()
        elif query == "fans":
            found |= self._fans()
        elif query == "clocks_configured" and found:
            found = self._lowered_clocks(found)
        if found:
            return found
        if self._plausibility.total > rejected:
            raise DriverError("implausible", f"this GPU reported no plausible {query}")
        raise Unsupported(self._retry.refusal or f"this GPU does not report {query}")

    def activity(self) -> Activity | None:
        """Return GPM since the previous call; None while another GPU is sampled."""
        if self._retired:
            return None
        if self._meter is None:
            self._meter = self._activity_meter()
        return self._meter.read()

    def throttle_reasons(self) -> frozenset[str]:
        """Throttle reasons in force."""
        bits = self._optional("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.call("nvmlDeviceGetCurrentClocksThrottleReasons")
        bits = self._plausibility.needed("throttle reasons", bits, _MOST_REASONS)
        self._served.setdefault("throttled_seconds_total", "nvmlDeviceGetCurrentClocksEventReasons")
        found = {reason for bit, reason in _THROTTLE_BITS.items() if bits & bit}
        return frozenset(found | {"other"} if bits & ~_NAMED_BITS else found)

    def pcie_throughput(self) -> tuple[float, float]:
        """Received and transmitted; the driver counts for 20 ms a direction. NVML's KB are taken as KiB."""
        received, transmitted = (
            self._plausibility.needed("PCIe throughput", self.call("nvmlDeviceGetPcieThroughput", way), _MOST_KILOBYTES)
            for way in (_PCIE_RECEIVED, _PCIE_TRANSMITTED)
        )
        return received * 1024.0, transmitted * 1024.0

    def processes(self) -> Sequence[GpuProcess]:
        """Return the processes with a context, with one call for each kind."""
        found: list[GpuProcess] = []
        for kind, name in _PROCESS_LISTS.items():
            # Without the list of those that compute, the GPU would look unused.
            entries = self.call(name) if kind == "compute" else self._optional(name)
            for pid, used in entries or ():
                if self._plausibility.number(pid, _MOST_PID, least=1) is None:
                    continue
                memory = None if used in (None, _MEMORY_UNAVAILABLE) else self._plausibility.number(used, _MOST_BYTES)
                found.append(GpuProcess(pid, memory, kind))
        return found

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:
        """Samples by process, oldest first."""
        try:
            answer = self.call("nvmlDeviceGetProcessUtilization", newer_than_us)
        except NotFound:
            return []
        number = self._plausibility.number
        # The driver leaves entries that it has no process for at zero.
        entries = [entry for entry in answer if entry[0] or entry[1]]
        return [
            ProcessUtilization(pid, timestamp, gpu / 100, memory / 100)
            for pid, timestamp, gpu, memory, *_ in self._plausibility.timely(entries, place=1)
            if timestamp > newer_than_us
            and number(pid, _MOST_PID, least=1) is not None
            and number(gpu, 100) is not None
            and number(memory, 100) is not None
        ]

    def compute_mode(self) -> ComputeMode:
        """Return who may compute on the GPU."""
        number: int = self.call("nvmlDeviceGetComputeMode")
        return _COMPUTE_MODES[self._plausibility.needed("compute mode", number, len(_COMPUTE_MODES) - 1)]

    def instances(self) -> Sequence[Device] | None:
        """Return the MIG instances; None if MIG is off or unsupported."""
        if self._instances is None:
            # It makes devices of its own, and so imports this module.
            from stallscope.node.drivers.nvidia.mig import MigInstances

            self._instances = MigInstances(self)
        return self._instances.read()

    @property
    def served(self) -> Mapping[str, str]:
        """See `Device`."""
        return {**_ONLY_CALLS, **self._served}

    @property
    def calls(self) -> int:
        """See `Device`."""
        return self._calls

    @property
    def rejected(self) -> Mapping[Rejection, int]:
        """See `Device`."""
        return self._plausibility.counts

    @property
    def handle(self) -> Handle:
        """Return the driver's handle, which takes milliseconds: queried once, and again after the GPU was lost."""
        if self._handle is None:
            try:
                handle = self.query("nvmlDeviceGetHandleByIndex", self._index)
            except DriverError as problem:
                if problem.reason == "invalid_argument" and self._identity is not None:
                    raise DeviceLost("gpu_lost", f"there is no GPU at index {self._index} any more") from None
                raise
            if self._identity is not None:
                # After a loss, another GPU may have this index: its values belong to another UUID.
                self.replaced = self._plausibility.text(self.query("nvmlDeviceGetUUID", handle)) != self._identity.uuid
                if self.replaced:
                    raise DeviceLost("gpu_lost", f"another GPU is at index {self._index} now")
            self._handle = handle
        return self._handle

    @property
    def index(self) -> int:
        """Position in the driver's list."""
        return self._index

    def reject(self, reason: Rejection) -> None:
        """Count a response of this GPU that did not come from a call."""
        self._plausibility.reject(reason)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of this GPU's."""
        try:
            return self.query(name, self.handle, *arguments)
        except DeviceLost:
            self._handle = None
            raise

    def query(self, name: str, *arguments: Any) -> Any:
        """Call any function; the call is counted for this GPU."""
        self._calls += 1
        return self._session.call(name, *arguments)

    def _query_identity(self) -> Identity:
        text, part = self._plausibility.text, self._text
        found = Identity(
            index=self._index,
            compute_capability=part("nvmlDeviceGetCudaComputeCapability", lambda answer: f"{answer[0]}.{answer[1]}"),
            pci_bus_id=part("nvmlDeviceGetPciInfo", lambda answer: text(answer.busId)),
            architecture=part("nvmlDeviceGetArchitecture", lambda answer: _ARCHITECTURES.get(answer, f"NVML {answer}")),
            uuid=part("nvmlDeviceGetUUID", text, needed=True),
            model=part("nvmlDeviceGetName", text, needed=True),
            serial=part("nvmlDeviceGetSerial", text),
            vbios_version=part("nvmlDeviceGetVbiosVersion", text),
        )
        if not found.uuid:
            raise DriverError("implausible", f"GPU {self._index} gives no UUID")
        return found

    def _text(self, name: str, text_of: Callable[[Any], str], *, needed: bool = False) -> str:
        """Return one text of the identity, queried until the driver returns a valid one; empty before."""
        known = self._texts.get(name)
        if known:
            return known
        answer = self.call(name) if needed else self._optional(name)
        rejected = self._plausibility.total
        found = "" if answer is None else text_of(answer)
        if self._plausibility.total == rejected:  # a malformed text is queried again
            self._texts[name] = found
        return found

    def _activity_meter(self) -> ActivityMeter:
        if not self.call("nvmlGpmQueryDeviceSupport"):
            raise Unsupported("this GPU has no GPM")
        return self._meter_of(lambda sample: self.call("nvmlGpmSampleGet", sample))

    def _meter_of(self, take: Callable[[Handle], None]) -> ActivityMeter:
        return ActivityMeter(
            self._session, self.query, take, self._plausibility, self._served, self.surroundings.monotonic, self._retry
        )

    def _read_table(self, query: str, fields: Answers) -> dict[str, float | Mapping[str, float]]:
        """Return what the sources in `signals.py` answer: a field, or else a call.

        Args:
            query: the query.
            fields: answers of its batch of fields.
        """
        number, served = self._plausibility.number, self._served
        answers: dict[tuple[Any, ...], Any] = {}
        found: dict[str, Any] = {}
        for signal, label, limit, origins in rows(query):
            if limit and limit not in found:
                continue
            for key, call, (times, over), zero_is_missing, least, most, source in origins:
                answer = fields.get(key) if call is None else self._answer(call, key, answers)
                if answer is None:
                    continue  # an older driver may know it by the next source
                value = number(answer, found[limit] if limit else most, least)
                if value is None or (zero_is_missing and not value):
                    break
                if call is not None and call.lasting:
                    self._lasting[key] = value
                served[signal] = source
                value = value * times if over == 1 else value * times / over
                if label:
                    found.setdefault(signal, {})[label] = value
                else:
                    found[signal] = value
                break
        return found

    def _answer(self, call: Call, key: tuple[Any, ...], answers: dict[tuple[Any, ...], Any]) -> Any:
        """Return the number of a call, which is made once for all of its values; None while it is refused."""
        if key in self._lasting:
            return self._lasting[key]
        if key not in answers:
            answers[key] = self._optional(*key)
        return None if answers[key] is None else call.take(answers[key])

    def _batch(self, query: str) -> tuple[FieldBatch | None, LinkTraffic | LinkHealth | None]:
        """Return the batch of a query's fields, and the reader of its NVLink fields."""
        known = self._batches.get(query)
        if known is None:
            links = _LINKS[query]() if query in _LINKS else None
            wanted = (*fields(query), *(links.fields if links is not None else ()))
            batch = FieldBatch(self.call, wanted, self._retry, self.surroundings.monotonic) if wanted else None
            known = self._batches[query] = (batch, links)
        return known

    def _link_states(self) -> dict[str, float]:
        """Count NVLinks by the call of older drivers, a call for each link."""
        name = "nvmlDeviceGetNvLinkState"
        states: list[int] = []
        for link in range(NVLINKS):
            state = self._optional_number(name, link, most=1)
            if state is None:
                break  # links are numbered without gaps
            states.append(state)
        self._links_seen = max(self._links_seen, len(states))
        if not states or len(states) < self._links_seen:
            return {}
        self._served["nvlink_links"] = self._served["nvlink_links_active"] = name
        return {"nvlink_links": len(states), "nvlink_links_active": sum(states)}

    def _fans(self) -> dict[str, Mapping[str, float]]:
        """Speed of each fan over its maximum."""
        count = self._optional_number("nvmlDeviceGetNumFans", most=_MOST_FANS)
        if count is None:
            name = "nvmlDeviceGetFanSpeed"
            speeds = [self._optional_number(name, most=_MOST_FAN_PERCENT)]
        else:
            name = "nvmlDeviceGetFanSpeed_v2"
            speeds = [self._optional_number(name, fan, most=_MOST_FAN_PERCENT) for fan in range(count)]
        found = {str(fan): percent / 100 for fan, percent in enumerate(speeds) if percent is not None}
        self._served["fan_speed_ratio"] = name
        return {"fan_speed_ratio": found} if found else {}

    def _lowered_clocks(self, configured: Readings) -> dict[str, float | Mapping[str, float]]:
        """Return application clocks below the maximum; an empty result is valid too."""
        name = "clock_configured_hertz"
        highest = self._read_table("clocks_max", {}).get("clock_max_hertz", {})
        clocks = configured[name]
        assert isinstance(clocks, Mapping)
        assert isinstance(highest, Mapping)
        return {name: {clock: hertz for clock, hertz in clocks.items() if 0 < hertz < highest.get(clock, 0)}}

    def _optional(self, name: str, *arguments: Any) -> Any:
        """Return the answer, or None while the GPU refuses it."""
        key = (name, *arguments)
        return self._retry.optional(key, self.surroundings.monotonic(), self.call, *key)

    def _optional_number(self, name: str, *arguments: Any, most: int, least: int = 0) -> int | None:
        return self._plausibility.number(self._optional(name, *arguments), most, least)
