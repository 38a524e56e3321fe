"""The real driver, through NVIDIA's own binding (module `pynvml`, package nvidia-ml-py).

pynvml loads the library once a process and keeps it; what is opened and closed here is the session with it. After a
driver was reloaded every call says "uninitialized" until the session is opened again, which `Driver.open` does.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stallscope.gpus.driver import (
    Bar1,
    ClockKind,
    Device,
    DeviceLost,
    DriverError,
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

_logger = logging.getLogger(__name__)

# NVML return codes (nvml.h, nvmlReturn_t) by what they mean to a caller. Not supported, no permission, no such function
# in this library, versions that don't match, deprecated: none of these changes while the driver stays loaded.
_UNSUPPORTED = frozenset({3, 4, 13, 25, 26})
_LOST = {15: "gpu_lost", 16: "reset_required", 28: "gpu_not_found"}
_UNAVAILABLE = {
    1: "uninitialized",
    4: "no_permission",
    9: "driver_not_loaded",
    12: "library_not_found",
    18: "version_mismatch",
}
_NOTHING_NEW = frozenset({6, 21})
_OTHER = {2: "invalid_argument", 10: "timeout", 14: "corrupted_inforom", 20: "out_of_memory", 27: "not_ready"}

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
_SAMPLES: Mapping[SampleKind, int] = {"gpu": 1, "memory": 2}
_SAMPLES_AT_MOST = 256
"""More than any driver was seen to keep (about 120)."""

# Bits of nvmlClocksEventReasons. The general slowdown bit stands beside the one that names its cause; idle (0x1),
# application clocks (0x2) and display (0x100) are nobody's trouble.
_THROTTLE_BITS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
_THROTTLE_FIELDS = {74: "power_cap", 76: "sync_boost", 269: "sw_thermal", 270: "hw_thermal", 271: "power_brake"}
"""Cumulative nanoseconds by field id."""
_MEMORY_TEMPERATURE_FIELD = 82
_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Which member of pynvml's union holds a field's value, by its nvmlValueType_t."""
_MEMORY_V2 = 40 | 2 << 24
"""NVML_STRUCT_VERSION of nvmlMemory_v2_t: its size, and the version in the highest byte."""

# Ceilings beyond which a number is a sentinel or a slip, by far: a megawatt, a thousand degrees, a hundred gigahertz.
_MOST_MILLIWATTS = 10**9
_MOST_MILLIJOULES = 10**17
_MOST_CELSIUS = 1000
_MOST_MEGAHERTZ = 100_000
_MOST_BYTES = 1 << 60
_MOST_NANOSECONDS = 10**18
_MOST_FAN_PERCENT = 200  # NVML allows more than 100: relative to the maximum the board was designed for
_MOST_LINK = 64


class _Value(ctypes.Union):
    _fields_ = (("real", ctypes.c_double), ("number", ctypes.c_uint), ("large", ctypes.c_ulonglong))


class _Sample(ctypes.Structure):
    _fields_ = (("timestamp", ctypes.c_ulonglong), ("value", _Value))


