"""A node's host series: its own load, and what its runs cause."""

from __future__ import annotations

import numpy as np

from tests.scenarios.disturbance import Floats
from tests.scenarios.model import COLUMN, interpolated
from tests.scenarios.sheet import Sheet
from tests.scenarios.story import Host
from tests.scenarios.world import BEGIN, World

_BOOT = 3e5
"""Seconds for which the machine had been up at time 0."""
_CHECKPOINT_RATE = 0.8e9
"""Bytes a second that a checkpoint writes."""


def show_host(sheet: Sheet, world: World) -> None:
    """Add the host's series of one node."""
    _cpus(sheet, world)
    _memory(sheet, world)
    _storage(sheet, world)
    _network(sheet, world)
    for resource, waiting, stalled in (
        ("cpu", lambda host: host.cpu_waiting, lambda host: 0.0),
        ("memory", lambda host: host.memory_waiting, lambda host: 0.6 * host.memory_waiting),
        ("io", lambda host: host.io_waiting, lambda host: host.io_stalled),
    ):
        sheet.add(
            "stallscope_host_pressure_waiting_seconds_total",
            900 + world.host_integral(sheet.node, waiting, sheet.times),
            resource=resource,
        )
        sheet.add(
            "stallscope_host_pressure_stalled_seconds_total",
            300 + world.host_integral(sheet.node, stalled, sheet.times),
            resource=resource,
        )


def cores_busy(world: World, node: int, times: Floats) -> Floats:
    """Return the CPU seconds of everything on the node: at most those of its CPUs."""
    level = world.disturbance.level[node]
    cpus = world.story.nodes[node].cpus

    def others(host: Host) -> float:
        # A load that a case is about is as it says.
        return host.cores * (level if host.cores < 0.1 * cpus else 1.0)

    total = world.host_integral(node, others, times)
    for claim in world.ranks_on(node):
        total = total + world.rank_cpu(claim, times)
    return total


def _cpus(sheet: Sheet, world: World) -> None:
    node, times, cpus = sheet.node, sheet.times, world.story.nodes[sheet.node].cpus
    sheet.add("stallscope_host_info", 1, kernel="6.8.0-60-generic", cpu_model="Xeon Platinum 8480C")
    sheet.add("stallscope_host_cpus", cpus)

    def load(moments: Floats) -> Floats:
        """Return busy seconds since the exporter's start, each second at most the number of CPUs."""
        fine = np.arange(BEGIN, world.horizon + 2, 1.0)
        grown = np.minimum(np.diff(cores_busy(world, node, fine)), 0.995 * cpus)
        return interpolated(moments, fine, np.concatenate([[0.0], np.cumsum(grown)]))

    busy = load(times)
    waited = world.host_integral(node, lambda host: host.iowait * cpus, times)
    elapsed = (times - BEGIN) * cpus
    waited = np.minimum(waited, elapsed - busy)
    for mode, values, before in (
        ("user", 0.86 * busy, 0.2),
        ("system", 0.13 * busy, 0.05),
        ("other", 0.01 * busy, 0.01),
        ("iowait", waited, 0.01),
        ("idle", elapsed - busy - waited, 0.73),
    ):
        sheet.add("stallscope_host_cpu_seconds_total", before * _BOOT * cpus + values, mode=mode)

    def busiest(moments: Floats) -> Floats:
        fine = np.arange(BEGIN, world.horizon + 2, 1.0)
        mean = np.diff(load(fine)) / cpus
        threads = [np.diff(world.main_thread(claim, fine)) for claim in world.ranks_on(node)]
        threads += [np.diff(world.loader_worker(claim, fine)) for claim in world.ranks_on(node)]
        top = np.maximum.reduce([np.minimum(1.0, 1.15 * mean + 0.1), *threads])
        said = world.host_state(node, lambda host: -1.0 if host.busiest is None else host.busiest, fine[:-1])
        top = np.minimum(np.where(said >= 0, said, top), 1.0)
        return interpolated(moments, fine, np.concatenate([[0.0], np.cumsum(top)]))

    sheet.add("stallscope_host_busiest_cpu_seconds_total", sheet.counted(busiest, BEGIN))


