"""A simulated host: a small `/proc` and `/sys` whose counters match the scenario.

Started with `root` at this tree, the exporter's host sources read it as they would the machine's own. The kernel and
the CPU have "simulated" in their names, so that it can't be mistaken for a real host.
"""

from __future__ import annotations

import os
from pathlib import Path

from stallscope.lab.simulation.node import Node, pid
from stallscope.lab.simulation.scenarios import GpuLoss, HostLoad, LoadChange, Scenario, SharedGpu, Stall

CPUS = 64
SLURM_JOB = "4242"
"""The simulated job, as the owner of the GPUs."""
_OTHER_SLURM_JOB = "4243"
"""The job that shares a GPU with it."""
USER = "simulated"
_USER_NUMBER = 4242
_LoadSeconds = tuple[tuple[HostLoad, float], ...]
_TICKS = 100
"""Clock ticks a second in `/proc/stat`."""
_MEMORY_KIB = 1024**3
_DISK_BYTES_PER_SECOND = 1.8e9
"""While the data disk has work."""
_NETWORK_BYTES_PER_SECOND = 3.125e9
_SECTOR = 512
_NFS_SECONDS = 0.05
"""Seconds of each operation of the remote file system."""
_NFS_BYTES = 65_536
"""Bytes that each operation reads."""
_PAGE = 4096
_SHARED_MEMORY_PAGES = _MEMORY_KIB // 2 * 1024 // _PAGE
"""Size of `/dev/shm`: half of the memory, as by default."""
_ASLEEP = HostLoad(cpu=0.01, disk=0.0)
"""No step is made and nothing is loaded."""
_STORAGE_HANGS = HostLoad(cpu=0.01, iowait=0.3, io_waiting=0.95, disk=1.0)
"""Every loader waits for the data disk."""
_POLLING = HostLoad(cpu=8 / CPUS, disk=0.0)
"""Utilisation while each rank's main thread polls for the end of a collective."""
_SHARES_OF_BUSY = (0.88, 0.12)
"""User and system time."""


