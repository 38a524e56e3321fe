"""Hosts of the ranks, and the data that they provide."""

from __future__ import annotations

from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import ORANGE, Override, limit_line, second_axis
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.run_queries import RANK_HERE, TO_HOST, few_hosts, few_ranks, of_nodes


def _on_hosts(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "percentunit",
    lines: tuple[tuple[str, str], ...] = (),
    further: tuple[Override, ...] = (),
    by_host: bool = True,
) -> Panel:
    return time_series(
        title,
        description,
        [*queries, *(threshold(name, legend) for name, legend in lines)],
        unit=unit,
        width=8,
        overrides=[*limit_line(*(legend for _name, legend in lines), colour=ORANGE), *further],
        links=[TO_HOST] if by_host else [],
    )


def _cpus() -> Panel:
    return _on_hosts(
        "CPU utilisation and busiest CPU",
        "All CPUs of a node, and its busiest CPU alone. If one CPU is at its limit while others are idle, everything "
        "waits for one thread. The busiest nodes are shown.",
        few_hosts(f"host:cpu_busy:ratio5m{{{HOST}}}@@", "all, {{instance}}"),
        few_hosts(
            f"rate(stallscope_host_busiest_cpu_seconds_total{{{HOST}}}[$__rate_interval]@@)", "busiest, {{instance}}"
        ),
        lines=(("cpu_saturated", "limit reached"), ("single_thread_core", "one CPU saturated")),
    )


def _process() -> Panel:
    return _on_hosts(
        "CPUs used, relative to the limit",
        "CPU use of a rank and its loader relative to its quota or affinity. At 100 %, raise the limit, or decode less "
        "per sample. Main thread: the loop itself. The ranks with the highest use are shown.",
        few_ranks(
            f"rate(stallscope_training_process_cpu_seconds_total{{{RANK_HERE}}}[$__rate_interval]@@)"
            f" / stallscope_training_cpu_limit_cores{{{RANK_HERE}}}@@",
            "rank {{rank}}",
        ),
        few_ranks(
            f"rate(stallscope_training_main_thread_cpu_seconds_total{{{RANK_HERE}}}[$__rate_interval]@@)",
            "main thread of {{rank}}",
        ),
        lines=(("cpu_saturated", "limit reached"),),
    )


def _throttled() -> Panel:
    return _on_hosts(
        "CPU throttling",
        "Share of CFS periods in which a rank was throttled. Above the line: raise the container's limit, or run no "
        "more workers than it allows.",
        few_ranks(
            f"rate(stallscope_training_cpu_throttled_periods_total{{{RANK_HERE}}}[$__rate_interval]@@)"
            f" / (rate(stallscope_training_cpu_periods_total{{{RANK_HERE}}}[$__rate_interval]@@) > 0)",
            "rank {{rank}}",
        ),
        lines=(("quota_throttled", "too much"),),
    )


def _workers() -> Panel:
    return _on_hosts(
        "Loader workers",
        "Loader workers of each rank, and per CPU of a waiting rank. Few workers and idle CPUs: add workers. More than "
        "one per CPU: remove some.",
        Query(f"min by (run) (stallscope_training_dataloader_workers{{{RANK_HERE}}})", "fewest per rank"),
        Query(f"max by (run) (stallscope_training_dataloader_workers{{{RANK_HERE}}})", "most per rank"),
        Query(f"max by (run) (rank:workers_of_cpus:ratio{{{RANK_HERE}}})", "most per CPU"),
        threshold("workers_too_many", "threshold per CPU"),
        unit="short",
        further=(
            *limit_line("threshold per CPU", colour=ORANGE),
            *second_axis("most per CPU", "threshold per CPU", unit="short"),
        ),
        by_host=False,
    )


def _reads() -> Panel:
    def together(name: str, legend: str) -> Query:
        rates = of_nodes(f"rate(stallscope_host_{name}{{{HOST}}}[$__rate_interval])")
        return Query(f"sum({rates})", legend)

    return _on_hosts(
        "Sources of data",
        "Bytes per second that all nodes of the run read or receive. If ranks wait for data, the source at its maximum "
        "is the bottleneck: stage the data closer, or read larger pieces.",
        together("disk_read_bytes_total", "disks"),
        together("network_receive_bytes_total", "network"),
        together("nfs_read_bytes_total", "NFS"),
        together("rdma_receive_bytes_total", "RDMA"),
        unit="Bps",
        by_host=False,
    )


def _ceiling() -> Panel:
    return _on_hosts(
        "Network limit in samples per second",
        "While the network limits the run: the maximum samples per second over the network, the current rate, and "
        "received bytes per sample. To go faster, shrink the sample or cache it.",
        Query(f"max by (run) (run:input_ceiling:rate5m{{{RUN}}})", "maximum samples per second"),
        Query(f"max by (run) (run:samples:rate5m{{{RUN}}})", "current samples per second"),
        Query(f"max by (run) (run:input_sample:bytes5m{{{RUN}}})", "bytes per sample"),
        unit="short",
        further=(
            *second_axis("bytes per sample", unit="bytes"),
            *limit_line("maximum samples per second", colour=ORANGE),
        ),
        by_host=False,
    )


def _pressure() -> Panel:
    return _on_hosts(
        "Pressure (PSI): CPU, memory, I/O",
        "Share of time in which some task waited, on the worst node. High I/O pressure while ranks wait for data: the "
        "disk or mount is the limit.",
        *(
            Query(
                "max("
                + of_nodes(
                    "rate(stallscope_host_pressure_waiting_seconds_total"
                    f'{{{HOST}, resource="{resource}"}}[$__rate_interval])'
                )
                + ")",
                legend,
            )
            for resource, legend in (("cpu", "CPU"), ("memory", "memory"), ("io", "storage"))
        ),
        lines=(("memory_pressure", "memory threshold"), ("disk_pressure", "I/O threshold")),
        by_host=False,
    )


def _host_memory() -> Panel:
    return _on_hosts(
        "Memory and shared memory",
        "Used share of each node's memory, and of /dev/shm, through which workers pass batches. Above its line: use "
        "fewer workers or less prefetching, or a larger /dev/shm. The fullest nodes are shown.",
        few_hosts(f"host:memory_used:ratio{{{HOST}}}@@", "memory, {{instance}}"),
        few_hosts(f"host:shared_memory_used:ratio{{{HOST}}}@@", "shared memory, {{instance}}"),
        lines=(("host_memory_used", "memory threshold"), ("shared_memory_used", "shared memory threshold")),
    )


def _network() -> Panel:
    return _on_hosts(
        "Network use relative to link speed",
        "Received bytes relative to the link speed of the busiest interface that receives far more than it sends. "
        "Above the line: cache on the node, or compress before the transfer. The busiest nodes are shown.",
        few_hosts(f"host:network_data:ratio5m{{{HOST}}}@@", "{{instance}}"),
        lines=(("network_high", "full"),),
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Input and hosts",
        (
            _cpus(),
            _process(),
            _throttled(),
            _workers(),
            _reads(),
            _ceiling(),
            _pressure(),
            _host_memory(),
            _network(),
        ),
        collapsed=True,
    )
