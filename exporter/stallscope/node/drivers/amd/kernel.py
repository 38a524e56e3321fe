"""AMD GPUs as the kernel driver shows them; implements `stallscope.node.drivers.device`.

What a GPU is called, in order: its `product_name`, which only server boards have, else its PCI device id. It is
identified by `GPU-` and its `unique_id`, as ROCm's tools print it, else by its PCI bus address. A GPU that the kernel
has put to sleep is not woken: it is down with the reason `suspended` until something uses it. Partitions of an MI300
stay parts of the one GPU that their sensors belong to. `pcie_bw` is never read, since that takes a second.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from stallscope.node.drivers.amd.compute_nodes import ComputeNodes, compute_nodes, compute_processes
from stallscope.node.drivers.amd.device_files import DeviceFiles
from stallscope.node.drivers.amd.gpu_metrics import GpuMetrics, ThrottledTime, parse
from stallscope.node.drivers.amd.signals import FILES, File
from stallscope.node.drivers.device import (
    Device,
    DriverError,
    DriverUnavailable,
    GpuProcess,
    Identity,
    Listener,
    Readings,
    Rejection,
    SystemInfo,
    Unsupported,
    Utilization,
)
from stallscope.node.drivers.retry import EARLY, Retry
from stallscope.node.drivers.signals import QUERIES, Signal

_Answer = TypeVar("_Answer")
_COUNTERS = "counters of gpu_metrics"

_VENDOR = "1002"
_NO_NODES = ComputeNodes((), "")
_ECC_BLOCKS = ("umc", "gfx", "sdma", "mmhub")
"""Blocks whose errors are memory errors: the frame buffer, and the blocks in front of it."""
_ERROR_KINDS = {"ce": "corrected", "ue": "uncorrected"}

_MOST_ERRORS = 1 << 60
_MOST_TURNS = 100_000
_MOST_PWM = 255


class AmdDriver:
    """All GPUs of the machine that `amdgpu` drives; implements `stallscope.node.drivers.device.Driver`."""

    def __init__(self, root: Path = Path("/"), monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet.

        Args:
            root: where `sys` and `proc` are.
            monotonic: clock, seconds.
        """
        self._monotonic = monotonic
        self._root = str(root.absolute()).rstrip("/")
        self._files = DeviceFiles(f"{self._root}/sys")
        self._devices: dict[str, AmdDevice] = {}
        self._indices: dict[str, int] = {}
        """Numbers of all GPUs seen since `open`: the number of a removed GPU must not be used again."""

    @property
    def simulated(self) -> bool:
        """Always False."""
        return False

    @property
    def calls(self) -> int:
        """Files read so far that concern no particular GPU."""
        return self._files.calls

    def open(self) -> None:
        """Check that there is an AMD GPU.

        Raises:
            DriverUnavailable: with the reason `driver_not_loaded`.
        """
        self.devices()

    def close(self) -> None:
        """Drop the known GPUs; no file is open."""
        self._devices, self._indices = {}, {}

    def system(self) -> SystemInfo:
        """Return the driver's version, or that of its kernel."""
        module, kernel = f"{self._root}/sys/module/amdgpu/version", f"{self._root}/proc/sys/kernel/osrelease"
        version = _reported(self._files, module) or _reported(self._files, kernel)
        return SystemInfo(driver_version=version, cuda_version="")

    def devices(self) -> Sequence[Device]:
        """The GPUs, numbered in the order of their PCI bus addresses; one that comes later is the last.

        Raises:
            DriverUnavailable: the driver is missing, now or again.
        """
        found = self._cards()
        if not found:
            raise DriverUnavailable(
                "driver_not_loaded", f"the amdgpu driver shows no GPU in {self._root}/sys/class/drm"
            )
        nodes = compute_nodes(self._root, self._files)
        devices = {}
        for address in sorted(found):
            index = self._indices.setdefault(address, len(self._indices))
            device = self._devices.get(address) or AmdDevice(
                self._root, found[address], address, index, self._monotonic
            )
            device.nodes = nodes.get(address, _NO_NODES)
            devices[address] = device
        self._devices = devices
        return sorted(devices.values(), key=lambda device: device.index)

    def listen(self, devices: Sequence[Device]) -> Listener:  # noqa: ARG002 - the interface's
        """Never works.

        Raises:
            Unsupported: amdgpu reports events only to processes that have its device files open.
        """
        raise Unsupported("amdgpu reports no events through files")

    def _cards(self) -> dict[str, str]:
        """The device folder of each card by PCI bus address; connectors and other makers' cards are left out."""
        classes = f"{self._root}/sys/class/drm"
        try:
            names = os.listdir(classes)  # noqa: PTH208 - as in device_files
        except FileNotFoundError:
            return {}
        except OSError as problem:
            reason = "no_permission" if isinstance(problem, PermissionError) else "driver_error"
            raise DriverUnavailable(reason, f"{classes} cannot be listed: {problem.strerror}") from None
        found = {}
        for name in names:
            if not re.fullmatch(r"card\d+", name):
                continue
            folder = f"{classes}/{name}/device"
            try:
                event = self._files.read(f"{folder}/uevent").decode(errors="replace")
            except DriverError:
                continue
            properties = dict(line.split("=", 1) for line in event.splitlines() if "=" in line)
            address = properties.get("PCI_SLOT_NAME", "")
            vendor = properties.get("PCI_ID", "").partition(":")[0]
            if properties.get("DRIVER") == "amdgpu" and vendor == _VENDOR and address:
                found[address] = folder
        return found


