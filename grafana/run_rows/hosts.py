"""Hosts of the ranks, and the data that they provide."""

from __future__ import annotations

from grafana.builders.choices import HOST
from grafana.builders.dashboard import Row
from grafana.builders.field import Override, limit_line, second_axis
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.run_queries import RANK_HERE, TO_HOST, few_ranks, of_nodes


def _on_hosts(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "percentunit",
    lines: tuple[tuple[str, str], ...] = (),
    further: tuple[Override, ...] = (),
    by_host: bool = True,
    soft_maximum: float | None = None,
) -> Panel:
    return time_series(
        title,
        description,
        [*queries, *(threshold(name, legend) for name, legend in lines)],
        unit=unit,
        soft_maximum=soft_maximum,
        width=12,
        overrides=[*limit_line(*(legend for _name, legend in lines)), *further],
        links=[TO_HOST] if by_host else [],
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
            3,
        ),
        lines=(("cpu_saturated", "limit reached"),),
        soft_maximum=1,
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
        Query(f"min(stallscope_training_dataloader_workers{{{RANK_HERE}}})", "fewest per rank"),
        Query(f"max(stallscope_training_dataloader_workers{{{RANK_HERE}}})", "most per rank"),
        Query(f"max(rank:workers_of_cpus:ratio{{{RANK_HERE}}})", "most per CPU"),
        threshold("workers_too_many", "threshold per CPU"),
        unit="short",
        further=(
            *limit_line("threshold per CPU"),
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


def row() -> Row:
    """Return the row."""
    return Row(
        "Input and hosts",
        (
            _process(),
            _throttled(),
            _workers(),
            _reads(),
        ),
        collapsed=True,
    )
