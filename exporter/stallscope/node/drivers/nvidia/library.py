"""Access to NVIDIA's library: every driver call is a `Library.call`, so that calls can be counted and recorded.

Answers are plain data: numbers, texts (bytes where they come straight from the library), lists and tuples of these,
`SimpleNamespace` for structures, and `Handle` for what only the driver understands. Most calls go to NVIDIA's own
binding (module `pynvml`). Those of every round, those where pynvml calls the driver twice, and texts, which it can't
hand out when they are not UTF-8, go straight to the library through ctypes, with pynvml's structures and with buffers
kept by thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from types import SimpleNamespace
from typing import Any, Protocol

from stallscope.node.drivers.device import DriverUnavailable, Unsupported

UNINITIALIZED = 1
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999
"""Return codes that are handled here; all others raise `NvmlFailure`."""

_SAMPLES_AT_MOST = 256
"""Entries; drivers keep about 120."""
_PROCESSES_AT_MOST = 128
_MOST_BUFFERS = 64
_MOST_ENTRIES = 1 << 16
"""Maximum size that a driver may request."""
_MISSING = object()
_NAME = "libnvidia-ml.so.1"

# nvmlSample_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, nvmlFieldValue_t, nvmlGpmMetric_t.
_SAMPLE = struct.Struct("=QQ")
_PROCESS = struct.Struct("=I4xQII")
_PROCESS_UTILIZATION = struct.Struct("=I4xQIIII")
_FIELD = struct.Struct("=IIqqIIQ")
_METRIC = struct.Struct("=IId24x")
_METRICS_HEAD = struct.Struct("=IIQQ")
_METRICS_VERSION = 1
_SUPPORT_VERSION = 1

# How a union of 64 bits is to be read, by nvmlValueType_t: bits, and whether they are signed. 0 is a double.
_WHOLE_NUMBERS = {1: (32, False), 2: (64, False), 3: (64, False), 4: (64, True), 5: (32, True), 6: (16, False)}

_TEXT_BYTES = 128
"""Bytes; longer than any queried text (UUIDs have 80, names 96)."""
_TEXTS = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion")
_WHOLE = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPersistenceMode")
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class NvmlFailure(Exception):
    """The driver answered with a return code other than success."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class MissingFunction(Exception):
    """The driver's library, or the binding, has no such function."""


