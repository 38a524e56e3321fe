"""One NVIDIA GPU behind the driver interface: what each question costs in driver calls, and in which order they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.drivers.device import (
    Activity,
    Bar1,
    ClockKind,
    ComputeMode,
    Counters,
    Device,
    DeviceLost,
    DriverError,
    GpuProcess,
    Health,
    Identity,
    Memory,
    PcieLink,
    PowerLimits,
    ProcessKind,
    ProcessUtilization,
    Rejection,
    SampleKind,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.drivers.nvidia.fields import (
    MOST_CELSIUS,
    MOST_COUNT,
    MOST_MILLIJOULES,
    MOST_ROWS,
    NVLINKS,
    CounterFields,
    Field,
    FieldBatch,
    HealthFields,
)
from stallscope.drivers.nvidia.gpm import ActivityMeter
from stallscope.drivers.nvidia.library import Handle
from stallscope.drivers.nvidia.session import NotFound, Session
from stallscope.drivers.plausibility import Scrutiny
from stallscope.drivers.retry import Retry

if TYPE_CHECKING:
    from stallscope.drivers.nvidia.mig import MigInstances

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
_CLOCKS: Mapping[ClockKind, int] = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_TEMPERATURE_LIMITS = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
_SAMPLES: Mapping[SampleKind, int] = {"gpu": 1, "memory": 2, "encoder": 3, "decoder": 4, "jpeg": 8, "ofa": 9}
_SAMPLE_SIGNALS: Mapping[SampleKind, str] = {"gpu": "busy_seconds_total", "memory": "memory_busy_seconds_total"}
_ONLY_CALLS: Mapping[str, str] = {
    "memory_total_bytes": "nvmlDeviceGetMemoryInfo",
    "memory_used_bytes": "nvmlDeviceGetMemoryInfo",
    "memory_reserved_bytes": "nvmlDeviceGetMemoryInfo",
    "bar1_total_bytes": "nvmlDeviceGetBAR1MemoryInfo",
    "bar1_used_bytes": "nvmlDeviceGetBAR1MemoryInfo",
    "power_watts": "nvmlDeviceGetPowerUsage",
    "power_limit_watts": "nvmlDeviceGetEnforcedPowerLimit",
    "power_limit_default_watts": "nvmlDeviceGetPowerManagementDefaultLimit",
    "temperature_celsius": "nvmlDeviceGetTemperature",
    "temperature_limit_celsius": "nvmlDeviceGetTemperatureThreshold",
    "fan_speed_ratio": "nvmlDeviceGetFanSpeed",
    "clock_hertz": "nvmlDeviceGetClockInfo",
    "clock_max_hertz": "nvmlDeviceGetMaxClockInfo",
    "clock_configured_hertz": "nvmlDeviceGetApplicationsClock",
    "pcie_link_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_link_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_link_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_link_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
    "persistence_mode": "nvmlDeviceGetPersistenceMode",
    "xid_events_total": "nvmlEventSetWait",
    "xid_last_timestamp_seconds": "nvmlEventSetWait",
}
"""Calls of the signals that there is one call for, whatever the GPU and driver."""
_PROCESS_LISTS: Mapping[ProcessKind, str] = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_ECC_KINDS = {"corrected": 0, "uncorrected": 1}
_VOLATILE = 0
_COMPUTE_MODES: Sequence[ComputeMode] = ("default", "exclusive_thread", "prohibited", "exclusive_process")
"""By the number of nvmlComputeMode_t."""
_RETIREMENT_CAUSES = {"single_bit": 0, "double_bit": 1}
_PCIE_TRANSMITTED, _PCIE_RECEIVED = 0, 1

# Bits of nvmlClocksEventReasons. The general slowdown bit stands beside the one that names its cause; idle (0x1),
# application clocks (0x2) and display (0x100) are nobody's trouble. Bits that only newer drivers have are `other`.
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

# Bounds beyond which a number is implausible, by far: ten kilowatts, fifty gigahertz, sixteen tebibytes.
_MOST_MILLIWATTS = 10**7
_MOST_MEGAHERTZ = 50_000
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 44
_MOST_FANS = 64
_MOST_FAN_PERCENT = 200  # NVML allows more than 100: relative to the maximum the board was designed for
_MOST_GENERATION = 16
_MOST_LANES = 32
_MOST_KILOBYTES = 5 * 10**8
_MOST_PID = 1 << 30
_NO_MEMORY_TOLD = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE, which nvmlProcessInfo_t.usedGpuMemory is documented to hold."""


