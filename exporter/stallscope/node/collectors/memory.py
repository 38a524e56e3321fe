"""Memory: `/proc/meminfo` and `/proc/vmstat`; after a kill, which cgroups it was in."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, register
from stallscope.node.collectors.cgroups import CgroupKills
from stallscope.node.collectors.files import malformed, read_if_answered, read_text
from stallscope.node.sampling.reading import Sample

TOTAL = family("stallscope_host_memory_total_bytes")
AVAILABLE = family("stallscope_host_memory_available_bytes")
PAGE_CACHE = family("stallscope_host_page_cache_bytes")
EVENTS = {
    "pswpin": family("stallscope_host_swap_in_bytes_total"),
    "pswpout": family("stallscope_host_swap_out_bytes_total"),
    "pgmajfault": family("stallscope_host_major_page_faults_total"),
    "oom_kill": family("stallscope_host_oom_kills_total"),
}
CGROUP_KILLS = family("stallscope_host_cgroup_oom_kills_total")

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FACTORS = {"pswpin": _PAGE, "pswpout": _PAGE}
_AMOUNTS = frozenset(("MemTotal:", "MemAvailable:", "Cached:", "Shmem:"))


@register
class Memory(Collector):
    """Memory in use, and the effects of memory shortage. Values that an old kernel does not report are absent."""

    name = "memory"
    summary = "Memory, page cache, swap traffic, major faults and out-of-memory kills (/proc/meminfo, /proc/vmstat)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._meminfo = str(environment.root / "proc/meminfo")
        self._vmstat = str(environment.root / "proc/vmstat")
        self._cgroups = CgroupKills(environment.root)

    def read(self) -> Iterable[Sample]:
        """Read both files once, and the cgroups' counters after a kill.

        Raises:
            OSError: there is no `/proc/meminfo`: no Linux, or the wrong root.
            ValueError: a file is not as the kernel writes it.
        """
        meminfo = read_text(self._meminfo)
        amounts = _pick(self._meminfo, meminfo, _AMOUNTS)
        if "MemTotal:" not in amounts:
            raise malformed(self._meminfo, meminfo.partition("\n")[0], "expected a line MemTotal")
        samples = [Sample(TOTAL, (), amounts["MemTotal:"] * 1024)]
        if "MemAvailable:" in amounts:
            samples.append(Sample(AVAILABLE, (), amounts["MemAvailable:"] * 1024))
        if "Cached:" in amounts:
            # Shared memory is counted as cached, but no reading of a file can be served from it.
            samples.append(Sample(PAGE_CACHE, (), max(0, amounts["Cached:"] - amounts.get("Shmem:", 0)) * 1024))
        vmstat = read_if_answered(self._vmstat)
        if vmstat is not None:
            events = _pick(self._vmstat, vmstat, EVENTS)
            samples += [Sample(EVENTS[name], (), count * _FACTORS.get(name, 1)) for name, count in events.items()]
            if "oom_kill" in events:
                kills = self._cgroups.read(events["oom_kill"])
                samples += [Sample(CGROUP_KILLS, (cgroup,), count) for cgroup, count in kills.items()]
        return samples


def _pick(path: str, text: str, names: Collection[str]) -> dict[str, int]:
    """Return the numbers of the wanted lines, by their first word."""
    numbers: dict[str, int] = {}
    for line in text.split("\n"):
        name, _, rest = line.partition(" ")
        if name in names:
            try:
                numbers[name] = int(rest.split()[0])
            except (ValueError, IndexError):
                raise malformed(path, line, "expected a name and a whole number") from None
    return numbers
