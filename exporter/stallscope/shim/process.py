"""What this process costs the host: processor time, memory, the cgroup's quota, the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from math import inf

_CHILDREN_EVERY = 5.0
"""Seconds between looks at children and cgroup, which take a file each."""


class ProcessProbe:
    """Reads this process and its children from the operating system."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._page = os.sysconf("SC_PAGESIZE")
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._collection_began = 0.0
        self._collection = 0.0
        self._children_cpu = 0.0
        self._children_pages = 0
        self._next_look = -inf
        self._cgroup: dict[str, float] = {}
        self._limit: float | None = None
        self._main_thread_cpu: float | None = None
        gc.callbacks.append(self._collected)

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The report's counters and gauges of this process; what can't be read is left out."""
        now = time.monotonic()
        times = os.times()
        if now >= self._next_look:
            self._next_look = now + _CHILDREN_EVERY
            self._look_at_children(times.children_user + times.children_system)
            self._look_at_cgroup()
        counters = {
            "process_cpu_seconds": times.user + times.system + self._children_cpu,
            "garbage_collection_seconds": self._collection,
            **self._cgroup,
        }
        if _on_main_thread():
            self._main_thread_cpu = time.thread_time()
        if self._main_thread_cpu is not None:
            counters["main_thread_cpu_seconds"] = self._main_thread_cpu
        gauges = {}
        if self._limit is not None:
            gauges["cpu_limit_cores"] = self._limit
        statm = self._text("proc/self/statm").split()
        if len(statm) > 1:
            gauges["process_memory_bytes"] = float((int(statm[1]) + self._children_pages) * self._page)
        return counters, gauges

    def close(self) -> None:
        """Stop timing the garbage collector."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
        elif self._collection_began:
            self._collection += time.perf_counter() - self._collection_began
            self._collection_began = 0.0

    def _look_at_children(self, ended: float) -> None:
        # Loader workers live as long as an epoch or the run, and os.times() knows only children that ended.
        processor, pages = ended, 0
        for child in self._text(f"proc/self/task/{os.getpid()}/children").split():
            # Fields of stat after the name, which may contain anything: 14 to 17 are its own and its children's ticks.
            fields = self._text(f"proc/{child}/stat").rpartition(")")[2].split()
            statm = self._text(f"proc/{child}/statm").split()
            if len(fields) > 14:
                processor += sum(map(int, fields[11:15])) * self._tick
            if len(statm) > 1:
                pages += int(statm[1])
        self._children_cpu = max(self._children_cpu, processor)  # a child may end between the two readings
        self._children_pages = pages

    def _look_at_cgroup(self) -> None:
        cores = float(len(os.sched_getaffinity(0)))
        quota, statistics = self._quota()
        self._limit = min(cores, quota)
        found = dict(line.split(None, 1) for line in self._text(statistics).splitlines() if " " in line)
        with contextlib.suppress(KeyError, ValueError):
            unit, key = (1e-6, "throttled_usec") if "throttled_usec" in found else (1e-9, "throttled_time")
            self._cgroup = {
                "cpu_periods": float(found["nr_periods"]),
                "cpu_throttled_periods": float(found["nr_throttled"]),
                "cpu_throttled_seconds": float(found[key]) * unit,
            }

    def _quota(self) -> tuple[float, str]:
        """The tightest quota in cores among the own cgroup and those above it, and that one's cpu.stat."""
        tightest, statistics = inf, ""
        for line in self._text("proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
            elif "cpu" in controllers.split(","):
                mounts = ["sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"]
            else:
                continue
            for mount in mounts:
                for folder in _upwards(mount, path):
                    cores = self._cores(folder, not controllers)
                    if cores is None:
                        continue
                    if cores < tightest or not statistics:
                        tightest, statistics = cores, f"{folder}/cpu.stat"
        return tightest, statistics

    def _cores(self, folder: str, unified: bool) -> float | None:
        """The quota of one cgroup, infinite where it has none, None where there is no such cgroup."""
        try:
            if unified:
                quota, period = self._text(f"{folder}/cpu.max").split()
            else:
                quota = self._text(f"{folder}/cpu.cfs_quota_us").strip()
                period = self._text(f"{folder}/cpu.cfs_period_us").strip()
            return inf if quota in ("max", "-1") else int(quota) / int(period)
        except (ValueError, ZeroDivisionError):
            return None

    def _text(self, path: str) -> str:
        try:
            with open(os.path.join(self._root, path), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def _upwards(mount: str, path: str) -> list[str]:
    """The cgroup's folder and those above it. In a container the path is the host's, and only the mount is there."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([mount, *parts[:length]]) for length in range(len(parts), -1, -1)]


def _on_main_thread() -> bool:
    import threading

    return threading.get_native_id() == os.getpid()
