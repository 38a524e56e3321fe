"""Memory of GPUs that have none of their own and use the host's: NVIDIA's GB10 (DGX Spark) and Jetson.

For such a GPU, NVML answers "not supported" to the query for memory. Its CUDA compute capability identifies it, because
NVIDIA numbers these systems on a chip apart from GPUs with their own memory. A GPU with its own memory, such as the one
of a GH200, never gets the host's values, even if its query fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stallscope.node.drivers.device import Device, Identity, Readings, Unsupported

_INTEGRATED = frozenset(("5.3", "6.2", "7.2", "8.7", "10.1", "11.0", "12.1"))
"""Tegra X1, X2, Xavier, Orin, Thor (CUDA 12 and 13), GB10."""
_TEGRA = "(nvgpu)"
"""Ends the model's name with Jetson's older driver."""
_AMOUNTS = {b"MemTotal:": 0, b"MemAvailable:": 1}
_MOST_BYTES = 16384


class HostMemory(NamedTuple):
    """The host's memory in bytes."""

    total: int
    available: int
    """Bytes that programs, and so the GPU, can still allocate; the kernel drops its page cache for them."""


def has_unified_memory(identity: Identity) -> bool:
    """Return True if the GPU uses the host's memory as its own."""
    return not identity.mig and (identity.compute_capability in _INTEGRATED or identity.model.endswith(_TEGRA))


def host_memory(root: Path) -> HostMemory | None:
    """Return the host's memory; None if the kernel does not report it.

    Args:
        root: folder that contains `proc`.
    """
    amounts = [0, 0]
    try:
        with (root / "proc/meminfo").open("rb") as file:
            lines = file.read(_MOST_BYTES).split(b"\n")
        for line in lines:
            name, *value = line.split()[:2] or (b"",)
            if name in _AMOUNTS and value:
                amounts[_AMOUNTS[name]] = int(value[0]) * 1024
    except (OSError, ValueError):
        return None
    total, available = amounts
    return HostMemory(total, available) if 0 < available <= total else None


def read_memory(device: Device, root: Path) -> Readings:
    """Return the signals of the query `memory`; those of the host for a GPU that uses its memory.

    Args:
        device: the GPU.
        root: folder that contains `proc`.

    Raises:
        Unsupported: neither the driver nor the kernel reports them.
        DriverError: the driver fails otherwise.
    """
    try:
        return device.read("memory")
    except Unsupported:
        if (found := unified_memory(device, root)) is None:
            raise
        return found


def unified_memory(device: Device, root: Path) -> Readings | None:
    """Return the signals of the query `memory` for a GPU that uses the host's memory; None for another."""
    host = host_memory(root) if has_unified_memory(device.identity()) else None
    if host is None:
        return None
    return {"memory_total_bytes": host.total, "memory_used_bytes": host.total - host.available}