class Handle(c_void_p):
    """An opaque device, event set or sample of the driver; equal for the same one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class Library(Protocol):
    """The driver's functions, by name."""

    def load(self) -> None:
        """Load the library.

        Raises:
            DriverUnavailable: with the reason `binding_missing` or `binding_incompatible`. A missing driver library
                shows only at the first call, `nvmlInit`, as NVML's own code for it.
        """

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the C function of that name, without version suffix unless pynvml has it only so.

        Handles and numbers go in, plain data comes out, shaped as by pynvml except for:

        - `nvmlDeviceGetSamples(handle, kind, newer_than_us) -> [(timestamp, number)]`
        - `nvmlDeviceGetFieldValues(handle, ((id, scope), ...)) -> [(code, number or None)]`
        - `nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses(handle) -> [(pid, memory)]`
        - `nvmlDeviceGetProcessUtilization(handle, newer_than) -> [(pid, timestamp, sm, memory, encoder, decoder)]`
        - `nvmlDeviceGetMemoryInfo(handle)`: the second version if available, else `reserved` is None
        - `nvmlGpmQueryDeviceSupport(handle) -> int`
        - `nvmlGpmMetricsGet(sample, newer_sample, (id, ...)) -> [(code, float)]`
        - `nvmlEventSetWait(event_set, milliseconds) -> (device handle, event type, event data)`

        Raises:
            NvmlFailure: the driver answered with another code than success.
            MissingFunction: the library has no such function.
            DriverUnavailable: with the reason `library_unusable`, by `nvmlInit`: the library exists, but can't be
                loaded.
        """


class PynvmlLibrary:
    """The real library; pynvml loads it once a process and keeps it. Calls may come from any thread."""

    def __init__(self) -> None:
        """Prepare; nothing is imported before `load`."""
        self._binding: Any = None
        self._functions: dict[str, Callable[..., Any]] = {}
        self._symbols: dict[tuple[str, ...], Any] = {}
        self._buffers = _Buffers()
        self._own: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._init,
            "nvmlDeviceGetHandleByIndex": self._device,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._mig_device,
            "nvmlDeviceGetSamples": self._samples,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceGetProcessUtilization": self._process_utilization,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetPciInfo": self._pci_info,
            "nvmlSystemGetDriverVersion": self._driver_version,
            "nvmlGpmQueryDeviceSupport": self._gpm_support,
            "nvmlGpmSampleAlloc": lambda: self._new("nvmlGpmSampleAlloc"),
            "nvmlGpmSampleFree": lambda sample: self._do("nvmlGpmSampleFree", sample),
            "nvmlGpmSampleGet": lambda device, sample: self._do("nvmlGpmSampleGet", device, sample),
            "nvmlGpmMigSampleGet": lambda device, instance, sample: self._do(
                "nvmlGpmMigSampleGet", device, c_uint(instance), sample
            ),
            "nvmlGpmMetricsGet": self._gpm_metrics,
            "nvmlEventSetCreate": lambda: self._new("nvmlEventSetCreate"),
            "nvmlEventSetFree": lambda event_set: self._do("nvmlEventSetFree", event_set),
            "nvmlDeviceRegisterEvents": lambda device, types, event_set: self._do(
                "nvmlDeviceRegisterEvents", device, c_ulonglong(types), event_set
            ),
            "nvmlEventSetWait": self._wait,
        }
        for name in _TEXTS:
            self._own[name] = _bound(self._text, name)
        for name in _WHOLE:
            self._own[name] = _bound(self._whole, name)
        for name in _PROCESS_LISTS:
            self._own[name] = _bound(self._processes, name)

    def load(self) -> None:
        """Import the binding. See `Library`."""
        if self._binding is None:
            self._binding = _import_binding()

    def call(self, name: str, *arguments: Any) -> Any:
        """See `Library`."""
        function = self._own.get(name)
        return self._through_binding(name, *arguments) if function is None else function(*arguments)

    def _through_binding(self, name: str, *arguments: Any) -> Any:
        binding = self._binding
        if binding is None:
            raise NvmlFailure(UNINITIALIZED, "the library is not loaded")
        function = self._functions.get(name)
        if function is None:
            function = getattr(binding, name, None)
            if function is None:
                raise MissingFunction(f"this version of nvidia-ml-py has no {name}")
            self._functions[name] = function
        try:
            answer = function(*arguments)
        except binding.NVMLError as problem:
            if problem.value == FUNCTION_NOT_FOUND:
                raise MissingFunction(f"this driver's library has no {name}") from None
            raise NvmlFailure(problem.value, str(problem)) from None
        except binding.NVMLLibraryMismatchError:
            raise MissingFunction(f"this driver's library has no {name}") from None
        return answer if type(answer) is int else _plain(answer)

    def _init(self) -> None:
        try:
            self._through_binding("nvmlInit")
        except NvmlFailure as failure:
            # The binding reports every library that it can't load as missing.
            trouble = _load_problem() if failure.code == LIBRARY_NOT_FOUND else ""
            if trouble:
                raise DriverUnavailable("library_unusable", f"the NVIDIA library can't be loaded: {trouble}") from None
            raise

    def _symbol(self, *names: str) -> Any:
        """Return the first of these C functions that the library has, newest version first."""
        symbol = self._symbols.get(names)
        if symbol is None:
            library = None if self._binding is None else self._binding.nvmlLib
            if library is None:
                raise NvmlFailure(UNINITIALIZED, "the library is not loaded")
            found = next((name for name in names if hasattr(library, name)), None)
            # By item it is a function object of our own, apart from pynvml's.
            symbol = self._symbols[names] = _MISSING if found is None else library[found]
        if symbol is _MISSING:
            raise MissingFunction(f"this driver's library has no {names[-1]}")
        return symbol

    def _check(self, name: str, code: int) -> None:
        if code == FUNCTION_NOT_FOUND:
            raise MissingFunction(f"this driver's library has no {name}")
        if code:
            raise NvmlFailure(code, str(self._binding.NVMLError(code)))

    def _do(self, name: str, *arguments: Any) -> None:
        self._check(name, self._symbol(name)(*arguments))

    def _new(self, name: str) -> Handle:
        handle = Handle()
        self._check(name, self._symbol(name)(byref(handle)))
        return handle

    def _device(self, index: int) -> Handle:
        name = "nvmlDeviceGetHandleByIndex"
        handle = Handle()
        self._check(name, self._symbol(f"{name}_v2", name)(c_uint(index), byref(handle)))
        return handle

    def _mig_device(self, parent: Handle, index: int) -> Handle:
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        handle = Handle()
        self._check(name, self._symbol(name)(parent, c_uint(index), byref(handle)))
        return handle

    def _whole(self, name: str, handle: Handle) -> int:
        number = c_uint()
        self._check(name, self._symbol(name)(handle, byref(number)))
        return number.value

    def _text(self, name: str, handle: Handle) -> bytes:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._check(name, self._symbol(name)(handle, text, c_uint(_TEXT_BYTES)))
        return text.value

    def _driver_version(self) -> bytes:
        name = "nvmlSystemGetDriverVersion"
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._check(name, self._symbol(name)(text, c_uint(_TEXT_BYTES)))
        return text.value

    def _pci_info(self, handle: Handle) -> SimpleNamespace:
        name = "nvmlDeviceGetPciInfo"
        info = _PciInfo()
        self._check(name, self._symbol(f"{name}_v3", f"{name}_v2")(handle, byref(info)))
        return SimpleNamespace(busId=info.busId)

    def _memory(self, handle: Handle) -> SimpleNamespace:
        name = "nvmlDeviceGetMemoryInfo"
        second = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        try:
            code = self._symbol(f"{name}_v2")(handle, byref(second))
        except MissingFunction:
            code = ARGUMENT_VERSION_MISMATCH
        if code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            self._check(name, code)
            return SimpleNamespace(total=second.total, reserved=second.reserved, free=second.free, used=second.used)
        first = _Memory()
        self._check(name, self._symbol(name)(handle, byref(first)))
        return SimpleNamespace(total=first.total, reserved=None, free=first.free, used=first.used)

    def _samples(self, handle: Handle, kind: int, newer_than_us: int) -> list[tuple[int, int | float]]:
        name = "nvmlDeviceGetSamples"
        function = self._symbol(name)
        value_type = c_uint()
        since = c_ulonglong(newer_than_us)

        def query(count: c_uint, room: Any) -> int:
            return int(function(handle, c_uint(kind), since, byref(value_type), byref(count), room))

        entries = self._list(name, _SAMPLE, _SAMPLES_AT_MOST, query)
        read = value_type.value
        return [(timestamp, _number(read, bits)) for timestamp, bits in entries]

    def _processes(self, name: str, handle: Handle) -> list[tuple[int, int]]:
        function = self._symbol(f"{name}_v3", f"{name}_v2")
        entries = self._list(
            name, _PROCESS, _PROCESSES_AT_MOST, lambda count, room: function(handle, byref(count), room)
        )
        return [(pid, memory) for pid, memory, _, _ in entries]

    def _process_utilization(self, handle: Handle, newer_than: int) -> list[tuple[int, ...]]:
        name = "nvmlDeviceGetProcessUtilization"
        function = self._symbol(name)
        since = c_ulonglong(newer_than)
        return list(
            self._list(
                name,
                _PROCESS_UTILIZATION,
                _PROCESSES_AT_MOST,
                lambda count, room: function(handle, room, byref(count), since),
            )
        )

    def _list(
        self, name: str, layout: struct.Struct, at_most: int, query: Callable[[c_uint, Any], int]
    ) -> Iterable[tuple[Any, ...]]:
        """Return the entries of a list that the driver writes; one call unless the list is longer than before."""
        while True:
            buffer = self._buffers.of(name, at_most * layout.size)
            room = len(buffer.bytes) // layout.size
            count = c_uint(room)
            code = query(count, buffer.start)
            if code == INSUFFICIENT_SIZE and at_most < _MOST_ENTRIES:
                at_most = min(max(2 * room, count.value + 16), _MOST_ENTRIES)
                continue
            self._check(name, code)
            return layout.iter_unpack(buffer.bytes[: min(count.value, room) * layout.size])

    def _field_values(
        self, handle: Handle, wanted: tuple[tuple[int, int], ...]
    ) -> list[tuple[int, int | float | None]]:
        name = "nvmlDeviceGetFieldValues"
        # What the driver leaves untouched must not look like an answer, nor the answer of the time before.
        buffer = self._buffers.template(
            name, wanted, lambda: b"".join(_FIELD.pack(each, scope, 0, 0, 0, UNKNOWN, 0) for each, scope in wanted)
        )
        self._check(name, self._symbol(name)(handle, c_int(len(wanted)), buffer.start))
        return [
            (code, bits if value_type == 3 else _number(value_type, bits)) if code == 0 else (code, None)
            for _, _, _, _, value_type, code, bits in _FIELD.iter_unpack(buffer.bytes)
        ]

    def _gpm_support(self, handle: Handle) -> int:
        name = "nvmlGpmQueryDeviceSupport"
        support = (c_uint * 2)(_SUPPORT_VERSION, 0)
        self._check(name, self._symbol(name)(handle, support))
        return support[1]

    def _gpm_metrics(self, older: Handle, newer: Handle, ids: tuple[int, ...]) -> list[tuple[int, float]]:
        # pynvml's structure holds every metric, 13 KB; the driver reads as many as the count says.
        name = "nvmlGpmMetricsGet"
        buffer = self._buffers.template(
            name,
            ids,
            lambda: bytes(_METRICS_HEAD.size) + b"".join(_METRIC.pack(each, UNKNOWN, 0.0) for each in ids),
        )
        _METRICS_HEAD.pack_into(buffer.bytes, 0, _METRICS_VERSION, len(ids), older.value or 0, newer.value or 0)
        self._check(name, self._symbol(name)(buffer.start))
        return [(code, value) for _, code, value in _METRIC.iter_unpack(buffer.bytes[_METRICS_HEAD.size :])]

    def _wait(self, event_set: Handle, milliseconds: int) -> tuple[Handle, int, int]:
        name = "nvmlEventSetWait"
        event = _EventData()
        # The first version writes less of the same structure.
        function = self._symbol(f"{name}_v2", name)
        self._check(name, function(event_set, byref(event), c_uint(milliseconds)))
        return Handle(event.device), event.type, event.data


def constant(name: str) -> int:
    """Return a constant of NVML by its name in the binding.

    Raises:
        Unsupported: this version of the binding does not have it.
        DriverUnavailable: pynvml is not installed.
    """
    value = getattr(_import_binding(), name, None)
    if not isinstance(value, int):
        raise Unsupported(f"this version of nvidia-ml-py has no {name}")
    return value


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", ctypes.c_char * 32),
    )


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p),
        ("type", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class _Buffer:
    """Memory that the driver writes to."""

    def __init__(self, content: bytes) -> None:
        self.bytes = bytearray(content)
        self.start = (ctypes.c_char * len(content)).from_buffer(self.bytes) if content else c_char_p()
        self.template = content


class _Buffers(threading.local):
    """Buffers of one thread, kept because most calls are repeated; each thread has its own."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Sequence[Any]], _Buffer] = {}

    def of(self, name: str, size: int) -> _Buffer:
        """Return a buffer of at least this size; its content is undefined."""
        buffer = self._known.get((name, ()))
        if buffer is None or len(buffer.bytes) < size:
            buffer = self._known[name, ()] = _Buffer(bytes(size))
        return buffer

    def template(self, name: str, key: tuple[Any, ...], content: Callable[[], bytes]) -> _Buffer:
        """Return a buffer with this content; created once for each key, and restored each time."""
        buffer = self._known.get((name, key))
        if buffer is None:
            if len(self._known) >= _MOST_BUFFERS:  # retries of refused fields make ever other batches
                self._known.clear()
            buffer = self._known[name, key] = _Buffer(content())
        else:
            buffer.bytes[:] = buffer.template
        return buffer


