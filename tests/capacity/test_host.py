"""Cores and memory of the host, from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallscope.tools.capacity.host import cpu_time, host

CORES = os.cpu_count() or 1


def machine(root: Path, *, ticks: str, cpu_max: str = "", memory_max: str = "", memory_current: str = "") -> Path:
    for name, text in {
        "proc/stat": f"cpu  {ticks}\ncpu0 1 2 3\n",
        "proc/meminfo": "MemTotal:       65536 kB\nMemFree: 10 kB\nMemAvailable:   32768 kB\n",
        "sys/fs/cgroup/cpu.max": cpu_max,
        "sys/fs/cgroup/memory.max": memory_max,
        "sys/fs/cgroup/memory.current": memory_current,
    }.items():
        if text:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n")
    return root


def test_idle_cores_are_what_all_cores_idled_in_between(tmp_path: Path) -> None:
    before = cpu_time(machine(tmp_path, ticks="100 0 100 800 0 0 0 0 50 50"))
    after = cpu_time(machine(tmp_path, ticks="150 0 100 840 10 0 0 0 99 99"))
    found = host(before, after, tmp_path)
    assert found.idle_cores == pytest.approx(CORES * 50 / 100)
    assert (found.memory_total, found.memory_available) == (64 << 20, 32 << 20)


def test_limits_of_the_control_group_count_where_they_are_lower(tmp_path: Path) -> None:
    root = machine(
        tmp_path, ticks="0 0 0 0", cpu_max="50000 100000", memory_max=str(16 << 20), memory_current=str(15 << 20)
    )
    found = host((0, 0), (100, 100), root)
    assert (found.cores, found.idle_cores) == (0.5, 0.5)
    assert (found.memory_total, found.memory_available) == (16 << 20, 1 << 20)


def test_missing_files_leave_values_unknown(tmp_path: Path) -> None:
    found = host(cpu_time(tmp_path), cpu_time(tmp_path), tmp_path)
    assert (found.idle_cores, found.memory_total, found.memory_available) == (None, None, None)
    assert found.cores >= 1
