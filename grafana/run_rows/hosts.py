"""The hosts that the ranks are on, and what they feed them with."""

from __future__ import annotations

from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import ORANGE, Override, limit_line, second_axis
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.asking import RANK_HERE, TO_HOST, few_hosts, few_ranks, of_nodes


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


def _processors() -> Panel:
    return _on_hosts(
        "Processors, and the busiest of them",
        "All processors of a node together, and its busiest one alone: a busiest one at its limit beside idle others "
        "is one thread that everything waits for. The fullest nodes are shown.",
        few_hosts(f"host:cpu_busy:ratio5m{{{HOST}}}@@", "all, {{instance}}"),
        few_hosts(
            f"rate(stallscope_host_busiest_cpu_seconds_total{{{HOST}}}[$__rate_interval]@@)", "busiest, {{instance}}"
        ),
        lines=(("cpu_saturated", "all are in use"), ("single_thread_core", "one thread at its limit")),
    )


def _process() -> Panel:
    return _on_hosts(
        "Processors used, of those allowed",
        "What a rank and its loader use, over its quota or affinity. At 100 % raise the limit, or decode less a "
        "sample. Main thread: the loop itself. The ranks that use most are shown.",
        few_ranks(
            f"rate(stallscope_training_process_cpu_seconds_total{{{RANK_HERE}}}[$__rate_interval]@@)"
            f" / stallscope_training_cpu_limit_cores{{{RANK_HERE}}}@@",
            "rank {{rank}}",
        ),
        few_ranks(
            f"rate(stallscope_training_main_thread_cpu_seconds_total{{{RANK_HERE}}}[$__rate_interval]@@)",
            "main thread of {{rank}}",
        ),
        lines=(("cpu_saturated", "all are in use"),),
    )


def _throttled() -> Panel:
    return _on_hosts(
        "Throttled by the processor quota",
        "Share of the quota's periods in which a rank was stopped. Over the line: raise the container's limit, or run "
        "no more workers than it allows.",
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
        "Workers of each rank's loader, and for each processor that a waiting rank has. Few workers and idle "
        "processors: add some. More than one a processor: take some away.",
        Query(f"min by (run) (stallscope_training_dataloader_workers{{{RANK_HERE}}})", "fewest of a rank"),
        Query(f"max by (run) (stallscope_training_dataloader_workers{{{RANK_HERE}}})", "most of a rank"),
        Query(f"max by (run) (rank:workers_of_cpus:ratio{{{RANK_HERE}}})", "a processor, at most"),
        threshold("workers_too_many", "too many a processor"),
        unit="short",
        further=(
            *limit_line("too many a processor", colour=ORANGE),
            *second_axis("a processor, at most", "too many a processor", unit="short"),
        ),
        by_host=False,
    )


def _reads() -> Panel:
    def together(name: str, legend: str) -> Query:
        rates = of_nodes(f"rate(stallscope_host_{name}{{{HOST}}}[$__rate_interval])")
        return Query(f"sum({rates})", legend)

    return _on_hosts(
        "Where data come from",
        "Bytes a second that all nodes of the run read or receive. While ranks wait for data, the source that is at "
        "its ceiling is what they wait for: stage the data nearer, or read larger pieces.",
        together("disk_read_bytes_total", "disks"),
        together("network_receive_bytes_total", "network"),
        together("nfs_read_bytes_total", "NFS"),
        together("rdma_receive_bytes_total", "RDMA"),
        unit="Bps",
        by_host=False,
    )


def _ceiling() -> Panel:
    return _on_hosts(
        "What the network could feed",
        "While the network is what ranks wait for: samples a second that it could carry at most, beside those that "
        "there are, and bytes that come in for each. To go faster, shrink the sample or cache it.",
        Query(f"max by (run) (run:input_ceiling:rate5m{{{RUN}}})", "samples a second at most"),
        Query(f"max by (run) (run:samples:rate5m{{{RUN}}})", "samples a second now"),
        Query(f"max by (run) (run:input_sample:bytes5m{{{RUN}}})", "bytes for a sample"),
        unit="short",
        further=(
            *second_axis("bytes for a sample", unit="bytes"),
            *limit_line("samples a second at most", colour=ORANGE),
        ),
        by_host=False,
    )


def _pressure() -> Panel:
    return _on_hosts(
        "Waiting for processors, memory, storage",
        "Share of time in which some task of a node waited for it; the worst node. Storage while ranks wait for data: "
        "the disk or mount is the limit.",
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
            for resource, legend in (("cpu", "processors"), ("memory", "memory"), ("io", "storage"))
        ),
        lines=(("memory_pressure", "too much for memory"), ("disk_pressure", "too much for storage")),
        by_host=False,
    )


def _host_memory() -> Panel:
    return _on_hosts(
        "Memory and shared memory",
        "Used share of each node's memory, and of /dev/shm, through which workers hand over batches. Over its line: "
        "fewer workers or less prefetching, or a larger /dev/shm. The fullest nodes are shown.",
        few_hosts(f"host:memory_used:ratio{{{HOST}}}@@", "memory, {{instance}}"),
        few_hosts(f"host:shared_memory_used:ratio{{{HOST}}}@@", "shared memory, {{instance}}"),
        lines=(("host_memory_used", "memory nearly full"), ("shared_memory_used", "shared memory nearly full")),
    )


def _network() -> Panel:
    return _on_hosts(
        "Network against its link",
        "Bytes received over what the fullest interface carries, where far more comes in than goes out. Over the line: "
        "cache on the node, or compress before it travels. The fullest nodes are shown.",
        few_hosts(f"host:network_data:ratio5m{{{HOST}}}@@", "{{instance}}"),
        lines=(("network_high", "full"),),
    )


def row() -> Row:
    """Return the evidence of hosts."""
    return Row(
        "Input and hosts",
        (
            _processors(),
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
