"""The other half of `nvml_stand_in.c`: builds the library, and sets what its GPUs answer while programs use it.

node = NvmlStandIn(directory)
node.gpu[3].state = GpuState.LOST
subprocess.run([...], env=os.environ | node.environment)
node.calls("nvmlDeviceGetPowerUsage")

The structures' fields come from the C header, `nvml_stand_in.h`, which says what each means; those that need no units
explained are annotated here.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

HEADER = Path(__file__).with_name("nvml_stand_in.h")
SOURCES = sorted(HEADER.parent.glob("nvml_*.c"))
MEBIBYTE = 1 << 20
XID = 0x8
MIG_CONFIGURATION = 0x100


class Group(IntEnum):
    """Functions that a GPU may lack, in the order of the C enumeration."""

    UTILIZATION = 0
    SAMPLES = 1
    MEMORY = 2
    BAR1 = 3
    POWER = 4
    POWER_LIMIT = 5
    ENERGY = 6
    TEMPERATURE = 7
    MEMORY_TEMPERATURE = 8
    TEMPERATURE_LIMIT = 9
    FAN = 10
    CLOCK = 11
    CLOCK_MAX = 12
    CLOCK_APPLICATIONS = 13
    THROTTLE_REASONS = 14
    THROTTLE_COUNTERS = 15
    PCIE_LINK = 16
    PROCESSES = 17
    ENCODER = 18
    """Utilisation of the engines, in calls and in sample buffers."""
    PCIE_THROUGHPUT = 19
    NVLINK = 20
    ECC = 21
    IDENTITY = 22
    GPM = 23
    EVENTS = 24
    MIG = 25
    REMAPPED_ROWS = 26
    RETIRED_PAGES = 27
    PCIE_COUNTERS = 28
    """Fields 197 and 198."""
    NVLINK_BYTES = 29
    """Fields 202 and 204."""
    PROCESS_UTILIZATION = 30
    POWER_FIELDS = 31
    """Fields 185 to 190."""
    PERSISTENCE = 32
    SERIAL = 33


class GpuState(IntEnum):
    """How a GPU answers."""

    OK = 0
    LOST = 1
    HUNG = 2
    """Calls block until the state changes."""
    NONSENSE = 3
    """Calls succeed and return implausible values: `Gpu.nonsense` selects them."""
    FAILING = 4
    """Every call fails with an unknown error."""
    NEEDS_RESET = 5


class Nonsense(IntEnum):
    """Implausible values of a GPU in the state NONSENSE; all its other values are correct."""

    ALL_BITS_SET = 0
    """Every number; sample buffers hold an unset entry and one beyond all measure."""
    HUGE_NUMBERS = 1
    """Every number is the largest that a signed one can be: 9.2e18 in 64 bits."""
    NOT_A_NUMBER = 2
    """Everything that comes as a floating-point number, which sample buffers then hold."""
    OVER_100_PERCENT = 3
    ZERO_TIMESTAMPS = 4
    FUTURE_TIMESTAMPS = 5
    """A year ahead."""
    BACKWARDS = 6
    """Counters halve with each reading."""
    MALFORMED_TEXT = 7
    """Names have quotes, backslashes, newlines, and bytes that are no UTF-8."""


class DriverState(IntEnum):
    """How the driver answers."""

    LOADED = 0
    NOT_LOADED = 1
    FORBIDDEN = 2
    MISMATCHED = 3
    BROKEN = 4
    """Every call fails with an unknown error."""
    BLOCKED = 5
    """The device files are blocked by cgroups."""


class Wave(IntEnum):
    """The shape of the load over time, by the wall clock; with a period of 0 the load is constant."""

    SQUARE = 0
    """Full for `wave_busy_us`, then none until the period ends."""
    SAW_TOOTH = 1
    """From none to full over the period."""
    RANDOM = 2
    """Constant for the period, then something else that depends on `wave_seed` and the time alone."""


class EventFault(IntEnum):
    """How waiting for events fails."""

    NONE = 0
    UNKNOWN_ERROR = 1
    GPU_IS_LOST = 2


class Activity(IntEnum):
    """Places in `Gpu.activity`: GPM's metric number less one."""

    GRAPHICS = 0
    SM = 1
    OCCUPANCY = 2
    INTEGER = 3
    TENSOR = 4
    TENSOR_DFMA = 5
    TENSOR_HMMA = 6
    TENSOR_DMMA = 7
    TENSOR_IMMA = 8
    DRAM = 9
    FP64 = 10
    FP32 = 11
    FP16 = 12


