"""What the nodes were like meanwhile: processors, memory, network, storage, against the rules' thresholds."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.report.asking import Asker
from stallscope.report.document import Block, Column, Kind, Notice, Paragraph, Section, Table, Value

KEY = "hosts"


class _Evidence(NamedTuple):
    """A figure of a node, whose mean and greatest value are told."""

    title: str
    kind: Kind
    expression: str
    """`{}` stands for the matchers of the nodes."""
    threshold: str
    """The rules' threshold that it is held against, by name; empty where there is none."""
    meaning: str


_EVIDENCE = (
    _Evidence("Processors busy", "share", "host:cpu_busy:ratio5m{{{}}}", "cpu_saturated", "of all of a node"),
    _Evidence(
        "Busiest processor",
        "share",
        "max by (cluster, job, instance) (rate(stallscope_host_busiest_cpu_seconds_total{{{}}}[{window}]))",
        "single_thread_core",
        "at its limit beside idle others: one thread that everything waits for",
    ),
    _Evidence("Waited for processors", "share", "host:cpu_pressure:ratio5m{{{}}}", "cpu_pressure", "of the time"),
    _Evidence("Waited for storage", "share", "host:io_pressure:ratio5m{{{}}}", "disk_pressure", "of the time"),
    _Evidence("Waited for memory", "share", "host:memory_waiting:ratio5m{{{}}}", "memory_pressure", "of the time"),
    _Evidence("Memory used", "share", "host:memory_used:ratio{{{}}}", "host_memory_used", "page cache not counted"),
    _Evidence(
        "Shared memory used", "share", "host:shared_memory_used:ratio{{{}}}", "shared_memory_used", "of /dev/shm"
    ),
    _Evidence("Network link used", "share", "host:network_data:ratio5m{{{}}}", "network_high", "data that comes in"),
    _Evidence(
        "Received by network",
        "bytes_per_second",
        "sum by (cluster, job, instance) (rate(stallscope_host_network_receive_bytes_total{{{}}}[{window}]))",
        "",
        "",
    ),
    _Evidence(
        "Read from disks",
        "bytes_per_second",
        "sum by (cluster, job, instance) (rate(stallscope_host_disk_read_bytes_total{{{}}}[{window}]))",
        "",
        "",
    ),
    _Evidence("Read from NFS", "bytes_per_second", "host:nfs_read:bytes5m{{{}}}", "", ""),
    _Evidence(
        "NFS operations in flight",
        "number",
        "max by (cluster, job, instance) (rate(stallscope_host_nfs_operation_wait_seconds_total{{{}}}[{window}]))",
        "nfs_in_flight",
        "of the busiest mount",
    ),
    _Evidence("Swapped in", "bytes_per_second", "host:swapping:bytes5m{{{}}}", "", "while the host swaps"),
)


def section(asker: Asker) -> Section:
    """Tell it."""
    return Section(KEY, "Hosts", tuple(_blocks(asker)))


def _blocks(asker: Asker) -> list[Block]:
    thresholds = asker.by("name", "max by (name) (last_over_time(stallscope:threshold[10m]))")
    which = asker.subject.told_by_nodes
    rows: list[tuple[Value, ...]] = []
    kinds: list[Kind] = []
    untold: list[str] = []
    for evidence in _EVIDENCE:
        expression = evidence.expression.format(which, window=asker.rate_window)
        mean = asker.figure(f"avg({asker.over_time('avg_over_time', expression, resolution=asker.coarse)})")
        worst = asker.ask(
            f"topk(1, max by (instance) ({asker.over_time('max_over_time', expression, resolution=asker.coarse)}))"
        )
        if mean is None or not worst:
            untold.append(evidence.title)
            continue
        kinds.append(evidence.kind)
        limit = thresholds.get(evidence.threshold) if evidence.threshold else None
        rows.append(
            (evidence.title, mean, worst[0].value, worst[0].labels.get("instance", ""), limit, evidence.meaning)
        )
    if not rows:
        return [Notice("warning", "The nodes told nothing of processors, memory, network or storage.")]
    blocks: list[Block] = []
    for kind, title in (("share", "Shares"), ("bytes_per_second", "Data that came in"), ("number", "Operations")):
        chosen = tuple(row for row, each in zip(rows, kinds, strict=True) if each == kind)
        if chosen:
            blocks.append(_table(title, kind, chosen))  # type: ignore[arg-type]
    if untold:
        blocks.append(Paragraph(f"Not told, or never there: {'; '.join(untold)}."))
    return blocks


def _table(title: str, kind: Kind, rows: tuple[tuple[Value, ...], ...]) -> Table:
    return Table(
        (
            Column("Evidence"),
            Column("Mean", kind, "of all nodes and the whole time"),
            Column("Most", kind, "in five minutes, on the node with most"),
            Column("On"),
            Column("Limit", kind, "from which the rules take it as evidence of a cause"),
            Column("Of what"),
        ),
        rows,
        title=title,
    )
