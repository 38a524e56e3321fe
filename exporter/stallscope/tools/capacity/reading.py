"""Looks at every GPU twice, some seconds apart, each on a thread of its own: memory, processes, activity, health.

One look at the utilisation says nothing: between two steps it is zero. NVIDIA's driver remembers about 16 s of it, and
that is what counts while a process uses the GPU.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from stallscope.common.concurrency import Attempt, run_concurrently
from stallscope.node.drivers.device import (
    Activity,
    Device,
    DeviceLost,
    Driver,
    DriverError,
    DriverUnavailable,
    GpuProcess,
    Identity,
    Readings,
    TimedSample,
)
from stallscope.node.drivers.unified_memory import has_unified_memory, read_memory
from stallscope.node.owners.processes import Processes
from stallscope.tools.capacity.gpu import GpuNow, Holder

_REMEMBERED_US = 16_000_000
_LONGEST_SAMPLE_US = 1_200_000
"""Longest time that one sample covers: the driver takes several per second, none while the GPU sleeps."""
_SLOWED = frozenset({"hw_slowdown", "hw_thermal", "sw_thermal", "power_brake"})
"""Throttle reasons of a GPU in trouble; a power cap is what a busy one has, and a common clock its owner's will."""
_PCI_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_MOST_ANCESTORS = 64

_Answer = TypeVar("_Answer")


def read(
    driver: Driver,
    *,
    look: float = 2.0,
    limit: float = 10.0,
    root: Path = Path("/"),
    pause: Callable[[float], None] = time.sleep,
) -> list[GpuNow]:
    """Read all GPUs and MIG instances, by index, and close the driver.

    Args:
        driver: a connection that nothing else uses.
        look: seconds between the two looks.
        limit: seconds after which an answer is not waited for any more.
        root: folder that contains `proc`, `sys` and `etc`.
        pause: waits.

    Raises:
        DriverUnavailable: no driver responds.
        DriverError: the driver fails otherwise.
    """

    def devices() -> Sequence[Device]:
        driver.open()
        return driver.devices()

    (listed,) = run_concurrently({"driver": devices}, limit, "look at").values()
    if not listed.ended.is_set():
        raise DriverUnavailable("hung", f"the driver did not answer within {limit:g} s")
    if listed.error is not None:
        raise listed.error
    looks = [_Look(each, place, root) for place, each in enumerate(listed.answer or ())]
    begun = run_concurrently({str(each.place): each.begin for each in looks}, limit, "look at")
    pause(look)
    well = [each for each in looks if _well(begun[str(each.place)])]
    ended = run_concurrently({str(each.place): each.end for each in well}, limit, "look at")
    attempts = {**begun, **ended}
    found: list[GpuNow] = []
    for each in looks:
        attempt = attempts[str(each.place)]
        if not attempt.ended.is_set():
            found.append(each.failed(f"it did not answer within {limit:g} s"))
        elif attempt.error is not None:
            found.append(each.failed(_reason(attempt.error)))
        else:
            found += attempt.answer or ()
    if all(each.ended.is_set() for each in attempts.values()):
        driver.close()
    return _with_surroundings(found, root)


def _well(attempt: Attempt[list[GpuNow]]) -> bool:
    return attempt.ended.is_set() and attempt.error is None


def _reason(error: Exception) -> str:
    return f"{error.reason}: {error}" if isinstance(error, DriverError) else str(error)


class _Look:
    """The two looks at one GPU and its instances."""

    def __init__(self, device: Device, place: int, root: Path) -> None:
        self.place = place
        self._root = root
        self._device = device
        self._identity = Identity(place, "", "", "", "", "", "", "")
        self._parts: list[_Part] = []
        self._cut = False

    def begin(self) -> list[GpuNow]:
        self._identity = self._device.identity()
        instances = _reported(self._device.instances)
        self._cut = instances is not None
        self._parts = [_Part(each, self._root) for each in (self._device, *(instances or ()))]
        return []

    def end(self) -> list[GpuNow]:
        whole, *instances = [part.now() for part in self._parts]
        health = _reported(lambda: self._device.read("health")) or {}
        whole = replace(
            whole,
            cut=self._cut,
            compute_mode=_reported(self._device.compute_mode),
            throttled=(_reported(self._device.throttle_reasons) or frozenset()) & _SLOWED,
            faults=tuple(_faults(health)),
        )
        # What ails the whole ails its parts.
        return [
            whole,
            *(
                replace(part, compute_mode=whole.compute_mode, throttled=whole.throttled, faults=whole.faults)
                for part in instances
            ),
        ]

    def failed(self, trouble: str) -> GpuNow:
        return GpuNow(self._identity, trouble=trouble)