class NvmlDriver:
    """A session with the NVIDIA driver; implements `stallscope.gpus.driver.Driver`."""

    def __init__(self) -> None:
        """Prepare; nothing is loaded before `open`."""
        self._binding: Any = None
        self._initialized = False
        self._connected = False
        self._devices: tuple[NvmlDevice, ...] = ()

    @property
    def simulated(self) -> bool:
        """Always False."""
        return False

    def open(self) -> None:
        """Load the library if that was not done, and begin a session; does nothing while one is well.

        Raises:
            DriverUnavailable: with the reason `binding_missing`, `binding_incompatible`, `library_not_found`,
                `driver_not_loaded`, `no_permission`, `version_mismatch`, or `driver_error`.
        """
        if self._connected:
            return
        if self._binding is None:
            self._binding = _import_binding()
        self._end_session()
        try:
            self._binding.nvmlInit()
        except self._binding.NVMLError as problem:
            reason = _UNAVAILABLE.get(problem.value, "driver_error")
            raise DriverUnavailable(reason, f"the NVIDIA driver does not answer: {problem}") from None
        self._initialized = self._connected = True

    def close(self) -> None:
        """End the session, so that the driver can be unloaded."""
        self._connected = False
        self._end_session()

    def _end_session(self) -> None:
        self._devices = ()
        if not self._initialized:
            return
        self._initialized = False
        try:
            self._binding.nvmlShutdown()
        except self._binding.NVMLError as problem:
            _logger.debug("the session with the driver was gone already: %s", problem)

    def system(self) -> SystemInfo:
        """Versions of driver and CUDA."""
        try:
            version = int(self.call("nvmlSystemGetCudaDriverVersion_v2"))
        except Unsupported:
            version = int(self.call("nvmlSystemGetCudaDriverVersion"))
        return SystemInfo(
            driver_version=_text(self.call("nvmlSystemGetDriverVersion")),
            cuda_version=f"{version // 1000}.{version % 1000 // 10}",
        )

    def devices(self) -> Sequence[Device]:
        """The GPUs, by index; each is opened when first asked something, so that one that hangs hides no other."""
        count = int(self.call("nvmlDeviceGetCount"))
        if count != len(self._devices):
            # Indices move when a GPU comes or goes, so none of the old handles is to be trusted.
            self._devices = tuple(NvmlDevice(self, index) for index in range(count))
        return self._devices

    def call(self, name: str, *arguments: object) -> Any:
        """Call one NVML function by its name in pynvml, and turn its failure into ours.

        Raises:
            Unsupported: this GPU, library or binding does not have it.
            DeviceLost: the GPU is gone.
            DriverUnavailable: the session is over.
            DriverError: anything else.
        """
        if not self._connected:
            raise DriverUnavailable("uninitialized", "there is no session with the NVIDIA driver")
        function = getattr(self._binding, name, None)
        if function is None:
            raise Unsupported(f"this version of nvidia-ml-py has no {name}")
        try:
            return function(*arguments)
        except self._binding.NVMLError as problem:
            raise self._meaning(name, problem.value, str(problem)) from None
        except self._binding.NVMLLibraryMismatchError:
            raise Unsupported(f"this driver's library has no {name}") from None

    def samples(self, handle: object, kind: SampleKind, newer_than_us: int) -> list[tuple[int, int]]:
        """Timestamp and percentage of buffered samples.

        One call with room for all; pynvml's own asks for the size first, and so calls the driver twice.
        """
        if not self._connected:
            raise DriverUnavailable("uninitialized", "there is no session with the NVIDIA driver")
        room = (_Sample * _SAMPLES_AT_MOST)()
        count = ctypes.c_uint(_SAMPLES_AT_MOST)
        value_type = ctypes.c_uint()
        try:
            function = self._binding.nvmlLib.nvmlDeviceGetSamples
        except AttributeError:
            raise Unsupported("this driver's library has no nvmlDeviceGetSamples") from None
        code = function(
            handle,
            _SAMPLES[kind],
            ctypes.c_ulonglong(newer_than_us),
            ctypes.byref(value_type),
            ctypes.byref(count),
            room,
        )
        if code in _NOTHING_NEW:
            return []
        if code != 0:
            raise self._meaning("nvmlDeviceGetSamples", code, str(self._binding.NVMLError(code)))
        return [(sample.timestamp, sample.value.number) for sample in room[: count.value]]

    def _meaning(self, name: str, code: int, text: str) -> DriverError:
        message = f"{name}: {text}"
        if code in _UNSUPPORTED:
            return Unsupported(message)
        if code in _LOST:
            return DeviceLost(_LOST[code], message)
        if code in _UNAVAILABLE:
            self._connected = False
            return DriverUnavailable(_UNAVAILABLE[code], message)
        return DriverError(_OTHER.get(code, "driver_error"), message)