class Surroundings(NamedTuple):
    """What all GPUs of a session share."""

    session: Session
    monotonic: Callable[[], float]
    wall: Callable[[], float]


class NvmlDevice:
    """One GPU; implements `stallscope.drivers.device.Device`."""

    def __init__(self, surroundings: Surroundings, index: int, retry: Retry) -> None:
        """Note which GPU is meant; the driver is not asked yet.

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
        self._links = 0
        """NVLinks whose state was ever read by the older call."""
        self.replaced = False
        """Whether another GPU was found in its place."""
        self._scrutiny = Scrutiny(surroundings.monotonic, surroundings.wall)
        self._served: dict[str, str] = {}
        self._constants: dict[str, int] = {}
        self._instances: MigInstances | None = None
        self._meter: ActivityMeter | None = None
        self._retired = False
        self.forget()

    def forget(self) -> None:
        """Forget what it was found to lack, such as when MIG is switched, which changes what there is."""
        self._retry.forget()
        self._counters = CounterFields(self._batch, self._scrutiny, self._served)
        self._health = HealthFields(self._batch, self._scrutiny, self._served)
        if self._meter is not None:
            self._meter.release()
            self._meter = None

    def retire(self) -> None:
        """Hold nothing of the driver's any more, since another object, or none, stands for this GPU from now on."""
        self._retired = True
        if self._meter is not None:
            self._meter.close()
        if self._instances is not None:
            self._instances.retire()

    def identity(self) -> Identity:
        """Return the GPU's identity; each part of it is queried until it is known."""
        self._identity = self._ask_identity()
        return self._identity

    @property
    def known_identity(self) -> Identity:
        """The identity as last read, without a driver call unless it was never read."""
        return self._identity if self._identity is not None else self.identity()

    def utilization(self) -> Utilization:
        """The driver's snapshot over its own window."""
        rates = self.call("nvmlDeviceGetUtilizationRates")
        needed = self._scrutiny.needed
        found = Utilization(
            gpu=needed("GPU utilisation", rates.gpu, 100) / 100,
            memory=needed("memory utilisation", rates.memory, 100) / 100,
        )
        for signal in _SAMPLE_SIGNALS.values():
            self._served.setdefault(signal, "nvmlDeviceGetUtilizationRates")
        return found

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """Buffered samples newer than the timestamp, oldest first; impossible ones are left out."""
        try:
            entries = self.call("nvmlDeviceGetSamples", _SAMPLES[kind], newer_than_us)
        except NotFound:
            entries = []
        self._served[_SAMPLE_SIGNALS.get(kind, "engine_busy_seconds_total")] = "nvmlDeviceGetSamples"
        number = self._scrutiny.number
        found: list[TimedSample] = []
        for timestamp, percent in self._scrutiny.timely(entries):
            if timestamp > newer_than_us and number(percent, 100) is not None:
                found.append(TimedSample(timestamp, percent / 100))
        return found

    def memory(self) -> Memory:
        """Frame buffer; the first version of the call, where there is no second, counts reserved memory as used."""
        answer = self.call("nvmlDeviceGetMemoryInfo")
        needed = self._scrutiny.needed
        total = needed("memory", answer.total, _MOST_BYTES, _LEAST_BYTES)
        return Memory(
            total=total,
            used=needed("memory in use", answer.used, total),
            reserved=self._scrutiny.number(answer.reserved, total),
        )

    def bar1(self) -> Bar1:
        """BAR1 aperture."""
        answer = self.call("nvmlDeviceGetBAR1MemoryInfo")
        needed = self._scrutiny.needed
        total = needed("BAR1", answer.bar1Total, _MOST_BYTES, _LEAST_BYTES)
        return Bar1(total=total, used=needed("BAR1 in use", answer.bar1Used, total))

    def power(self) -> float:
        """Board power in watts."""
        milliwatts: int = self.call("nvmlDeviceGetPowerUsage")
        return self._scrutiny.needed("power", milliwatts, _MOST_MILLIWATTS) / 1000

    def power_limits(self) -> PowerLimits:
        """Limit in force and limit from the factory, in watts."""
        rejected = self._scrutiny.total
        number = self._optional_number
        enforced = number("nvmlDeviceGetEnforcedPowerLimit", least=1, most=_MOST_MILLIWATTS)
        default = number("nvmlDeviceGetPowerManagementDefaultLimit", least=1, most=_MOST_MILLIWATTS)
        if enforced is None and default is None:
            raise self._nothing("power limits", rejected)
        return PowerLimits(
            enforced=None if enforced is None else enforced / 1000,
            default=None if default is None else default / 1000,
        )

    def counters(self) -> Counters:
        """One call for all; the energy by its own call where the fields do not have it."""
        rejected = self._scrutiny.total
        found = self._counters.read()
        if found.energy is None:
            name = "nvmlDeviceGetTotalEnergyConsumption"
            energy = self._optional_number(name, most=MOST_MILLIJOULES)
            if energy is not None:
                self._served["energy_joules_total"] = name
                found = found._replace(energy=energy / 1000)
        if found == Counters():
            raise self._nothing("counters", rejected)
        return found

    def health(self) -> Health:
        """One call for most; older calls for what the fields do not have."""
        rejected = self._scrutiny.total
        found = self._classic_health(self._health.read())
        if found == Health():
            raise self._nothing("health", rejected)
        return found

    def activity(self) -> Activity | None:
        """GPM since the call before; None where another GPU's turn was in the way."""
        if self._retired:
            return None
        if self._meter is None:
            self._meter = self._activity_meter()
        return self._meter.read()

    def temperature(self) -> float:
        """The GPU's own sensor."""
        celsius = self._optional("nvmlDeviceGetTemperature", 0)
        if celsius is None:  # the older call is announced to go with CUDA 14
            celsius = self.call("nvmlDeviceGetTemperatureV", 0)
        return float(self._scrutiny.needed("temperature", celsius, MOST_CELSIUS, 1))

    def temperature_limits(self) -> Mapping[str, float]:
        """Celsius by limit."""
        rejected = self._scrutiny.total
        found: dict[str, float] = {}
        for name, threshold in _TEMPERATURE_LIMITS.items():
            limit = self._optional_number("nvmlDeviceGetTemperatureThreshold", threshold, most=MOST_CELSIUS)
            if limit:
                found[name] = limit
        if not found:
            raise self._nothing("temperature limits", rejected)
        return found

    def fans(self) -> Mapping[int, float]:
        """Speed of each fan over its maximum."""
        rejected = self._scrutiny.total
        count = self._optional_number("nvmlDeviceGetNumFans", most=_MOST_FANS)
        if count is None:
            speeds = [self._optional_number("nvmlDeviceGetFanSpeed", most=_MOST_FAN_PERCENT)]
        else:
            each = "nvmlDeviceGetFanSpeed_v2"
            speeds = [self._optional_number(each, fan, most=_MOST_FAN_PERCENT) for fan in range(count)]
        found = {fan: percent / 100 for fan, percent in enumerate(speeds) if percent is not None}
        if not found:
            raise self._nothing("fan speed", rejected)
        return found

    def clocks(self) -> Mapping[ClockKind, float]:
        """Clocks now."""
        return self._clocks("nvmlDeviceGetClockInfo")

    def clocks_max(self) -> Mapping[ClockKind, float]:
        """Highest clocks."""
        return self._clocks("nvmlDeviceGetMaxClockInfo")

    def clocks_configured(self) -> Mapping[ClockKind, float]:
        """Application clocks below the maximum."""
        configured = self._clocks("nvmlDeviceGetApplicationsClock")
        highest = self._clocks("nvmlDeviceGetMaxClockInfo")
        return {name: hertz for name, hertz in configured.items() if 0 < hertz < highest.get(name, 0.0)}

    def throttle_reasons(self) -> frozenset[str]:
        """Throttle reasons in force."""
        bits = self._optional("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.call("nvmlDeviceGetCurrentClocksThrottleReasons")
        bits = self._scrutiny.needed("throttle reasons", bits, _MOST_REASONS)
        self._served.setdefault("throttled_seconds_total", "nvmlDeviceGetCurrentClocksEventReasons")
        found = {reason for bit, reason in _THROTTLE_BITS.items() if bits & bit}
        return frozenset(found | {"other"} if bits & ~_NAMED_BITS else found)

    def pcie_link(self) -> PcieLink:
        """The PCIe link."""
        rejected = self._scrutiny.total
        number = self._optional_number
        found = PcieLink(
            generation=number("nvmlDeviceGetCurrPcieLinkGeneration", least=1, most=_MOST_GENERATION),
            generation_max=self._constant("nvmlDeviceGetMaxPcieLinkGeneration", _MOST_GENERATION),
            width=number("nvmlDeviceGetCurrPcieLinkWidth", least=1, most=_MOST_LANES),
            width_max=self._constant("nvmlDeviceGetMaxPcieLinkWidth", _MOST_LANES),
        )
        if found == PcieLink(None, None, None, None):
            raise self._nothing("PCIe link", rejected)
        return found

    def pcie_throughput(self) -> tuple[float, float]:
        """Received and transmitted; the driver counts for 20 ms a direction. NVML's KB are taken as KiB."""
        received, transmitted = (
            self._scrutiny.needed("PCIe throughput", self.call("nvmlDeviceGetPcieThroughput", way), _MOST_KILOBYTES)
            for way in (_PCIE_RECEIVED, _PCIE_TRANSMITTED)
        )
        return received * 1024.0, transmitted * 1024.0

    def processes(self) -> Sequence[GpuProcess]:
        """Processes with a context, a call a kind."""
        found: list[GpuProcess] = []
        for kind, name in _PROCESS_LISTS.items():
            # Without the list of those that compute, the GPU would look unused.
            entries = self.call(name) if kind == "compute" else self._optional(name)
            for pid, used in entries or ():
                if self._scrutiny.number(pid, _MOST_PID, least=1) is None:
                    continue
                memory = None if used in (None, _NO_MEMORY_TOLD) else self._scrutiny.number(used, _MOST_BYTES)
                found.append(GpuProcess(pid, memory, kind))
        return found

    def process_utilization(self, newer_than_us: int) -> Sequence[ProcessUtilization]:
        """Samples by process, oldest first."""
        try:
            answer = self.call("nvmlDeviceGetProcessUtilization", newer_than_us)
        except NotFound:
            return []
        number = self._scrutiny.number
        # The driver leaves entries that it has no process for at zero.
        entries = [entry for entry in answer if entry[0] or entry[1]]
        return [
            ProcessUtilization(pid, timestamp, gpu / 100, memory / 100)
            for pid, timestamp, gpu, memory, *_ in self._scrutiny.timely(entries, place=1)
            if timestamp > newer_than_us
            and number(pid, _MOST_PID, least=1) is not None
            and number(gpu, 100) is not None
            and number(memory, 100) is not None
        ]

    def persistence_mode(self) -> bool:
        """Whether the driver keeps the GPU initialised."""
        return bool(self._scrutiny.needed("persistence mode", self.call("nvmlDeviceGetPersistenceMode"), 1))

    def compute_mode(self) -> ComputeMode:
        """Who may compute on it."""
        number: int = self.call("nvmlDeviceGetComputeMode")
        return _COMPUTE_MODES[self._scrutiny.needed("compute mode", number, len(_COMPUTE_MODES) - 1)]

    def instances(self) -> Sequence[Device] | None:
        """The MIG instances; None where MIG is off or this GPU has none to offer."""
        if self._instances is None:
            # It makes devices of its own, and so imports this module.
            from stallscope.drivers.nvidia.mig import MigInstances

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
        return self._scrutiny.counts

    @property
    def handle(self) -> Handle:
        """The driver's word for this GPU: milliseconds to get, so asked once, and again when the GPU was lost."""
        if self._handle is None:
            try:
                handle = self.ask("nvmlDeviceGetHandleByIndex", self._index)
            except DriverError as problem:
                if problem.reason == "invalid_argument" and self._identity is not None:
                    raise DeviceLost("gpu_lost", f"no GPU stands at index {self._index} any more") from None
                raise
            if self._identity is not None:
                # Where the GPU was lost, another may stand in its place by now: its figures are not this one's.
                self.replaced = self._scrutiny.text(self.ask("nvmlDeviceGetUUID", handle)) != self._identity.uuid
                if self.replaced:
                    raise DeviceLost("gpu_lost", f"another GPU stands at index {self._index} now")
            self._handle = handle
        return self._handle

    @property
    def index(self) -> int:
        """Its place in the driver's list."""
        return self._index

    def reject(self, reason: Rejection) -> None:
        """Count something that this GPU said by other ways than an answer."""
        self._scrutiny.reject(reason)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of this GPU's."""
        try:
            return self.ask(name, self.handle, *arguments)
        except DeviceLost:
            self._handle = None
            raise

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call any function, on this GPU's account."""
        self._calls += 1
        return self._session.call(name, *arguments)

    def _ask_identity(self) -> Identity:
        text, part = self._scrutiny.text, self._text
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
        """Return one text of the identity, queried until the driver has answered with a sound one; empty before."""
        known = self._texts.get(name)
        if known:
            return known
        answer = self.call(name) if needed else self._optional(name)
        rejected = self._scrutiny.total
        found = "" if answer is None else text_of(answer)
        if self._scrutiny.total == rejected:  # a malformed text is queried again
            self._texts[name] = found
        return found

    def _activity_meter(self) -> ActivityMeter:
        if not self.call("nvmlGpmQueryDeviceSupport"):
            raise Unsupported("this GPU has no GPM")
        return self._meter_of(lambda sample: self.call("nvmlGpmSampleGet", sample))

    def _meter_of(self, take: Callable[[Handle], None]) -> ActivityMeter:
        return ActivityMeter(
            self._session, self.ask, take, self._scrutiny, self._served, self.surroundings.monotonic, self._retry
        )

    def _classic_health(self, found: Health) -> Health:
        """The same with what older calls tell."""
        if not found.ecc_errors:
            name = "nvmlDeviceGetTotalEccErrors"
            errors = {
                kind: self._optional_number(name, number, _VOLATILE, most=MOST_COUNT)
                for kind, number in _ECC_KINDS.items()
            }
            found = found._replace(ecc_errors=self._told("ecc_errors_total", name, errors))
        if not found.remapped_rows:
            name = "nvmlDeviceGetRemappedRows"
            rows = self._optional(name)
            if rows is not None:
                corrected, uncorrected = (self._scrutiny.number(count, MOST_ROWS) for count in rows[:2])
                pending, failed = (self._scrutiny.number(flag, 1) for flag in rows[2:])
                kinds = {"corrected": corrected, "uncorrected": uncorrected}
                found = found._replace(
                    remapped_rows=self._told("remapped_rows", name, kinds),
                    row_remap_pending=None if pending is None else bool(pending),
                    row_remap_failed=None if failed is None else bool(failed),
                )
                self._served["row_remap_pending"] = self._served["row_remap_failed"] = name
        if not found.retired_pages:
            name = "nvmlDeviceGetRetiredPages"
            pages: dict[str, int | None] = {}
            for cause, number in _RETIREMENT_CAUSES.items():
                addresses = self._optional(name, number)
                pages[cause] = None if addresses is None else len(addresses)
            found = found._replace(retired_pages=self._told("retired_pages", name, pages))
        if found.pcie_replays is None:
            name = "nvmlDeviceGetPcieReplayCounter"
            replays = self._optional_number(name, most=MOST_COUNT)
            if replays is not None:
                self._served["pcie_replays_total"] = name
                found = found._replace(pcie_replays=replays)
        if found.nvlink_links is None and not self._health.counts_links:
            name = "nvmlDeviceGetNvLinkState"
            states: list[int] = []
            for link in range(NVLINKS):
                state = self._optional_number(name, link, most=1)
                if state is None:
                    break  # links are numbered without gaps
                states.append(state)
            self._links = max(self._links, len(states))
            if states and len(states) == self._links:
                self._served["nvlink_links"] = self._served["nvlink_links_active"] = name
                found = found._replace(nvlink_links=len(states), nvlink_links_active=sum(states))
        return found

    def _told(self, signal: str, name: str, values: Mapping[str, int | None]) -> dict[str, int]:
        found = {key: value for key, value in values.items() if value is not None}
        if found:
            self._served[signal] = name
        return found

    def _nothing(self, what: str, rejected_before: int) -> DriverError:
        """Why there is nothing: the GPU does not have it, or this time said only what can't be meant."""
        if self._scrutiny.total > rejected_before:
            return DriverError("implausible", f"this GPU told no {what} that can be meant")
        return Unsupported(f"this GPU tells no {what}")

    def _optional(self, name: str, *arguments: Any) -> Any:
        """Return the answer, or None while the GPU refuses it."""
        key = (name, *arguments)
        return self._retry.optional(key, self.surroundings.monotonic(), lambda: self.call(*key))

    def _optional_number(self, name: str, *arguments: Any, most: int, least: int = 0) -> int | None:
        return self._scrutiny.number(self._optional(name, *arguments), most, least)

    def _constant(self, name: str, most: int) -> int | None:
        """Return a small number that stays the same while the session lasts; None while the GPU refuses it."""
        known = self._constants.get(name)
        if known is None:
            known = self._optional_number(name, least=1, most=most)
            if known is not None:
                self._constants[name] = known
        return known

    def _batch(self, fields: tuple[Field, ...]) -> FieldBatch:
        return FieldBatch(self.call, fields, self._retry, self.surroundings.monotonic)

    def _clocks(self, name: str) -> Mapping[ClockKind, float]:
        rejected = self._scrutiny.total
        found: dict[ClockKind, float] = {}
        for clock, number in _CLOCKS.items():
            megahertz = self._optional_number(name, number, most=_MOST_MEGAHERTZ)
            if megahertz is not None:
                found[clock] = megahertz * 1e6
        if not found:
            raise self._nothing(f"clock ({name})", rejected)
        return found
