"""Cost of this process for the host: CPU time, memory, the cgroup's quota, the garbage collector.

Read twice a second at most, so it must cost little: files are read whole with three system calls each, and what takes
many of them, children and cgroup, in turns and every few seconds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from _thread import get_ident
from collections.abc import Iterator
from math import inf

from stallscope.common.standard_library import loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOK_EVERY = 5.0
"""Seconds between looks at the children, and at the cgroup's account."""
_QUOTA_EVERY = 60.0
"""Seconds between looks at which quota holds; one that is changed under way is rare."""
_MAX_CHILDREN = 128
_MAX_THREADS = 32
_LONGEST = 1 << 16


class ProcessProbe:
    """Reads this process and its children from the operating system.

    Children are all below this process, ended ones included: workers of a fork server are its children, not ours.
    Memory is resident memory, so pages that forked workers share count once for each: what is shared fairly takes the
    kernel milliseconds to find out.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/") + "/"
        self._page = os.sysconf("SC_PAGESIZE")
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._collection_began = 0.0
        self._collection = 0.0
        self._children_cpu = 0.0
        self._children_pages = 0
        self._children_due = self._cgroup_due = self._quota_due = -inf
        self._cgroup: dict[str, float] = {}
        self._quota = inf
        self._statistics = ""
        self._kills = ""
        self._limit: float | None = None
        self._thread = 0
        self._thread_time = 0.0
        self._thread_cpu = 0.0
        gc.callbacks.append(self._collected)

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The report's counters and gauges of this process; what can't be read is left out."""
        now = time.monotonic()
        times = os.times()
        # Where both are due, which readings far apart always find, the one whose turn it is.
        children_due = now >= self._children_due <= self._cgroup_due
        if children_due:
            self._children_due = now + _LOOK_EVERY
            self._look_at_children(times.children_user + times.children_system)
        if self._limit is None or (now >= self._cgroup_due and not children_due):
            self._cgroup_due = now + _LOOK_EVERY
            self._look_at_cgroup(now)
        self._look_at_thread()
        counters = {
            "process_cpu_seconds": times.user + times.system + self._children_cpu,
            "main_thread_cpu_seconds": self._thread_cpu,
            "garbage_collection_seconds": self._collection,
            **self._cgroup,
        }
        gauges = {}
        if self._limit is not None:
            gauges["cpu_limit_cores"] = self._limit
        statm = self._bytes("proc/self/statm").split(None, 2)
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

    def _look_at_thread(self) -> None:
        """Add the CPU time of the loop's thread, which reports: the main thread, except in Ray and notebooks."""
        thread, used = get_ident(), time.thread_time()
        if thread == self._thread or not self._thread:
            self._thread_cpu += used - self._thread_time
        self._thread, self._thread_time = thread, used

    def _look_at_children(self, ended: float) -> None:
        # Loader workers live as long as an epoch or the run, and os.times() knows only children that ended.
        cpu_time, pages = ended, 0
        waiting = [child for thread in _threads() for child in self._bytes(f"proc/self/task/{thread}/children").split()]
        seen = 0
        while waiting and seen < _MAX_CHILDREN:
            seen += 1
            child = waiting.pop().decode()
            # Fields of stat after the name, which may contain anything: 14 to 17 are its own and its children's ticks,
            # 24 its resident pages.
            fields = self._bytes(f"proc/{child}/stat").rpartition(b")")[2].split(None, 22)
            if len(fields) > 21:
                cpu_time += (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) * self._tick
                pages += int(fields[21])
                waiting += self._bytes(f"proc/{child}/task/{child}/children").split()
        self._children_cpu = max(self._children_cpu, cpu_time)  # one may end between two readings
        self._children_pages = pages

    def _look_at_cgroup(self, now: float) -> None:
        if now >= self._quota_due:
            self._quota_due = now + _QUOTA_EVERY
            self._quota, self._statistics = self._find_quota()
            self._kills = self._find_kills()
        self._limit = min(_cores(), self._quota)
        found = self._fields(self._statistics)
        with contextlib.suppress(KeyError, ValueError):
            unit, key = (1e-6, "throttled_usec") if "throttled_usec" in found else (1e-9, "throttled_time")
            self._cgroup |= {
                "cpu_periods": float(found["nr_periods"]),
                "cpu_throttled_periods": float(found["nr_throttled"]),
                "cpu_throttled_seconds": float(found[key]) * unit,
            }
        with contextlib.suppress(KeyError, ValueError):
            self._cgroup["cgroup_oom_kills"] = float(self._fields(self._kills)["oom_kill"])

    def _find_quota(self) -> tuple[float, str]:
        """The tightest quota in cores among the own cgroup and those above it, and that one's cpu.stat."""
        tightest, statistics = inf, ""
        for folder, is_unified in self._cgroup_folders("cpu"):
            cores = self._allowed(folder, is_unified)
            if cores is not None and (cores < tightest or not statistics):
                tightest, statistics = cores, f"{folder}/cpu.stat"
        return tightest, statistics

    def _find_kills(self) -> str:
        """Return the file that counts the processes killed for memory in this process' cgroup, or an empty string.

        Version 2 counts those of the cgroups below as well, version 1 those of this cgroup alone. A cgroup without a
        memory controller has no such file: its memory is charged to the nearest cgroup above that has one.
        """
        for folder, is_unified in self._cgroup_folders("memory"):
            path = f"{folder}/memory.events" if is_unified else f"{folder}/memory.oom_control"
            if "oom_kill" in self._fields(path):
                return path
        return ""

    def _cgroup_folders(self, controller: str) -> Iterator[tuple[str, bool]]:
        """Yield the folders of the own cgroup and those above it, and whether each is of version 2."""
        for line in self._text("proc/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if not controllers:
                mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
            elif controller in controllers.split(","):
                mounts = [f"sys/fs/cgroup/{controller}", f"sys/fs/cgroup/{controllers}"]
            else:
                continue
            for mount in mounts:
                for folder in _upwards(mount, path):
                    yield folder, not controllers

    def _allowed(self, folder: str, unified: bool) -> float | None:
        """Return the quota of one cgroup, infinite without a limit, None without the cgroup."""
        try:
            if unified:
                quota, period = self._text(f"{folder}/cpu.max").split()
            else:
                quota = self._text(f"{folder}/cpu.cfs_quota_us").strip()
                period = self._text(f"{folder}/cpu.cfs_period_us").strip()
            return inf if quota in ("max", "-1") else int(quota) / int(period)
        except (ValueError, ZeroDivisionError):
            return None

    def _fields(self, path: str) -> dict[str, str]:
        return dict(line.split(None, 1) for line in self._text(path).splitlines() if " " in line)

    def _text(self, path: str) -> str:
        return self._bytes(path).decode(errors="replace")

    def _bytes(self, path: str) -> bytes:
        try:
            file = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(file, _LONGEST)
        except OSError:  # a folder, or a process that ended just now
            return b""
        finally:
            os.close(file)


def _cores() -> float:
    if hasattr(os, "sched_getaffinity"):
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _threads() -> list[int]:
    """Threads that may have started children: the kernel keeps children by the thread that did."""
    threading: Any = loaded("threading")
    if threading is None:
        return [os.getpid()]
    found = [thread.native_id for thread in threading.enumerate()[:_MAX_THREADS]]
    return list({os.getpid(), *[thread for thread in found if thread is not None]})


def _upwards(mount: str, path: str) -> list[str]:
    """The cgroup's folder and those above it. In a container the path is the host's, and only the mount is there."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([mount, *parts[:length]]) for length in range(len(parts), -1, -1)]