class NvmlDevice:
    """One GPU; implements `stallscope.gpus.driver.Device`."""

    def __init__(self, driver: NvmlDriver, index: int) -> None:
        """Note which GPU is meant; the driver is not asked yet."""
        self._driver = driver
        self._index = index
        self._known_handle: object = None
        self._known_identity: Identity | None = None
        self._lacking: set[tuple[object, ...]] = set()
        self._constants: dict[str, int] = {}

    def identity(self) -> Identity:
        """What this GPU is; asked once a session."""
        if self._known_identity is None:
            self._known_identity = self._ask_identity()
        return self._known_identity

    def utilization(self) -> Utilization:
        """The driver's snapshot over its own window."""
        rates = self._call("nvmlDeviceGetUtilizationRates")
        return Utilization(
            gpu=_plausible("GPU utilisation", rates.gpu, 100) / 100,
            memory=_plausible("memory utilisation", rates.memory, 100) / 100,
        )

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """Buffered samples newer than the timestamp, oldest first; impossible ones are left out."""
        return [
            TimedSample(timestamp, percent / 100)
            for timestamp, percent in sorted(self._samples(kind, newer_than_us))
            if timestamp > newer_than_us and timestamp > 0 and percent <= 100
        ]

    def memory(self) -> Memory:
        """Frame buffer; the first version of the call, where there is no second, counts reserved memory as used."""
        answer = self._optional("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
        reserved = None
        if answer is None:
            answer = self._call("nvmlDeviceGetMemoryInfo")
        else:
            reserved = _plausible("reserved memory", answer.reserved, _MOST_BYTES)
        total = _plausible("memory", answer.total, _MOST_BYTES)
        return Memory(total=total, used=_plausible("memory in use", answer.used, total), reserved=reserved)

    def bar1(self) -> Bar1:
        """BAR1 aperture."""
        answer = self._call("nvmlDeviceGetBAR1MemoryInfo")
        total = _plausible("BAR1", answer.bar1Total, _MOST_BYTES)
        return Bar1(total=total, used=_plausible("BAR1 in use", answer.bar1Used, total))

    def power(self) -> float:
        """Board power in watts."""
        return _plausible("power", self._call("nvmlDeviceGetPowerUsage"), _MOST_MILLIWATTS) / 1000

    def power_limits(self) -> PowerLimits:
        """Limit in force and limit from the factory, in watts."""
        enforced = self._optional_number("nvmlDeviceGetEnforcedPowerLimit", most=_MOST_MILLIWATTS)
        default = self._optional_number("nvmlDeviceGetPowerManagementDefaultLimit", most=_MOST_MILLIWATTS)
        if enforced is None and default is None:
            raise Unsupported("this GPU has no power limits")
        return PowerLimits(
            enforced=None if enforced is None else enforced / 1000,
            default=None if default is None else default / 1000,
        )

    def energy(self) -> float:
        """Joules since the driver was loaded."""
        return _plausible("energy", self._call("nvmlDeviceGetTotalEnergyConsumption"), _MOST_MILLIJOULES) / 1000

    def temperatures(self) -> Mapping[str, float]:
        """Celsius by sensor."""
        found: dict[str, float] = {}
        gpu = self._optional_number("nvmlDeviceGetTemperature", 0, most=_MOST_CELSIUS)
        if gpu is None:  # the older call is announced to go with CUDA 14
            gpu = self._optional_number("nvmlDeviceGetTemperatureV", 0, most=_MOST_CELSIUS)
        if gpu is not None:
            found["gpu"] = gpu
        memory = self._fields((_MEMORY_TEMPERATURE_FIELD,)).get(_MEMORY_TEMPERATURE_FIELD)
        # GPUs without that sensor were seen to answer 0 instead of "not supported".
        if memory is not None and 0 < memory < _MOST_CELSIUS:
            found["memory"] = memory
        if not found:
            raise Unsupported("this GPU tells no temperature")
        return found

    def temperature_limits(self) -> Mapping[str, float]:
        """Celsius by limit."""
        found: dict[str, float] = {}
        for name, threshold in _TEMPERATURE_LIMITS.items():
            limit = self._optional_number("nvmlDeviceGetTemperatureThreshold", threshold, most=_MOST_CELSIUS)
            if limit:
                found[name] = limit
        if not found:
            raise Unsupported("this GPU tells no temperature limits")
        return found

    def fans(self) -> Sequence[float]:
        """Speed of each fan over its maximum."""
        count = self._optional_number("nvmlDeviceGetNumFans", most=_MOST_LINK)
        if count is None:
            speeds = [self._call("nvmlDeviceGetFanSpeed")]
        else:
            speeds = [self._call("nvmlDeviceGetFanSpeed_v2", fan) for fan in range(count)]
        if not speeds:
            raise Unsupported("this GPU has no fan")
        return [_plausible("fan speed", speed, _MOST_FAN_PERCENT) / 100 for speed in speeds]

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
            bits = self._call("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits >> 32:
            raise DriverError("implausible", f"throttle reasons came as {bits:#x}")
        return frozenset(reason for bit, reason in _THROTTLE_BITS.items() if bits & bit)

    def throttle_seconds(self) -> Mapping[str, float]:
        """Cumulative seconds by reason; the general hardware slowdown has no counter."""
        found = {
            _THROTTLE_FIELDS[field]: nanoseconds / 1e9
            for field, nanoseconds in self._fields(tuple(_THROTTLE_FIELDS)).items()
            if 0 <= nanoseconds < _MOST_NANOSECONDS
        }
        if not found:
            raise Unsupported("this driver does not count throttling")
        return found

    def pcie_link(self) -> PcieLink:
        """The PCIe link."""
        return PcieLink(
            generation=_plausible("PCIe generation", self._call("nvmlDeviceGetCurrPcieLinkGeneration"), _MOST_LINK),
            generation_max=self._constant("nvmlDeviceGetMaxPcieLinkGeneration"),
            width=_plausible("PCIe width", self._call("nvmlDeviceGetCurrPcieLinkWidth"), _MOST_LINK),
            width_max=self._constant("nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def processes(self, kind: ProcessKind) -> Sequence[GpuProcess]:
        """Processes with a context of that kind."""
        name = f"nvmlDeviceGet{kind.capitalize()}RunningProcesses"
        found = self._optional(name)
        if found is None:
            found = self._call(f"{name}_v2")
        return [
            GpuProcess(process.pid, process.usedGpuMemory if _is_size(process.usedGpuMemory) else None)
            for process in found
        ]

    def _ask_identity(self) -> Identity:
        capability = self._optional("nvmlDeviceGetCudaComputeCapability")
        pci = self._optional("nvmlDeviceGetPciInfo")
        architecture = self._optional("nvmlDeviceGetArchitecture")
        return Identity(
            index=self._index,
            uuid=_text(self._call("nvmlDeviceGetUUID")),
            model=_text(self._call("nvmlDeviceGetName")),
            serial=_text(self._optional("nvmlDeviceGetSerial")),
            pci_bus_id=_text(pci and pci.busId),
            vbios_version=_text(self._optional("nvmlDeviceGetVbiosVersion")),
            architecture=_ARCHITECTURES.get(architecture, "") if architecture is not None else "",
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        )

    def _handle(self) -> object:
        """The driver's word for this GPU: milliseconds to get, so asked once, and again when the GPU was lost."""
        if self._known_handle is None:
            self._known_handle = self._driver.call("nvmlDeviceGetHandleByIndex", self._index)
        return self._known_handle

    def _call(self, name: str, *arguments: object) -> Any:
        try:
            return self._driver.call(name, self._handle(), *arguments)
        except DeviceLost:
            self._known_handle = None
            raise

    def _samples(self, kind: SampleKind, newer_than_us: int) -> list[tuple[int, int]]:
        try:
            return self._driver.samples(self._handle(), kind, newer_than_us)
        except DeviceLost:
            self._known_handle = None
            raise

    def _optional(self, name: str, *arguments: object) -> Any:
        """The answer, or None where this GPU does not have it, which is asked only once."""
        key = (name, *arguments)
        if key in self._lacking:
            return None
        try:
            return self._call(name, *arguments)
        except Unsupported:
            self._lacking.add(key)
            return None

    def _optional_number(self, name: str, *arguments: object, most: int) -> int | None:
        value = self._optional(name, *arguments)
        return value if value is not None and 0 <= value <= most else None

    def _constant(self, name: str) -> int:
        """A small number that stays the same while the session lasts."""
        if name not in self._constants:
            self._constants[name] = _plausible(name, self._call(name), _MOST_LINK)
        return self._constants[name]

    def _clocks(self, name: str) -> Mapping[ClockKind, float]:
        found: dict[ClockKind, float] = {}
        for clock, number in _CLOCKS.items():
            megahertz = self._optional_number(name, number, most=_MOST_MEGAHERTZ)
            if megahertz is not None:
                found[clock] = megahertz * 1e6
        if not found:
            raise Unsupported(f"{name} answers for no clock")
        return found

    def _fields(self, ids: Iterable[int]) -> Mapping[int, int]:
        """Whole numbers by field id; one call for all, and only those whose own return code says success."""
        wanted = [field for field in ids if ("field", field) not in self._lacking]
        if not wanted:
            return {}
        # Pairs of field and scope: pynvml raises and catches an error for each plain number.
        answers = self._optional("nvmlDeviceGetFieldValues", tuple((field, 0) for field in wanted))
        if answers is None:
            self._lacking.update(("field", field) for field in wanted)
            return {}
        found: dict[int, int] = {}
        for field, answer in zip(wanted, answers, strict=True):
            if answer.nvmlReturn == 0 and answer.valueType < len(_VALUE_TYPES):
                found[field] = int(getattr(answer.value, _VALUE_TYPES[answer.valueType]))
            elif answer.nvmlReturn in _UNSUPPORTED:
                self._lacking.add(("field", field))
        return found


def _import_binding() -> Any:
    try:
        import pynvml
    except ImportError:
        raise DriverUnavailable(
            "binding_missing", "the package nvidia-ml-py is not installed: pip install 'stallscope[exporter]'"
        ) from None
    if not hasattr(pynvml, "NVMLLibraryMismatchError"):
        raise DriverUnavailable(
            "binding_incompatible",
            f"{pynvml.__file__} is not NVIDIA's own: pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
        )
    return pynvml


def _plausible(what: str, value: int, most: int) -> int:
    """The value itself; refused where it can't be meant.

    Raises:
        Unsupported: all bits are set, which is NVML's "not available".
        DriverError: it lies beyond all measure.
    """
    if 0 <= value <= most:
        return value
    if value in (0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF):
        raise Unsupported(f"{what} is not available")
    raise DriverError("implausible", f"{what} came as {value}")


def _is_size(value: int | None) -> bool:
    return value is not None and 0 <= value < _MOST_BYTES


def _text(value: str | bytes | None) -> str:
    """Text as a label takes it; bindings differ in whether they decode."""
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