class SimulatedHost:
    """Writes the tree, as a function of the simulation's time alone."""

    def __init__(self, root: Path, node: Node) -> None:
        self._root = root
        self._node = node
        for folder in ("sys/block/nvme0n1/device", "sys/class/net/eth0/device"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for path, text in _constant_files(node).items():
            self._replace(path, text)
        self.write()

    def write(self) -> None:
        """Update every counter to the present; files are replaced as a whole."""
        now = self._node.now()
        seconds = _load_seconds(self._node.scenario, now)
        load = self._load()
        for path, text in (
            ("proc/stat", self._stat(seconds)),
            ("proc/uptime", f"{now:.2f} {now * CPUS * 0.5:.2f}\n"),
            ("proc/diskstats", _diskstats(seconds)),
            ("proc/net/dev", _net_dev(seconds)),
            ("proc/meminfo", _meminfo(load)),
            ("proc/self/mountstats", _mountstats(seconds)),
            ("proc/vmstat", _vmstat(seconds)),
            ("proc/pressure/cpu", _pressure(sum(load.cpu_waiting * part for load, part in seconds), 0.0)),
            ("proc/pressure/io", _pressure(*(sum(load.io_waiting * part for load, part in seconds),) * 2)),
            ("proc/pressure/memory", _pressure(*(sum(load.memory_waiting * part for load, part in seconds),) * 2)),
        ):
            self._replace(path, text)

    def statvfs(self, _path: str) -> os.statvfs_result:
        """Return the size and use of `/dev/shm`, which the tree can't contain: it is on a disk."""
        free = round(_SHARED_MEMORY_PAGES * (1.0 - self._load().shared_memory))
        return os.statvfs_result((_PAGE, _PAGE, _SHARED_MEMORY_PAGES, free, free, 0, 0, 0, 0, 255))

    def _load(self) -> HostLoad:
        """Return the present load."""
        now = self._node.now()
        return _load_seconds(self._node.scenario, now)[now >= self._node.scenario.onset][0]

    def _stat(self, seconds: _LoadSeconds) -> str:
        now = sum(part for _load, part in seconds)
        rows = []
        for cpu in range(CPUS):
            # Loaders are spread over all CPUs, some of them slightly busier than others.
            lean = cpu % 3 - 1
            shares = [
                (min(load.cpu * (1.0 + load.cpu_spread * lean), 1.0 - load.iowait), load.iowait, part)
                for load, part in seconds
            ]
            busy = sum(share * part for share, _waiting, part in shares)
            waiting = sum(share * part for _busy, share, part in shares)
            idle = sum((1.0 - share - lost) * part for share, lost, part in shares)
            user, system = (busy * share for share in _SHARES_OF_BUSY)
            # Whole ticks of each mode by itself: a remainder would now and then step back.
            rows.append([int(mode * _TICKS) for mode in (user, 0, system, idle, waiting, 0, 0, 0, 0, 0)])
        totals = [sum(column) for column in zip(*rows, strict=True)]
        lines = ["cpu  " + " ".join(map(str, totals))]
        lines += [f"cpu{number} " + " ".join(map(str, row)) for number, row in enumerate(rows)]
        lines += [
            "intr 0",
            f"ctxt {round(now * 20_000)}",
            f"btime {int(self._node.epoch)}",
            "processes 4242",
            "procs_running 9",
            "procs_blocked 0",
        ]
        return "\n".join(lines) + "\n"

    def _replace(self, path: str, text: str) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_text(text)
        fresh.replace(target)


def busy_cpu_seconds(scenario: Scenario, now: float) -> float:
    """Return the CPU time of the job until then, summed over CPUs."""
    return CPUS * sum(load.cpu * seconds for load, seconds in _load_seconds(scenario, now))


def _load_seconds(scenario: Scenario, now: float) -> _LoadSeconds:
    """The load before the fault and from its onset on, each with the seconds it has lasted."""
    after = scenario.host
    if isinstance(scenario.fault, LoadChange):
        after = scenario.fault.host
    elif isinstance(scenario.fault, Stall):
        after = _POLLING if scenario.fault.spinning else _STORAGE_HANGS if scenario.fault.storage else _ASLEEP
    elif isinstance(scenario.fault, GpuLoss):
        after = _POLLING
    before_seconds = min(now, scenario.onset)
    return ((scenario.host, before_seconds), (after, now - before_seconds))


def _pressure(waiting: float, stalled: float) -> str:
    return "".join(
        f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={round(seconds * 1e6)}\n"
        for kind, seconds in (("some", waiting), ("full", stalled))
    )


def _diskstats(seconds: _LoadSeconds) -> str:
    busy_seconds = sum(load.disk * part for load, part in seconds)
    busy = round(busy_seconds * 1000)
    read = round(busy_seconds * _DISK_BYTES_PER_SECOND / _SECTOR)
    operations = read // 256
    # Reads, writes, discards and flushes in the kernel's 17 columns after the name.
    return f" 259       0 nvme0n1 {operations} 0 {read} {busy} 0 0 0 0 0 {busy} {busy} 0 0 0 0 0 0\n"


def _net_dev(seconds: _LoadSeconds) -> str:
    size = round(sum(load.network * part for load, part in seconds) * _NETWORK_BYTES_PER_SECOND)
    errors = round(sum(load.network_errors * part for load, part in seconds))
    packets = size // 1400
    received = f"{size} {packets} {errors} 0 0 0 0 0"
    sent = f"{size // 4} {packets // 4} 0 0 0 0 0 0"
    return (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier "
        "compressed\n"
        "    lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        f"  eth0: {received} {sent}\n"
    )


def _mountstats(seconds: _LoadSeconds) -> str:
    root = "device simulated mounted on / with fstype ext4\n"
    if not any(load.nfs_in_flight for load, _ in seconds):
        return root
    waited = sum(load.nfs_in_flight * part for load, part in seconds)
    operations = int(waited / _NFS_SECONDS)
    size, milliseconds = operations * _NFS_BYTES, round(waited * 1000)
    return (
        f"{root}device simulated:/data mounted on /data with fstype nfs4 statvers=1.1\n"
        f"\tbytes:\t{size} 0 0 0 {size} 0 0 0\n"
        "\tper-op statistics\n"
        f"\t        READ: {operations} {operations} 0 {operations * 200} {size} 0 {milliseconds} {milliseconds} 0\n"
    )


def _vmstat(seconds: _LoadSeconds) -> str:
    pages = round(sum(load.swapped_pages * part for load, part in seconds))
    kills = int(sum(load.oom_kills * part for load, part in seconds))
    return f"pswpin {pages}\npswpout {pages}\npgfault 1000\npgmajfault {pages}\noom_kill {kills}\n"


def _meminfo(load: HostLoad) -> str:
    available = round(_MEMORY_KIB * (1.0 - load.memory))
    sizes = {
        "MemTotal": _MEMORY_KIB,
        "MemFree": min(available, _MEMORY_KIB // 4),
        "MemAvailable": available,
        "Buffers": 65_536,
        "Cached": available // 2,
        "SwapCached": 0,
        "Active": _MEMORY_KIB // 4,
        "Inactive": _MEMORY_KIB // 4,
        "SwapTotal": _MEMORY_KIB // 16 if load.swapped_pages else 0,
        "SwapFree": _MEMORY_KIB // 32 if load.swapped_pages else 0,
        "Shmem": 2_097_152,
        "Slab": 4_194_304,
    }
    return "".join(f"{name + ':':<16}{value:>12} kB\n" for name, value in sizes.items())


def _constant_files(node: Node) -> dict[str, str]:
    cpuinfo = "".join(
        f"processor\t: {cpu}\nvendor_id\t: Simulated\nmodel name\t: Simulated {CPUS}-way processor\n\n"
        for cpu in range(CPUS)
    )
    return {
        **_processes(node),
        "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{_USER_NUMBER}:{_USER_NUMBER}::/:/bin/sh\n",
        "proc/cpuinfo": cpuinfo,
        "proc/loadavg": f"{CPUS / 2:.2f} {CPUS / 2:.2f} {CPUS / 2:.2f} 9/900 4242\n",
        "proc/version": "Linux version simulated\n",
        "proc/sys/kernel/osrelease": "simulated\n",
        "proc/sys/kernel/hostname": f"simulated-{node.seed}\n",
        "sys/devices/system/cpu/online": f"0-{CPUS - 1}\n",
        "sys/class/net/eth0/speed": "25000\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/type": "1\n",
        "sys/block/nvme0n1/size": f"{7_501_476_528}\n",
        "sys/block/nvme0n1/queue/rotational": "0\n",
    }


def _processes(node: Node) -> dict[str, str]:
    """The ranks, each a task of one Slurm job, so that the GPUs have an owner."""
    files: dict[str, str] = {}
    fault = node.scenario.fault
    for rank in range(node.gpu_count):
        number = pid(rank)
        job = _OTHER_SLURM_JOB if isinstance(fault, SharedGpu) and rank == fault.free else SLURM_JOB
        files |= {
            f"proc/{number}/stat": f"{number} (python) R 1 {number} {number} 0 -1 0"
            + " 0" * 12
            + " 4242"
            + " 0" * 30
            + "\n",
            f"proc/{number}/status": f"Name:\tpython\nPid:\t{number}\nUid:" + f"\t{_USER_NUMBER}" * 4 + "\n",
            f"proc/{number}/cgroup": f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_{rank}\n",
            f"proc/{number}/environ": f"SLURM_JOB_ID={job}\0RANK={rank}\0",
        }
    return files