def _bound(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda *arguments: function(name, *arguments)


def _number(value_type: int, bits: int) -> int | float:
    """Return the member of nvmlValue_t for the type; an unknown type is read as 64 bits."""
    if value_type == 0:
        real: float = struct.unpack("=d", struct.pack("=Q", bits))[0]
        return real
    size, signed = _WHOLE_NUMBERS.get(value_type, (64, False))
    bits &= (1 << size) - 1
    return bits - (1 << size) if signed and bits >> (size - 1) else bits


def _plain(answer: Any) -> Any:
    if isinstance(answer, ctypes.Structure):
        # As the structure holds them: pynvml's own attribute access decodes texts, and fails where it can't.
        read = ctypes.Structure.__getattribute__
        return SimpleNamespace(**{name: _plain(read(answer, name)) for name, *_ in answer._fields_})
    if isinstance(answer, (list, tuple, ctypes.Array)):
        return [_plain(each) for each in answer]
    if hasattr(answer, "__dict__"):
        return SimpleNamespace(**{name: _plain(value) for name, value in vars(answer).items()})
    return answer


def _load_problem() -> str:
    """Return why the driver's library can't be loaded; empty if it can, or if it is not installed."""
    try:
        ctypes.CDLL(_NAME)
    except OSError as problem:
        text = str(problem)
        missing = text.startswith(f"{_NAME}:") and os.strerror(errno.ENOENT) in text
        return "" if missing else text
    return ""


def _import_binding() -> Any:
    try:
        import pynvml
    except ImportError:
        raise DriverUnavailable(
            "binding_missing", "the package nvidia-ml-py is not installed: pip install nvidia-ml-py"
        ) from None
    if not hasattr(pynvml, "NVMLLibraryMismatchError"):
        raise DriverUnavailable(
            "binding_incompatible",
            f"{pynvml.__file__} is not NVIDIA's own: pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
        )
    return pynvml