def _memory(sheet: Sheet, world: World) -> None:
    node, times = sheet.node, sheet.times
    total = world.story.nodes[node].memory
    available = 1 - world.host_state(node, lambda host: host.memory_used, times)
    cache = np.minimum(world.host_state(node, lambda host: host.page_cache, times), available)
    sheet.add("stallscope_host_memory_total_bytes", total)
    sheet.add("stallscope_host_memory_available_bytes", np.floor(total * available))
    sheet.add("stallscope_host_page_cache_bytes", np.floor(total * cache))
    for name, rate in (
        ("swap_in_bytes_total", lambda host: host.swap_in),
        ("swap_out_bytes_total", lambda host: host.swap_out),
        ("major_page_faults_total", lambda host: host.faults),
    ):
        sheet.add(
            f"stallscope_host_{name}",
            4096 * np.floor(world.host_integral(node, rate, times) / 4096)
            if "bytes" in name
            else 9e4 + np.floor(world.host_integral(node, rate, times)),
        )
    kills = world.oom_kills(node, times)
    sheet.add("stallscope_host_oom_kills_total", kills)
    since_start = sheet.counted(lambda moments: world.oom_kills(node, moments), BEGIN)
    sheet.add("stallscope_host_cgroup_oom_kills_total", since_start, since_start > 0, cgroup="/training.slice")
    shared = world.story.nodes[node].shared_memory
    sheet.add("stallscope_host_shared_memory_total_bytes", shared)
    sheet.add(
        "stallscope_host_shared_memory_used_bytes",
        np.floor(shared * world.host_state(node, lambda host: host.shared_memory, times)),
    )


def _saved(world: World, node: int, times: Floats) -> Floats:
    """Bytes that checkpoints have written."""
    from_ranks = [
        claim.course.phases(claim.rank, times)[:, COLUMN["checkpoint"]]
        for claim in world.ranks_on(node)
        if claim.rank == 0
    ]
    return _CHECKPOINT_RATE * np.sum(from_ranks, axis=0) if from_ranks else np.zeros_like(times)


def _storage(sheet: Sheet, world: World) -> None:
    node, times = sheet.node, sheet.times
    level = sheet.level
    read = world.host_integral(node, lambda host: host.disk_read * level, times) + world.samples_read(
        node, "disk", times
    )
    written = world.host_integral(node, lambda host: host.disk_written * level, times) + _saved(world, node, times)
    sheet.add("stallscope_host_disk_read_bytes_total", 5e11 + np.floor(read), device="nvme0n1")
    sheet.add("stallscope_host_disk_written_bytes_total", 2e11 + np.floor(written), device="nvme0n1")
    sheet.add(
        "stallscope_host_disk_busy_seconds_total",
        8e3 + world.host_integral(node, lambda host: host.disk_busy, times),
        device="nvme0n1",
    )
    mount = world.story.nodes[node].nfs
    if mount:
        sheet.add(
            "stallscope_host_nfs_read_bytes_total", 3e11 + np.floor(world.samples_read(node, "nfs", times)), mount=mount
        )
        operations = world.host_integral(node, lambda host: host.nfs_operations, times)
        sheet.add("stallscope_host_nfs_operations_total", 1e6 + np.floor(operations), mount=mount)
        sheet.add(
            "stallscope_host_nfs_operation_wait_seconds_total",
            5e4 + world.host_integral(node, lambda host: host.nfs_in_flight, times),
            mount=mount,
        )


def _network(sheet: Sheet, world: World) -> None:
    node, times = sheet.node, sheet.times
    machine = world.story.nodes[node]
    remote = world.samples_read(node, "network", times) + 1.02 * world.samples_read(node, "nfs", times)
    for direction, rate, data in (
        ("receive", lambda host: host.received * sheet.level, remote),
        ("transmit", lambda host: host.transmitted * sheet.level, 0.02 * remote),
    ):
        sheet.add(
            f"stallscope_host_network_{direction}_bytes_total",
            7e11 + np.floor(world.host_integral(node, rate, times) + data),
            device="eth0",
        )
    sheet.add("stallscope_host_network_link_bytes_per_second", machine.link, device="eth0")
    dropped = world.host_integral(node, lambda host: host.dropped, times)
    errors = world.host_integral(node, lambda host: host.errors, times)
    sheet.add("stallscope_host_network_drops_total", 12 + np.floor(dropped), device="eth0")
    sheet.add("stallscope_host_network_errors_total", np.floor(errors), device="eth0")
    across = [claim for claim in world.ranks_on(node) if len(claim.run.ranks) > 1]
    for port in range(machine.rdma):
        sheet.add("stallscope_host_rdma_link_bytes_per_second", 5e10, device=f"mlx5_{port}", port="1")
        moved = np.zeros_like(times)
        for claim in across[port :: machine.rdma]:
            moved = moved + claim.course.effect(claim.rank, "nvlink", times) / 8
        for direction in ("receive", "transmit"):
            sheet.add(
                f"stallscope_host_rdma_{direction}_bytes_total",
                4e12 + np.floor(moved),
                device=f"mlx5_{port}",
                port="1",
            )
