"""The other half of `nvml_stand_in.c`: builds the library, and sets what its GPUs answer while programs use it.

node = NvmlStandIn(directory)
node.gpu[3].state = GpuState.LOST
subprocess.run([...], env=os.environ | node.environment)
node.calls("nvmlDeviceGetPowerUsage")
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from enum import IntEnum
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
MEBIBYTE = 1 << 20


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
    PCIE_THROUGHPUT = 19
    NVLINK = 20
    ECC = 21
    IDENTITY = 22


class GpuState(IntEnum):
    """How a GPU answers."""

    OK = 0
    LOST = 1
    HUNG = 2
    """Calls block until the state changes."""
    NONSENSE = 3
    """Every number comes with all bits set."""
    FAILING = 4
    """Every call fails with an unknown error."""


class DriverState(IntEnum):
    """How the driver answers."""

    LOADED = 0
    NOT_LOADED = 1
    FORBIDDEN = 2
    MISMATCHED = 3


class Process(ctypes.Structure):
    """A process on a GPU."""

    pid: int
    memory: int
    graphics: int
    _fields_ = (("pid", ctypes.c_uint64), ("memory", ctypes.c_uint64), ("graphics", ctypes.c_uint64))


class Gpu(ctypes.Structure):
    """One GPU: `struct gpu`, in the units of NVML."""

    state: int
    unsupported: int
    utilization: int
    memory_utilization: int
    wave_period_us: int
    wave_busy_us: int
    ring_silent: int
    power_milliwatts: int
    power_limit_milliwatts: int
    energy_millijoules: int
    temperature: int
    memory_temperature: int
    clock_mhz: ctypes.Array[ctypes.c_uint64]
    clock_max_mhz: ctypes.Array[ctypes.c_uint64]
    clock_application_mhz: ctypes.Array[ctypes.c_uint64]
    throttle_reasons: int
    throttle_ns: ctypes.Array[ctypes.c_uint64]
    memory_total: int
    memory_reserved: int
    memory_used: int
    fans: int
    fan_percent: int
    processes: int
    process: ctypes.Array[Process]
    _fields_ = (
        ("state", ctypes.c_uint64),
        ("unsupported", ctypes.c_uint64),
        ("utilization", ctypes.c_uint64),
        ("memory_utilization", ctypes.c_uint64),
        ("wave_period_us", ctypes.c_uint64),
        ("wave_busy_us", ctypes.c_uint64),
        ("ring_silent", ctypes.c_uint64),
        ("power_milliwatts", ctypes.c_uint64),
        ("power_limit_milliwatts", ctypes.c_uint64),
        ("energy_millijoules", ctypes.c_uint64),
        ("temperature", ctypes.c_uint64),
        ("memory_temperature", ctypes.c_uint64),
        ("clock_mhz", ctypes.c_uint64 * 4),
        ("clock_max_mhz", ctypes.c_uint64 * 4),
        ("clock_application_mhz", ctypes.c_uint64 * 4),
        ("throttle_reasons", ctypes.c_uint64),
        ("throttle_ns", ctypes.c_uint64 * 5),
        ("memory_total", ctypes.c_uint64),
        ("memory_reserved", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("fans", ctypes.c_uint64),
        ("fan_percent", ctypes.c_uint64),
        ("processes", ctypes.c_uint64),
        ("process", Process * 16),
    )

    def lack(self, *groups: Group) -> None:
        """Answer "not supported" to these groups, and to no others."""
        self.unsupported = sum(1 << group for group in groups)

    def run(self, *processes: tuple[int, int, bool]) -> None:
        """Hold these processes: process id, bytes, and whether it draws."""
        for slot, (pid, memory, graphics) in zip(self.process, processes, strict=False):
            slot.pid, slot.memory, slot.graphics = pid, memory, int(graphics)
        self.processes = len(processes)


class _Counter(ctypes.Structure):
    name: bytes
    calls: int
    _fields_ = (("name", ctypes.c_char * 64), ("calls", ctypes.c_uint64))


class _Control(ctypes.Structure):
    size: int
    driver_state: int
    generation: int
    delay_us: int
    global_lock: int
    gpu_count: int
    table_lock: int
    counter: ctypes.Array[_Counter]
    gpu: ctypes.Array[Gpu]
    _fields_ = (
        ("size", ctypes.c_uint64),
        ("driver_state", ctypes.c_uint64),
        ("generation", ctypes.c_uint64),
        ("delay_us", ctypes.c_uint64),
        ("global_lock", ctypes.c_uint64),
        ("gpu_count", ctypes.c_uint64),
        ("table_lock", ctypes.c_uint64),
        ("counter", _Counter * 128),
        ("gpu", Gpu * 16),
    )


def build(*, old_driver: bool = False) -> Path:
    """Compile the library unless this very source was compiled before, and return its folder."""
    source = SOURCE.read_bytes()
    kind = "old" if old_driver else "new"
    folder = Path(tempfile.gettempdir()) / f"nvml-stand-in-{os.getuid()}" / f"{sha256(source).hexdigest()[:16]}-{kind}"
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
        command += ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(aside), str(SOURCE), "-lpthread"]
        subprocess.run(command, check=True)
        aside.rename(library)
    return folder


class NvmlStandIn:
    """A node of stand-in GPUs, healthy and idle at first. Several programs may use one at the same time."""

    def __init__(self, directory: Path, *, gpus: int = 8, old_driver: bool = False) -> None:
        """Build the library and write the control file.

        Args:
            directory: where the control file goes; the caller's to delete.
            gpus: number of GPUs, at most 16.
            old_driver: leave out the functions that drivers gained late.
        """
        self.library_directory = build(old_driver=old_driver)
        self.control_file = directory / "nvml-control"
        self.control_file.write_bytes(bytes(ctypes.sizeof(_Control)))
        with self.control_file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._control = _Control.from_buffer(self._memory)
        self._control.size = ctypes.sizeof(_Control)
        self._control.generation = 1
        self._control.gpu_count = gpus
        for gpu in self._control.gpu:
            gpu.power_milliwatts = 69_850
            gpu.power_limit_milliwatts = 700_000
            gpu.energy_millijoules = 1_000_000
            gpu.temperature = 41
            gpu.memory_temperature = 48
            gpu.clock_mhz[:] = [345, 345, 2619, 765]
            gpu.clock_max_mhz[:] = [1980, 1980, 2619, 1545]
            gpu.memory_total = 81_559 * MEBIBYTE
            gpu.memory_reserved = 479 * MEBIBYTE

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to find the library and its control file."""
        return {"LD_LIBRARY_PATH": str(self.library_directory), "NVML_STAND_IN_CONTROL": str(self.control_file)}

    @property
    def gpu(self) -> list[Gpu]:
        """The GPUs; setting a field takes effect at the next call."""
        return list(self._control.gpu[: self._control.gpu_count])

    @property
    def gpu_count(self) -> int:
        """How many GPUs the driver shows."""
        return self._control.gpu_count

    @gpu_count.setter
    def gpu_count(self, count: int) -> None:
        self._control.gpu_count = count

    def set_driver(self, state: DriverState) -> None:
        """Load or unload the driver; loading it again asks for a new init."""
        if state is DriverState.LOADED and self._control.driver_state != DriverState.LOADED:
            self._control.generation += 1
        self._control.driver_state = state

    def reload_driver(self) -> None:
        """As if the driver had been unloaded and loaded between two calls."""
        self._control.generation += 1

    def set_delay(self, microseconds: int) -> None:
        """Let each call take so long."""
        self._control.delay_us = microseconds

    def set_global_lock(self, held: bool) -> None:
        """Let calls wait for each other, so that one that hangs stops all."""
        self._control.global_lock = int(held)

    def counts(self) -> dict[str, int]:
        """Calls by function since the start or the last `reset_counts`."""
        return {slot.name.decode(): slot.calls for slot in self._control.counter if slot.name and slot.calls}

    def calls(self, functions: Iterable[str] | str | None = None) -> int:
        """How many calls there were of these functions, or of all."""
        counts = self.counts()
        if functions is None:
            return sum(counts.values())
        return sum(counts.get(name, 0) for name in ([functions] if isinstance(functions, str) else functions))

    def reset_counts(self) -> None:
        """Count from zero."""
        for slot in self._control.counter:
            slot.calls = 0

    @staticmethod
    def uuid(index: int) -> str:
        """The UUID of a GPU."""
        return f"GPU-57a1d000-0000-4000-8000-{index:012x}"