class AmdDevice(Device):
    """One GPU."""

    def __init__(self, root: str, folder: str, address: str, index: int, monotonic: Callable[[], float]) -> None:
        """Read nothing yet."""
        self.index = index
        self.nodes = _NO_NODES
        """The GPU in the compute driver; replaced at every enumeration."""
        self._root = root
        self._folder = folder
        self._address = address
        self._files = DeviceFiles(folder)
        self._served: dict[str, str] = {}
        self._throttled = ThrottledTime()
        self._special: Mapping[str, Callable[[], Readings]] = {
            "counters": self._counters,
            "health": self._errors,
            "fans": self._fans,
        }
        """Signals that need code, by query."""
        self._retry = Retry(early=EARLY)
        """Of the firmware's table, where it holds no counters."""
        self._monotonic = monotonic
        self._uuid = ""
        self._implausible = False
        """True if a value of the present query was implausible."""
        self._refusal = ""
        """Message of the newest error of the present query."""
        self._link = ""
        """Folder of the device at the end of the link; empty until this query needs it."""

    @property
    def served(self) -> Mapping[str, str]:
        """File that serves each signal queried so far."""
        return dict(self._served)

    @property
    def calls(self) -> int:
        """Files read so far."""
        return self._files.calls

    @property
    def rejected(self) -> Mapping[Rejection, int]:
        """Implausible values, by reason."""
        return self._files.plausibility.counts

    def identity(self) -> Identity:
        """Identity of the GPU, readable while the GPU is suspended. The first UUID stays."""
        event = self._files.read("uevent").decode(errors="replace")
        device_id = re.search(r"^PCI_ID=\w+:(\w+)$", event, re.MULTILINE)
        if not self._uuid:
            unique = _reported(self._files, "unique_id").lower()
            self._uuid = f"GPU-{unique}" if unique.strip("0") else self._address
        return Identity(
            index=self.index,
            uuid=self._uuid,
            model=_reported(self._files, "product_name") or f"AMD GPU 0x{device_id[1].lower() if device_id else '?'}",
            serial=_reported(self._files, "serial_number"),
            pci_bus_id=self._address,
            vbios_version=_reported(self._files, "vbios_version"),
            architecture=self.nodes.instruction_set,
            compute_capability="",
        )

    def utilization(self) -> Utilization:
        """The firmware's own mean over some milliseconds."""
        self._begin()
        gpu = self._percent("gpu_busy_percent", "busy_seconds_total")
        try:
            memory = self._percent("mem_busy_percent", "memory_busy_seconds_total")
        except Unsupported:
            # An MI300A has no such file, because it is a CPU with graphics.
            reported = self._metrics().memory_activity
            if reported is None:
                raise
            memory = reported
            self._served["memory_busy_seconds_total"] = "gpu_metrics"
        return Utilization(gpu, memory)

    def read(self, query: str) -> Readings:
        """Return the signals of a query: those of its table, and those that need code."""
        if query not in FILES and query not in self._special:
            return super().read(query)
        self._begin()
        signals = QUERIES[query]
        found: dict[str, float | Mapping[str, float]] = {}
        for name, entry in FILES.get(query, {}).items():
            if isinstance(entry, File):
                value = self._if_reported(self._number, entry, signals[name], found)
                if value is not None:
                    found[name] = value
            else:
                reported = {
                    label: self._if_reported(self._number, each, signals[name], found) for label, each in entry.items()
                }
                values = {label: value for label, value in reported.items() if value is not None}
                if values:
                    found[name] = values
        if query in self._special:
            found |= self._special[query]()
        if not found:
            message = f"this GPU reports no {query}"
            raise DriverError("implausible", message) if self._implausible else Unsupported(self._refusal or message)
        return found

    def _number(self, file: File, signal: Signal, found: Readings) -> float | None:
        """Return the number in the first existing file, in base units; None for a zero that means unknown."""
        limit = found.get(signal.most) if isinstance(signal.most, str) else signal.most
        if not isinstance(limit, (int, float)):
            raise Unsupported(f"{signal.name} is unknown without {signal.most}")
        least = 0 if file.zero_is_missing else signal.least
        name, number = self._files.number_of(
            self._paths(file), limit * file.per_unit, least * file.per_unit, file.parse
        )
        if file.zero_is_missing and not number:
            return None
        self._served[signal.name] = name.rpartition("/")[2]
        return number / file.per_unit if file.per_unit > 1 else number

    def _counters(self) -> Readings:
        """Energy and throttled time of MI300 and later."""
        now = self._monotonic()
        metrics = self._if_reported(self._metrics) if self._retry.due(_COUNTERS, now) else None
        found: dict[str, float | Mapping[str, float]] = {}
        if metrics is None:
            return found
        if metrics.residencies is not None:
            found["throttled_seconds_total"] = self._throttled.add(metrics.residencies)
        if metrics.energy is not None:
            found["energy_joules_total"] = metrics.energy
        self._served.update(dict.fromkeys(found, "gpu_metrics"))
        if found:
            self._retry.answered(_COUNTERS)
        else:
            self._retry.refused(_COUNTERS, now)
        return found

    def _errors(self) -> Readings:
        """Errors in memory, corrected and not, over all blocks."""
        errors: dict[str, float] = {}
        for block in _ECC_BLOCKS:
            for kind, count in (self._if_reported(self._block_errors, block) or {}).items():
                errors[kind] = errors.get(kind, 0) + count
        return self._from("ecc_errors_total", "ras/*_err_count", errors)

    def _fans(self) -> Readings:
        """The one fan controller's speed over its maximum."""
        try:
            speed, most = self._sensor("fan1_input", _MOST_TURNS), self._sensor("fan1_max", _MOST_TURNS)
            name = "fan1_input"
        except Unsupported:
            speed, most, name = self._sensor("pwm1", _MOST_PWM), _MOST_PWM, "pwm1"
        return self._from("fan_speed_ratio", name, {"0": speed / most} if most else {})

    def _from(self, signal: str, file: str, values: Mapping[str, float]) -> Readings:
        """Return the values of a signal, if there are any, and note which file serves it."""
        if not values:
            return {}
        self._served[signal] = file
        return {signal: values}

    def throttle_reasons(self) -> frozenset[str]:
        """Throttle reasons from the firmware's table, up to MI200 and on Radeon; later GPUs count the time instead."""
        self._begin()
        reasons = self._metrics().throttle_reasons
        if reasons is None:
            raise Unsupported("this GPU does not report why its clocks are down")
        self._served["throttled_seconds_total"] = "gpu_metrics"
        return reasons

    def processes(self) -> Sequence[GpuProcess]:
        """Processes that compute; processes that draw are not reported."""
        self._begin()
        found = compute_processes(self._root, self._files, self.nodes.ids)
        self._served["processes"] = "kfd/proc/*/vram_*"
        return found

    def _begin(self) -> None:
        """Start a query. Raises DeviceLost if the GPU is suspended or gone."""
        self._files.stay_asleep()
        self._implausible, self._refusal, self._link = False, "", ""

    def _if_reported(self, call: Callable[..., _Answer], *arguments: object) -> _Answer | None:
        """Return the value; None if it is missing or implausible; other values stay valid."""
        try:
            return call(*arguments)
        except Unsupported as refusal:
            self._refusal = str(refusal)
            return None
        except DriverError as problem:
            if problem.reason != "implausible":
                raise
            self._implausible = True
            return None

    def _sensor(self, name: str, most: float) -> int:
        return self._files.number(self._sensors(name)[0], most)

    def _percent(self, name: str, signal: str) -> float:
        percent = self._files.number(name, 100)
        self._served[signal] = name
        return percent / 100

    def _paths(self, file: File) -> Sequence[str]:
        if file.folder == "sensors":
            return self._sensors(*file.names)
        if file.folder == "device":
            return file.names
        self._link = self._link or self._link_folder()
        return [f"{self._link}/{name}" for name in file.names]

    def _sensors(self, *names: str) -> list[str]:
        """Paths in the folder of sensors, whose number changes when the driver is loaded again."""
        try:
            folders = os.listdir(f"{self._folder}/hwmon")  # noqa: PTH208 - as in device_files
        except OSError:
            folders = []
        if not folders:
            self._files.read("uevent")  # distinguishes a lost GPU from one without sensors
            raise Unsupported(f"{self._folder} has no sensors")
        return [f"hwmon/{min(folders)}/{name}" for name in names]

    def _block_errors(self, block: str) -> dict[str, int]:
        """Parse lines such as `ue: 0`; empty if the driver can't query the block."""
        name = f"ras/{block}_err_count"
        lines = re.findall(rb"^(ue|ce): (\d+)$", self._files.read(name), re.MULTILINE)
        counts = {_ERROR_KINDS[kind.decode()]: int(count) for kind, count in lines}
        return {kind: self._files.plausibility.needed(name, count, _MOST_ERRORS) for kind, count in counts.items()}

    def _link_folder(self) -> str:
        """The device at the end of the machine's link: a card's own switch is AMD's too, and is always fast inside."""
        folder = os.path.realpath(self._folder)
        while self._is_bridge(os.path.dirname(folder)):  # noqa: PTH120 - as in device_files
            folder = os.path.dirname(folder)  # noqa: PTH120
        return folder

    def _is_bridge(self, folder: str) -> bool:
        try:
            return self._files.read(f"{folder}/vendor").strip() == b"0x1002"
        except Unsupported:
            return False

    def _metrics(self) -> GpuMetrics:
        found = parse(self._files.read("gpu_metrics"))
        if found is None:
            raise Unsupported(f"the version of {self._folder}/gpu_metrics is not known")
        return found


def _reported(files: DeviceFiles, name: str) -> str:
    """Return a file's text; empty without it. A temporary failure raises, so that a GPU never changes its name."""
    try:
        return files.text(name)
    except DriverError as problem:
        if isinstance(problem, Unsupported) or problem.reason == "no_permission":
            return ""
        raise
