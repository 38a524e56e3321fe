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
    amounts = memory_information(root)
    total, available = amounts.get("MemTotal", 0), amounts.get("MemAvailable", 0)
    return HostMemory(total, available) if 0 < available <= total else None


def memory_information(root: Path) -> dict[str, int]:
    """Return the amounts of `/proc/meminfo` in bytes, by name; empty if it can't be read.

    Args:
        root: folder that contains `proc`.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    parts = [line.split() for line in lines]
    return {part[0].rstrip(":"): int(part[1]) * 1024 for part in parts if len(part) > 1 and part[1].isdecimal()}


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