class Engine(IntEnum):
    """Places in `Gpu.engine_utilization` and `Gpu.engine_count`."""

    ENCODER = 0
    DECODER = 1
    JPEG = 2
    OFA = 3


_HEADER_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
_LENGTHS = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+),", _HEADER_TEXT)}
_TYPES: dict[str, type[Any]] = {
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
}


def _fields(structure: str) -> tuple[tuple[str, type[Any]], ...]:
    """The layout that the header gives a structure."""
    body = re.search(rf"^struct {structure} {{(.*?)^}};", _HEADER_TEXT, re.DOTALL | re.MULTILINE)
    assert body is not None
    found: list[tuple[str, type[Any]]] = []
    for kind, name, length in re.findall(r"(?:struct )?(\w+) (\w+)(?:\[(\w+)\])?;", body[1]):
        count = _LENGTHS[length] if length in _LENGTHS else int(length or 0)
        field_type = _TYPES[kind]
        found.append((name, field_type * count if count else field_type))
    return tuple(found)


class Process(ctypes.Structure):
    """A process on a GPU."""

    pid: int
    memory: int
    kind: int
    gpu_instance: int
    compute_instance: int
    share: int
    _fields_ = _fields("process")


class Instance(ctypes.Structure):
    """A MIG instance."""

    profile: bytes
    uuid: bytes
    gpu_instance: int
    compute_instance: int
    slices: int
    multiprocessors: int
    memory_total: int
    memory_used: int
    utilization: int
    _fields_ = _fields("instance")


_cuts = itertools.count(1)
"""An instance that is created again is a new instance with a new UUID."""
_TYPES |= {"process": Process, "instance": Instance}
NO_INSTANCE = 0xFFFF_FFFF


