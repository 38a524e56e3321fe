"""The nodes' CPU, memory, network and storage, compared with the rules' thresholds."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.tools.report.document import Block, Column, Kind, Notice, Paragraph, Table, Value
from stallscope.tools.report.queries import Queries

KEY = "hosts"
TITLE = "Hosts"


class _Evidence(NamedTuple):
    """A measurement of nodes that is reported with its mean and maximum."""

    title: str
    kind: Kind
    expression: str
    """PromQL; `{}` is replaced by the matchers of the nodes."""
    threshold: str
    """Name of the rules' threshold; empty if there is none."""
    meaning: str


_EVIDENCE = (
    _Evidence("CPU busy", "share", "host:cpu_busy:ratio5m{{{}}}", "cpu_saturated", "all CPUs of a node"),
    _Evidence(
        "Busiest CPU",
        "share",
        "max by (cluster, job, instance) (rate(stallscope_host_busiest_cpu_seconds_total{{{}}}[{window}]))",
        "single_thread_core",
        "at its limit while others are idle: a single thread is the bottleneck",
    ),
    _Evidence("CPU pressure", "share", "host:cpu_pressure:ratio5m{{{}}}", "cpu_pressure", "time waiting for a CPU"),
    _Evidence("I/O pressure", "share", "host:io_pressure:ratio5m{{{}}}", "disk_pressure", "time waiting for storage"),
    _Evidence(
        "Memory pressure", "share", "host:memory_waiting:ratio5m{{{}}}", "memory_pressure", "time waiting for memory"
    ),
    _Evidence("Memory used", "share", "host:memory_used:ratio{{{}}}", "host_memory_used", "without page cache"),
    _Evidence(
        "Shared memory used", "share", "host:shared_memory_used:ratio{{{}}}", "shared_memory_used", "of /dev/shm"
    ),
    _Evidence("Network link used", "share", "host:network_data:ratio5m{{{}}}", "network_high", "received data"),
    _Evidence(
        "Network received",
        "bytes_per_second",
        "sum by (cluster, job, instance) (rate(stallscope_host_network_receive_bytes_total{{{}}}[{window}]))",
        "",
        "",
    ),
    _Evidence(
        "Disk read",
        "bytes_per_second",
        "sum by (cluster, job, instance) (rate(stallscope_host_disk_read_bytes_total{{{}}}[{window}]))",
        "",
        "",
    ),
    _Evidence("NFS read", "bytes_per_second", "host:nfs_read:bytes5m{{{}}}", "", ""),
    _Evidence(
        "NFS operations in flight",
        "number",
        "max by (cluster, job, instance) (rate(stallscope_host_nfs_operation_wait_seconds_total{{{}}}[{window}]))",
        "nfs_in_flight",
        "on the busiest mount",
    ),
    _Evidence("Swapped in", "bytes_per_second", "host:swapping:bytes5m{{{}}}", "", "while the host is swapping"),
)


def blocks(queries: Queries) -> list[Block]:
    """Return the blocks of the section."""
    thresholds = queries.by("name", "max by (name) (last_over_time(stallscope:threshold[10m]))")
    which = queries.subject.node_matchers
    rows: list[tuple[Value, ...]] = []
    kinds: list[Kind] = []
    unknown: list[str] = []
    for evidence in _EVIDENCE:
        expression = evidence.expression.format(which, window=queries.rate_window)
        mean = queries.value(f"avg({queries.over_time('avg_over_time', expression, resolution=queries.coarse)})")
        worst = queries.instant(
            f"topk(1, max by (instance) ({queries.over_time('max_over_time', expression, resolution=queries.coarse)}))"
        )
        if mean is None or not worst:
            unknown.append(evidence.title)
            continue
        kinds.append(evidence.kind)
        limit = thresholds.get(evidence.threshold) if evidence.threshold else None
        rows.append(
            (evidence.title, mean, worst[0].value, worst[0].labels.get("instance", ""), limit, evidence.meaning)
        )
    if not rows:
        return [Notice("warning", "CPU, memory, network and storage of the nodes are unknown.")]
    blocks: list[Block] = []
    for kind, title in (("share", "Shares"), ("bytes_per_second", "Incoming data"), ("number", "Operations")):
        chosen = tuple(row for row, each in zip(rows, kinds, strict=True) if each == kind)
        if chosen:
            blocks.append(_table(title, kind, chosen))  # type: ignore[arg-type]
    if unknown:
        blocks.append(Paragraph(f"Unknown or not present: {'; '.join(unknown)}."))
    return blocks


def _table(title: str, kind: Kind, rows: tuple[tuple[Value, ...], ...]) -> Table:
    return Table(
        (
            Column("Measurement"),
            Column("Mean", kind, "of all nodes over the whole time"),
            Column("Maximum", kind, "over five minutes, on the node with the highest value"),
            Column("Node"),
            Column("Threshold", kind, "above which the rules count it as evidence"),
            Column("Description"),
        ),
        rows,
        title=title,
    )
