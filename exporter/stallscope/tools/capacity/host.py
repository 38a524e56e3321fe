"""Idle cores and available memory of the host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stallscope.node.drivers.unified_memory import memory_information

_IDLE, _IO_WAIT = 3, 4
"""Places in the first line of `/proc/stat`, behind the name."""
_GUESTS = 8
"""Index of the first guest field; guest time is included in the earlier fields."""


@dataclass(frozen=True)
class Host:
    """The machine, or the container of this process. Unknown values are None."""

    cores: float
    """Cores that programs may use."""
    idle_cores: float | None
    memory_total: int | None
    memory_available: int | None


def cpu_time(root: Path = Path("/")) -> tuple[float, float]:
    """Return the total time of all cores and their idle time, in the kernel's ticks."""
    try:
        first = (root / "proc/stat").read_text().partition("\n")[0].split()[1:]
        ticks = [float(each) for each in first[:_GUESTS]]
    except (OSError, ValueError):
        return 0.0, 0.0
    return sum(ticks), sum(ticks[_IDLE : _IO_WAIT + 1])


def host(before: tuple[float, float], after: tuple[float, float], root: Path = Path("/")) -> Host:
    """The host between two times; a limit of our own control group counts where it is lower.

    Args:
        before: `cpu_time` some seconds ago.
        after: `cpu_time` now.
        root: folder that contains `proc` and `sys`.
    """
    all_cores = os.cpu_count() or 1
    cores = float(len(os.sched_getaffinity(0)))
    quota = _words(root / "sys/fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal() and int(quota[1]):
        cores = min(cores, int(quota[0]) / int(quota[1]))
    spent, idled = after[0] - before[0], after[1] - before[1]
    memory = memory_information(root)
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    limit, used = (_words(root / f"sys/fs/cgroup/memory.{each}") for each in ("max", "current"))
    if limit and limit[0].isdecimal() and used and used[0].isdecimal():
        left = max(0, int(limit[0]) - int(used[0]))
        total = int(limit[0]) if total is None else min(total, int(limit[0]))
        available = left if available is None else min(available, left)
    return Host(
        cores=cores,
        idle_cores=min(cores, all_cores * idled / spent) if spent > 0 else None,
        memory_total=total,
        memory_available=available,
    )


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
