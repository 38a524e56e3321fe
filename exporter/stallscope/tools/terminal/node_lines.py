"""A node and its exporter as lines: reachability, host metrics, problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallscope.common.formatting import count, readable, several, size, time_since, whole_time
from stallscope.model.catalogue.gpu_losses import explained
from stallscope.model.view.model import Host, Node
from stallscope.tools.terminal.feed import ExporterState
from stallscope.tools.terminal.gpu_lines import name_of
from stallscope.tools.terminal.lines import (
    BAR,
    Column,
    Line,
    Span,
    bar,
    flow,
    line,
    or_dash,
    share,
    table,
    usage,
    wrapped,
)

MAX_PROBLEMS = 8
"""Maximum number of problems in the overview."""


def node_head(state: ExporterState, width: int) -> list[Line]:
    """Return the exporter's address, or the reason why its current state is unknown."""
    if not state.problem:
        status = Span("" if state.node is not None else "connecting", "quiet")
        return [line(Span(readable(state.name), "title"), "  ", status)]
    age = "" if state.age is None else f" The values shown are {whole_time(state.age)} old."
    return wrapped(f"{readable(state.name)}: {readable(state.problem, 300)}.{age}", width, "bad")


def stale(lines: Iterable[Line]) -> list[Line]:
    """Mark lines as outdated."""
    return [tuple(Span(span.text, "stale") for span in each) for each in lines]


def host_line(host: Host, width: int) -> list[Line]:
    """Return CPU, memory and pressure."""
    items = []
    if host.cpu is not None:
        busiest = "" if host.busiest_cpu is None else f", busiest {share(host.busiest_cpu).strip()}"
        items.append(line("CPU ", *bar(host.cpu, BAR), f" {share(host.cpu)}{busiest}"))
    if host.memory_used is not None and host.memory_total:
        used = host.memory_used / host.memory_total
        items.append(line(f"memory {share(used).strip()} of {size(host.memory_total)}"))
    if host.pressure:
        waits = ", ".join(
            f"{_RESOURCES.get(name, readable(name))} {share(each).strip()}" for name, each in host.pressure.items()
        )
        items.append(line(f"waiting for {waits}"))
    return flow(items, width)


_RESOURCES = {"cpu": "CPU", "io": "I/O"}


def host_block(node: Node, width: int) -> list[Line]:
    """Return all values of the host."""
    host = node.host
    items = []
    if host.cpus is not None:
        items.append(line(f"{several(int(host.cpus), 'CPU')}"))
    if host.iowait is not None:
        items.append(line(f"I/O wait {share(host.iowait).strip()}"))
    if host.shared_memory_used is not None and host.shared_memory_total:
        items.append(line(f"shared memory {usage(host.shared_memory_used, host.shared_memory_total)}"))
    if host.read is not None and host.written is not None:
        items.append(line(f"disks read {size(host.read)}/s, write {size(host.written)}/s"))
    if host.received is not None and host.sent is not None:
        items.append(line(f"network in {size(host.received)}/s, out {size(host.sent)}/s"))
    items += [line(f"{readable(name, 24)} busy {share(busy).strip()}") for name, busy in sorted(host.disks.items())]
    if node.version:
        items.append(line(Span(f"Stallscope {readable(node.version)}", "quiet")))
    return [*host_line(host, width), *flow(items, width)]


def source_table(node: Node, width: int) -> list[Line]:
    """Return the table of the exporter's sources."""
    rows = [
        (
            line(readable(source.name)),
            line(Span("up", "good") if source.up else Span("down", "bad")),
            or_dash(time_since(node.time, source.last_success)),
            line(count(source.failures)),
        )
        for source in node.sources
    ]
    columns = (Column("Source", least=8), Column("State"), Column("Last reading"), Column("Failures", right=True))
    return table(columns, rows, width)


def problem_lines(node: Node, width: int) -> list[Line]:
    """Return the problems that the node itself reports."""
    found = list(_problems(node))
    lines = [each for problem in found[:MAX_PROBLEMS] for each in wrapped(problem, width, "bad")]
    return [*lines, line(Span(f"and {len(found) - MAX_PROBLEMS} more", "bad"))] if len(found) > MAX_PROBLEMS else lines


def _problems(node: Node) -> Iterator[str]:
    for gpu in node.gpus:
        if gpu.up is False:
            when = time_since(node.time, gpu.last_reading)
            last = f" Last reading {when}." if when else ""
            yield f"{name_of(gpu)} is down ({readable(gpu.reason or 'unknown')}). {explained(gpu.reason)}{last}"
    for source in node.sources:
        if not source.up:
            when = time_since(node.time, source.last_success)
            yield f"Source {readable(source.name)} is down (last reading {when or 'never'}); see the exporter's log."
    for transport in node.closed_receivers:
        yield f"The {readable(transport)} receiver of training reports is not open; see the exporter's log."
    if node.series_dropped:
        yield f"{count(node.series_dropped)} series were dropped at the exporter's limits."