class Gpu(ctypes.Structure):
    """One GPU: `struct gpu`, in the units of NVML."""

    state: int
    nonsense: int
    unsupported: int
    absent_from_model: int
    removed: int
    hang_function: bytes
    uuid: bytes
    name: bytes
    serial: bytes
    vbios: bytes
    architecture: int
    capability: ctypes.Array[ctypes.c_uint64]
    device_id: int
    subsystem_id: int
    utilization: int
    memory_utilization: int
    engine_utilization: ctypes.Array[ctypes.c_uint64]
    wave: int
    wave_period_us: int
    wave_busy_us: int
    wave_seed: int
    ring_silent: int
    sample_period_us: int
    sample_depth: int
    sample_clock_offset_us: int
    activity: ctypes.Array[ctypes.c_double]
    engine_count: ctypes.Array[ctypes.c_uint64]
    gpm_counters: int
    power_milliwatts: int
    power_limit_milliwatts: int
    power_default_milliwatts: int
    energy_millijoules: int
    temperature: int
    memory_temperature: int
    temperature_limit: ctypes.Array[ctypes.c_uint64]
    clock_mhz: ctypes.Array[ctypes.c_uint64]
    clock_max_mhz: ctypes.Array[ctypes.c_uint64]
    clock_application_mhz: ctypes.Array[ctypes.c_uint64]
    throttle_reasons: int
    throttle_ns: ctypes.Array[ctypes.c_uint64]
    memory_total: int
    memory_reserved: int
    memory_used: int
    bar1_total: int
    bar1_used: int
    fans: int
    fan_percent: int
    persistence: int
    compute_mode: int
    pcie_generation: int
    pcie_generation_max: int
    pcie_width: int
    pcie_width_max: int
    pcie_replays: int
    pcie_counter_bits: int
    pcie_throughput_us: int
    pcie_transmitted_rate: float
    pcie_received_rate: float
    nvlinks: int
    nvlinks_down: int
    nvlink_per_link_only: int
    nvlink_errors: ctypes.Array[ctypes.c_uint64]
    nvlink_transmitted_rate: float
    nvlink_received_rate: float
    ecc_volatile: ctypes.Array[ctypes.c_uint64]
    ecc_aggregate: ctypes.Array[ctypes.c_uint64]
    remapped_rows: ctypes.Array[ctypes.c_uint64]
    retired_pages: ctypes.Array[ctypes.c_uint64]
    retired_pending: int
    event_types: int
    mig_current: int
    mig_pending: int
    mig_max: int
    instances: int
    instance: ctypes.Array[Instance]
    processes: int
    process: ctypes.Array[Process]
    accrued_at_us: int
    _fields_ = _fields("gpu")

    def lack(self, *groups: Group) -> None:
        """Answer "not supported" to these groups, and to no others but those that the model lacks anyway."""
        self.unsupported = sum(1 << group for group in groups)

    def run(self, *processes: tuple[int, int, bool]) -> None:
        """Hold these processes: process id, bytes, and whether it draws; each takes an equal share of the load.

        `gpu.process[i].kind` makes a client of MPS (2) of one, `run_on` moves one to a MIG instance.
        """
        for slot, (pid, memory, graphics) in zip(self.process, processes, strict=False):
            slot.pid, slot.memory, slot.kind = pid, memory, int(graphics)
            slot.gpu_instance = slot.compute_instance = NO_INSTANCE
            slot.share = 100 // len(processes)
        self.processes = len(processes)

    def run_on(self, instance: int, process: int = 0) -> None:
        """Move a process to a MIG instance, both by their places on this GPU."""
        slot, where = self.process[process], self.instance[instance]
        slot.gpu_instance, slot.compute_instance = where.gpu_instance, where.compute_instance

    def load(
        self, wave: Wave, period_us: int, *, percent: int = 100, busy_us: int | None = None, seed: int = 0
    ) -> None:
        """Load the GPU in a wave; `busy_us`, for SQUARE, is half the period unless given."""
        self.wave_period_us = 0
        self.wave, self.wave_seed, self.utilization = wave, seed, percent
        self.wave_busy_us = period_us // 2 if busy_us is None else busy_us
        self.wave_period_us = period_us

    def full_load_us(self, from_us: int, to_us: int) -> float:
        """The integral of the wave's shape, 0 to 1, between two times of the wall clock, in microseconds."""
        period = self.wave_period_us
        if to_us <= from_us:
            return 0.0
        if not period:
            return float(to_us - from_us)
        if self.wave == Wave.RANDOM:
            return _random_load(self.wave_seed, period, from_us, to_us)
        if self.wave == Wave.SQUARE:
            busy = min(self.wave_busy_us, period)
            return float(
                (to_us // period - from_us // period) * busy + min(to_us % period, busy) - min(from_us % period, busy)
            )
        whole = to_us // period - from_us // period
        return whole * period / 2 + ((to_us % period) ** 2 - (from_us % period) ** 2) / (2 * period)

    def true_busy_seconds(self, from_us: int, to_us: int) -> float:
        """The exact integral of the load between two times of the wall clock: what busy seconds should come to.

        The time of an entry of the sample buffers on the wall clock is its timestamp less `sample_clock_offset_us`.
        """
        return self.full_load_us(from_us, to_us) * self.utilization / 100 / 1e6

    def true_memory_busy_seconds(self, from_us: int, to_us: int) -> float:
        """The exact integral of the memory load between two times of the wall clock."""
        return self.full_load_us(from_us, to_us) * self.memory_utilization / 100 / 1e6

    def cut(self, *instances: tuple[str, int]) -> None:
        """Enable MIG with these instances, each a profile and its bytes, and idle; processes are gone."""
        cut = next(_cuts)
        self.instances = self.processes = 0
        for place, (slot, (profile, memory)) in enumerate(zip(self.instance, instances, strict=False)):
            slices = re.search(r"(\d+)g\.", profile)
            shares = re.match(r"(\d+)c\.", profile)
            slot.profile, slot.memory_total, slot.memory_used = profile.encode(), memory, 0
            slot.uuid = f"MIG-{self.uuid.decode()[-8:]}-57a1-4000-8{cut:03x}-{place:012x}".encode()
            slot.gpu_instance, slot.compute_instance = place + 1, 0
            slot.slices = int(slices[1]) if slices else 1
            slot.multiprocessors = 16 * (int(shares[1]) if shares else slot.slices)
            slot.utilization = 0
            slot.accrued_activity_us[:] = [0.0] * len(Activity)
        self.mig_current = self.mig_pending = 1
        self.instances = len(instances)

    def uncut(self) -> None:
        """Disable MIG."""
        self.mig_current = self.mig_pending = self.instances = self.processes = 0

    def restart_counters(self) -> None:
        """Everything that the driver counts since it was loaded starts from zero."""
        self.energy_millijoules = self.pcie_replays = 0
        for array in (self.throttle_ns, self.nvlink_errors, self.ecc_volatile):
            array[:] = [0] * len(array)
        for name, kind in self._fields_:
            if name.startswith("accrued_"):
                setattr(self, name, kind())
        self.accrued_at_us = time.time_ns() // 1000


_TYPES["gpu"] = Gpu


def _random_load(seed: int, period: int, from_us: int, to_us: int) -> float:
    total, bits = 0, (1 << 64) - 1
    while from_us < to_us:
        piece = from_us // period
        end = min((piece + 1) * period, to_us)
        mixed = ((seed ^ piece) + 0x9E37_79B9_7F4A_7C15) & bits
        mixed = (mixed ^ mixed >> 30) * 0xBF58_476D_1CE4_E5B9 & bits
        mixed = (mixed ^ mixed >> 27) * 0x94D0_49BB_1331_11EB & bits
        total += (end - from_us) * ((mixed ^ mixed >> 31) % 101)
        from_us = end
    return total / 100


class _Counter(ctypes.Structure):
    name: bytes
    calls: int
    _fields_ = _fields("counter")


class _Event(ctypes.Structure):
    slot: int
    type: int
    data: int
    _fields_ = _fields("event")


_TYPES |= {"counter": _Counter, "event": _Event}


class Control(ctypes.Structure):
    """The node: `struct control`."""

    size: int
    driver_state: int
    generation: int
    delay_us: int
    global_lock: int
    gpu_count: int
    slot: ctypes.Array[ctypes.c_uint64]
    plug_needs_init: int
    init_delay_us: int
    hang_function: bytes
    device_directory: bytes
    driver_version: bytes
    nvml_version: bytes
    cuda_version: int
    gpm_concurrent_max: int
    gpm_samples: int
    event_sets: int
    event_fault: int
    events: int
    event: ctypes.Array[_Event]
    counter: ctypes.Array[_Counter]
    gpu: ctypes.Array[Gpu]
    _fields_ = _fields("control")


_HOPPER: Mapping[str, object] = {
    "architecture": 9,
    "capability": (9, 0),
    "temperature_limit": (95, 92, 105, 88),
    "clock_mhz": (345, 345, 2619, 765),
    "clock_max_mhz": (1980, 1980, 2619, 1545),
    "power_limit_milliwatts": 700_000,
    "power_default_milliwatts": 700_000,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "mig_max": 7,
    "nvlinks": 18,
    "nvlink_transmitted_rate": 18 * 1.024e9,
    "nvlink_received_rate": 18 * 2.048e9,
    "engine_count": (0, 7, 7, 1),
    "lacks": (Group.RETIRED_PAGES, Group.NVLINK_BYTES),
}
_H200: Mapping[str, object] = {
    **_HOPPER,
    "name": b"NVIDIA H200",
    "vbios": b"96.00.A5.00.03",
    "device_id": 0x2335_10DE,
    "subsystem_id": 0x18BE_10DE,
    "memory_total": 143_771 * MEBIBYTE,
    "memory_reserved": 614 * MEBIBYTE,
    "bar1_total": 262_144 * MEBIBYTE,
    "clock_mhz": (345, 345, 3201, 765),
    "clock_max_mhz": (1980, 1980, 3201, 1545),
    "power_milliwatts": 77_670,
    "temperature": 28,
    "memory_temperature": 32,
}
_GEFORCE_LACKS = (
    Group.GPM,
    Group.MIG,
    Group.NVLINK,
    Group.NVLINK_BYTES,
    Group.MEMORY_TEMPERATURE,
    Group.REMAPPED_ROWS,
    Group.RETIRED_PAGES,
)
PROFILES: Mapping[str, Mapping[str, object]] = {
    "h100": {
        **_HOPPER,
        "name": b"NVIDIA H100 80GB HBM3",
        "vbios": b"96.00.A5.00.01",
        "device_id": 0x2330_10DE,
        "subsystem_id": 0x16C1_10DE,
        "memory_total": 81_559 * MEBIBYTE,
        "memory_reserved": 479 * MEBIBYTE,
        "bar1_total": 131_072 * MEBIBYTE,
        "power_milliwatts": 69_850,
        "temperature": 41,
        "memory_temperature": 48,
        "pcie_replays": 9,
    },
    "h200": _H200,
    "h200_mig": _H200,
    "l40s": {
        "name": b"NVIDIA L40S",
        "vbios": b"95.02.66.00.02",
        "architecture": 8,
        "capability": (8, 9),
        "device_id": 0x26B9_10DE,
        "subsystem_id": 0x1851_10DE,
        "memory_total": 46_068 * MEBIBYTE,
        "memory_reserved": 609 * MEBIBYTE,
        "bar1_total": 65_536 * MEBIBYTE,
        "clock_mhz": (2520, 2520, 9001, 1965),
        "clock_max_mhz": (2520, 2520, 9001, 1965),
        "power_milliwatts": 183_280,
        "power_limit_milliwatts": 350_000,
        "power_default_milliwatts": 350_000,
        "temperature": 64,
        "temperature_limit": (93, 90, 0, 88),
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "persistence": 0,
        "engine_count": (3, 3, 4, 1),
        "lacks": (
            Group.GPM,
            Group.MIG,
            Group.NVLINK,
            Group.NVLINK_BYTES,
            Group.MEMORY_TEMPERATURE,
            Group.RETIRED_PAGES,
            Group.FAN,
        ),
    },
    "rtx_2080_super": {
        "name": b"NVIDIA GeForce RTX 2080 SUPER",
        "vbios": b"90.04.7A.40.73",
        "architecture": 6,
        "capability": (7, 5),
        "device_id": 0x1E81_10DE,
        "subsystem_id": 0x4005_1458,
        "memory_total": 8_192 * MEBIBYTE,
        "memory_reserved": 408 * MEBIBYTE,
        "memory_used": 214 * MEBIBYTE,
        "bar1_total": 256 * MEBIBYTE,
        "bar1_used": 36 * MEBIBYTE,
        "clock_mhz": (300, 300, 405, 540),
        "clock_max_mhz": (2145, 2145, 7751, 1995),
        "power_milliwatts": 37_620,
        "power_limit_milliwatts": 250_000,
        "power_default_milliwatts": 250_000,
        "temperature": 40,
        "temperature_limit": (100, 97, 0, 89),
        "pcie_generation": 1,
        "pcie_generation_max": 3,
        "fans": 1,
        "fan_percent": 38,
        "persistence": 0,
        "lacks": (*_GEFORCE_LACKS, Group.ECC, Group.SERIAL, Group.PCIE_COUNTERS),
    },
    "rtx_4080_super": {
        "name": b"NVIDIA GeForce RTX 4080 SUPER",
        "vbios": b"95.03.44.00.B2",
        "architecture": 8,
        "capability": (8, 9),
        "device_id": 0x2702_10DE,
        "subsystem_id": 0x5110_1462,
        "memory_total": 17_171_480_576,
        "memory_reserved": 455_081_984,
        "bar1_total": 16_384 * MEBIBYTE,
        "clock_mhz": (2805, 2805, 11_251, 2145),
        "clock_max_mhz": (3165, 3165, 11_501, 0),
        "power_milliwatts": 84_240,
        "power_limit_milliwatts": 320_000,
        "power_default_milliwatts": 320_000,
        "temperature": 46,
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "fans": 2,
        "fan_percent": 0,
        "persistence": 0,
        "lacks": (*_GEFORCE_LACKS, Group.ECC, Group.SERIAL, Group.TEMPERATURE_LIMIT),
    },
    # As reported of a DGX Spark with driver 580: no memory of its own.
    "gb10": {
        "name": b"NVIDIA GB10",
        "architecture": 10,
        "capability": (12, 1),
        "clock_mhz": (208, 208, 0, 600),
        "clock_max_mhz": (3003, 3003, 0, 3003),
        "power_milliwatts": 11_170,
        "temperature": 35,
        "pcie_generation": 1,
        "pcie_generation_max": 5,
        "pcie_width": 1,
        "lacks": (
            *_GEFORCE_LACKS,
            Group.MEMORY,
            Group.BAR1,
            Group.POWER_LIMIT,
            Group.FAN,
            Group.ECC,
            Group.SERIAL,
            Group.PCIE_COUNTERS,
        ),
    },
}
"""Answers of real GPUs, and the groups of calls that they do not support. For `h200_mig` see also
`_H200_INSTANCES`."""

_H200_INSTANCES = (
    ("1c.3g.71gb", 71_424, 22, 2, 0),
    ("2c.3g.71gb", 71_424, 22, 2, 1),
    ("2g.35gb", 33_280, 17, 3, 0),
    ("1g.18gb", 16_384, 9, 9, 0),
    ("1g.18gb", 16_384, 9, 10, 0),
)
"""Profile, memory and memory in use in MiB, GPU instance, compute instance."""

_COMMON: Mapping[str, object] = {
    "sample_period_us": 166_667,
    "sample_depth": 100,
    "activity": (1.0, 0.8, 0.45, 0.1, 0.4, 0.0, 0.4, 0.0, 0.0, 0.5, 0.0, 0.2, 0.05),
    "engine_count": (1, 1, 0, 0),
    "energy_millijoules": 1_000_000,
    "bar1_used": MEBIBYTE,
    "persistence": 1,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_counter_bits": 64,
    "pcie_throughput_us": 20_000,
    "pcie_transmitted_rate": 352.0 * 1024,
    "pcie_received_rate": 329.0 * 1024,
    "event_types": 0x1 | 0x2 | 0x4 | XID | 0x10 | MIG_CONFIGURATION,
}


def build(*, old_driver: bool = False) -> Path:
    """Compile the library unless these very sources were compiled before, and return its folder."""
    sources = b"".join(source.read_bytes() for source in (HEADER, *SOURCES))
    kind = "old" if old_driver else "new"
    folder = Path(tempfile.gettempdir()) / f"nvml-stand-in-{os.getuid()}" / f"{sha256(sources).hexdigest()[:16]}-{kind}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("no C compiler on PATH: install gcc to build the stand-in for the driver's library")
        # Built aside and moved into place, since test processes may run side by side.
        aside = folder / f"{os.getpid()}.so"
        flags = ["-DOLD_DRIVER"] if old_driver else []
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
        command += ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(aside), *map(str, SOURCES), "-lpthread"]
        subprocess.run(command, check=True)
        aside.rename(library)
    return folder