class _Part:
    """One GPU or instance, looked at once already."""

    def __init__(self, device: Device, root: Path) -> None:
        self._device = device
        self._root = root
        self._samples = _reported(lambda: device.utilization_samples("gpu", 0))
        _reported(device.activity)  # the values cover the time since the last call

    def now(self) -> GpuNow:
        device = self._device
        activity = _reported(device.activity) or Activity(0.0)
        memory = _reported(lambda: read_memory(device, self._root)) or {}
        total, used, reserved = (_bytes(memory, kind) for kind in ("total", "used", "reserved"))
        busy = self._busy()
        if busy is None and activity.graphics is not None:
            busy = _Busy(activity.graphics, activity.seconds, activity.graphics)
        processes: Iterable[GpuProcess] = _reported(device.processes) or ()
        identity = device.identity()
        if has_unified_memory(identity) and used is not None and reserved is None:
            reserved = max(0, used - sum(each.memory or 0 for each in processes))
            used -= reserved
        return GpuNow(
            identity=identity,
            memory_total=total,
            memory_free=None if total is None or used is None else max(0, total - used - (reserved or 0)),
            memory_reserved=reserved,
            holders=tuple(Holder(each.pid, each.memory, each.kind) for each in processes),
            busy=busy.ratio if busy is not None else None,
            busy_seconds=busy.seconds if busy is not None else 0.0,
            busy_now=busy.newest if busy is not None else None,
            sm_active=activity.sm,
        )

    def _busy(self) -> _Busy | None:
        device, before = self._device, self._samples
        if before is not None:
            newest = before[-1].timestamp_us if before else 0
            newer = _reported(lambda: device.utilization_samples("gpu", newest)) or ()
            if newer:
                samples = [*before, *newer]
                since = max(samples[-1].timestamp_us - _REMEMBERED_US, samples[0].timestamp_us)
                ratio, recent = _mean(samples, since), _mean(samples, newest) if newest else None
                if ratio is not None:
                    return _Busy(ratio, (samples[-1].timestamp_us - since) / 1e6, ratio if recent is None else recent)
        # Nothing new comes from a GPU that sleeps, or that keeps no record.
        reported = _reported(device.utilization)
        return None if reported is None else _Busy(reported.gpu, 1.0, reported.gpu)


@dataclass(frozen=True)
class _Busy:
    ratio: float
    seconds: float
    newest: float


def _mean(samples: Sequence[TimedSample], since_us: int) -> float | None:
    """The mean over the time since; a sample speaks for the time since the one before it."""
    busy = span = 0.0
    for before, sample in pairwise(samples):
        if before.timestamp_us >= since_us:
            gap = sample.timestamp_us - before.timestamp_us
            busy += sample.value * min(gap, _LONGEST_SAMPLE_US)
            span += gap
    return busy / span if span else None


def _reported(query: Callable[[], _Answer]) -> _Answer | None:
    """The answer, or None where this GPU has none now.

    Raises:
        DeviceLost, DriverUnavailable: the GPU, or the driver, is gone.
    """
    try:
        return query()
    except (DeviceLost, DriverUnavailable):
        raise
    except DriverError:
        return None


def _bytes(memory: Readings, kind: str) -> int | None:
    value = memory.get(f"memory_{kind}_bytes")
    return int(value) if isinstance(value, (int, float)) else None


def _faults(health: Readings) -> Iterable[str]:
    if health.get("row_remap_pending"):
        yield "a memory row waits to be remapped: reset the GPU while it is not in use"
    if health.get("row_remap_failed"):
        yield "a memory row could not be remapped: have the GPU replaced"


def _with_surroundings(gpus: Sequence[GpuNow], root: Path) -> list[GpuNow]:
    """Return the GPUs with their NUMA nodes and the users, commands and ancestors of their processes."""
    pids = {holder.pid for gpu in gpus for holder in gpu.holders}
    known = Processes(root).look_up(pids)
    ancestors = {pid: _ancestors(root, pid) for pid in pids}
    return [
        replace(
            gpu,
            numa_node=_numa_node(root, gpu.identity.pci_bus_id),
            holders=tuple(
                holder._replace(
                    user=known[holder.pid].user if holder.pid in known else "",
                    command=_text(root / f"proc/{holder.pid}/comm"),
                    ancestors=ancestors[holder.pid],
                )
                for holder in gpu.holders
            ),
        )
        for gpu in gpus
    ]


def _ancestors(root: Path, pid: int) -> frozenset[int]:
    found: set[int] = set()
    while pid > 0 and pid not in found and len(found) < _MOST_ANCESTORS:
        found.add(pid)
        # A name may contain blanks and brackets; the state and the parent follow its last bracket.
        parts = _text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0
    return frozenset(found)


def _numa_node(root: Path, bus_id: str) -> int | None:
    """Return the GPU's NUMA node; None if the machine has only one or it is unknown."""
    address = _PCI_ADDRESS.fullmatch(bus_id)
    if address is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in address.groups())
    node = _text(root / f"sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.{function:x}/numa_node")
    return int(node) if node.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