class NvmlStandIn:
    """A node of stand-in GPUs, healthy and idle at first. Several programs may use one at the same time."""

    def __init__(self, directory: Path, *, gpus: int = 8, old_driver: bool = False, profile: str = "h100") -> None:
        """Build the library and write the control file.

        Args:
            directory: where the control file and the device files go; the caller's to delete.
            gpus: number of GPUs, at most 16.
            old_driver: leave out the functions that drivers gained late.
            profile: which model all GPUs are, a key of `PROFILES`.
        """
        self.library_directory = build(old_driver=old_driver)
        self.control_file = directory / "nvml-control"
        self.control_file.write_bytes(bytes(ctypes.sizeof(Control)))
        self.device_directory = directory / "dev"
        self.device_directory.mkdir(exist_ok=True)
        with self.control_file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.control = Control.from_buffer(self._memory)
        """Everything that has no function here."""
        self.control.size = ctypes.sizeof(Control)
        self.control.generation = 1
        self.control.gpu_count = gpus
        self.control.slot[:] = list(range(len(self.control.slot)))
        self.control.device_directory = bytes(self.device_directory)
        self.control.driver_version, self.control.nvml_version = b"590.48.01", b"13.590.48.01"
        self.control.cuda_version = 13_010
        self._profile = profile
        self._identities = 0
        (self.device_directory / "nvidiactl").touch()
        for slot, gpu in enumerate(self.control.gpu):
            (self.device_directory / f"nvidia{slot}").touch()
            self._install(gpu)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a program finds the library and its control file."""
        return {"LD_LIBRARY_PATH": str(self.library_directory), "NVML_STAND_IN_CONTROL": str(self.control_file)}

    @property
    def gpu(self) -> list[Gpu]:
        """The GPUs by index; setting a field takes effect at the next call."""
        return [self.control.gpu[slot] for slot in self.control.slot[: self.control.gpu_count]]

    @property
    def gpu_count(self) -> int:
        """How many GPUs the driver shows."""
        return self.control.gpu_count

    @gpu_count.setter
    def gpu_count(self, count: int) -> None:
        self.control.gpu_count = count

    def remove(self, index: int) -> None:
        """Take a GPU out of the node: it answers "lost", and the indices after it move down."""
        slots = list(self.control.slot)
        slot = slots.pop(index)
        self.control.gpu[slot].removed = 1
        self.control.slot[:] = [*slots, slot]
        self.control.gpu_count -= 1

    def add(self, index: int | None = None) -> Gpu:
        """Put a GPU, another one than all before, into the node: at this index, or as the last."""
        count, slots = self.control.gpu_count, list(self.control.slot)
        slot = slots.pop(count)
        gpu: Gpu = self.control.gpu[slot]
        self._install(gpu)
        slots.insert(count if index is None else index, slot)
        self.control.slot[:] = slots
        self.control.gpu_count += 1
        return gpu

    def swap(self, index: int) -> Gpu:
        """Put another GPU in the place of this one."""
        gpu = self.gpu[index]
        self._install(gpu)
        return gpu

    def raise_xid(self, index: int, xid: int) -> None:
        """Send an Xid event to the clients registered for it."""
        self._raise(index, XID, xid)

    def raise_mig_change(self, index: int) -> None:
        """Send an event for a changed MIG configuration to the clients registered for it."""
        self._raise(index, MIG_CONFIGURATION, 0)

    def set_event_fault(self, fault: EventFault) -> None:
        """Let waiting for events fail."""
        self.control.event_fault = fault

    def hang(self, function: str) -> None:
        """Let calls of this function block, by its name in the library, until it is called with ""."""
        self.control.hang_function = function.encode()

    def set_driver(self, state: DriverState) -> None:
        """Load or unload the driver; after a reload, clients must call init again."""
        if state is DriverState.LOADED and self.control.driver_state != DriverState.LOADED:
            self.reload_driver()
        self.control.driver_state = state

    def reload_driver(self) -> None:
        """As if the driver had been unloaded and loaded between two calls: counters start from zero."""
        for gpu in self.control.gpu:
            gpu.restart_counters()
        self.control.generation += 1

    def held_files(self, pid: int) -> list[str]:
        """Names of the device files that a process holds open: with any, a driver could not be unloaded."""
        held: list[str] = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = link.readlink()
            except FileNotFoundError:  # closed meanwhile
                continue
            if target.parent == self.device_directory:
                held.append(target.name)
        return sorted(held)

    def set_delay(self, microseconds: int) -> None:
        """Let each call take so long."""
        self.control.delay_us = microseconds

    def set_global_lock(self, held: bool) -> None:
        """Let calls wait for each other, so that one that hangs stops all."""
        self.control.global_lock = int(held)

    def counts(self) -> dict[str, int]:
        """Calls by function since the start or the last `reset_counts`."""
        return {slot.name.decode(): slot.calls for slot in self.control.counter if slot.name and slot.calls}

    def calls(self, functions: Iterable[str] | str | None = None) -> int:
        """How many calls there were of these functions, or of all."""
        counts = self.counts()
        if functions is None:
            return sum(counts.values())
        return sum(counts.get(name, 0) for name in ([functions] if isinstance(functions, str) else functions))

    def reset_counts(self) -> None:
        """Count from zero."""
        for slot in self.control.counter:
            slot.calls = 0

    @staticmethod
    def uuid(index: int) -> str:
        """The UUID of a GPU, by its index when the node was made."""
        return f"GPU-57a1d000-0000-4000-8000-{index:012x}"

    def _install(self, gpu: Gpu) -> None:
        """Make a healthy, idle GPU of the node's model with an identity of its own."""
        made = Gpu()
        for name, value in {**_COMMON, **PROFILES[self._profile]}.items():
            if name == "lacks":
                assert isinstance(value, tuple)
                made.absent_from_model = sum(1 << group for group in value)
            elif isinstance(value, tuple):
                getattr(made, name)[:] = value
            else:
                setattr(made, name, value)
        made.uuid = self.uuid(self._identities).encode()
        made.serial = f"16529230{self._identities:05}".encode()
        self._identities += 1
        made.accrued_at_us = time.time_ns() // 1000
        if self._profile == "h200_mig":
            made.cut(*((profile, memory * MEBIBYTE) for profile, memory, *_ in _H200_INSTANCES))
            for slot, (_, _, used, gpu_instance, compute_instance) in zip(made.instance, _H200_INSTANCES, strict=False):
                slot.memory_used = used * MEBIBYTE
                slot.gpu_instance, slot.compute_instance = gpu_instance, compute_instance
        # Replaced atomically: a concurrent reader never sees a partial state.
        ctypes.memmove(ctypes.addressof(gpu), ctypes.addressof(made), ctypes.sizeof(made))

    def _raise(self, index: int, kind: int, data: int) -> None:
        event = self.control.event[self.control.events % len(self.control.event)]
        event.slot, event.type, event.data = self.control.slot[index], kind, data
        self.control.events += 1
