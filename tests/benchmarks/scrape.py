"""Cost of a scrape and of sampling, next to nvitop-exporter's, on one stand-in driver with eight GPUs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.exporters import Beginning, Server, await_everything, busy_node, ours, peer
from tests.benchmarks.processes import (
    SERVER_CPU,
    Scrapes,
    idle_share,
    proportional_memory,
    running,
    scrape,
)
from tests.nvml_library.stand_in import GpuState, NvmlStandIn

_IDLE_SECONDS = 10.0
_ROUNDS = 3


@dataclass(frozen=True)
class Costs:
    """Cost of one exporter in one condition."""

    plain: Scrapes
    gzip: Scrapes
    idle: float
    """CPU share without scrapes."""
    memory: int
    """PSS in bytes, after the scrapes."""
    series: int
    beginning: Beginning
    calls_a_second: float
    """Driver calls without scrapes."""
    calls_a_scrape: float
    """Driver calls while scraping, net of those that sampling makes meanwhile."""


def measure(server: Server, node: NvmlStandIn) -> Costs:
    """Start the exporter, scrape it, stop it."""
    started = time.perf_counter()
    with running(server.command, node.environment, SERVER_CPU) as process:
        beginning = await_everything(server, node, started)
        node.reset_counts()
        idle = idle_share(process.pid, _IDLE_SECONDS)
        calls_a_second = node.calls() / _IDLE_SECONDS
        # Scraped over as long a time as it was watched idle, so that sampling's own calls cancel out.
        node.reset_counts()
        began = time.perf_counter()
        rounds = [
            (
                scrape(server.port, process.pid, gzip=False, idle_share=idle),
                scrape(server.port, process.pid, gzip=True, idle_share=idle),
            )
            for _ in range(_ROUNDS)
        ]
        remaining = _IDLE_SECONDS - (time.perf_counter() - began)
        if remaining > 0:
            time.sleep(remaining)
        took = time.perf_counter() - began
        scrapes = _ROUNDS * 2 * 500
        calls_a_scrape = max(0.0, node.calls() - calls_a_second * took) / scrapes
        plain = _median_of([each[0] for each in rounds])
        compressed = _median_of([each[1] for each in rounds])
        return Costs(
            plain=plain,
            gzip=compressed,
            idle=idle,
            memory=proportional_memory(process.pid),
            series=sum(1 for line in plain.body.splitlines() if not line.startswith(b"#")),
            beginning=beginning,
            calls_a_second=calls_a_second,
            calls_a_scrape=calls_a_scrape,
        )


def _median_of(rounds: Sequence[Scrapes]) -> Scrapes:
    return Scrapes(
        p50=statistics.median(each.p50 for each in rounds),
        p99=statistics.median(each.p99 for each in rounds),
        cpu=statistics.median(each.cpu for each in rounds),
        body=rounds[-1].body,
    )


def hung_driver(server: Server, node: NvmlStandIn) -> Scrapes:
    """Scrape while one driver call on one GPU never returns."""
    started = time.perf_counter()
    with running(server.command, node.environment, SERVER_CPU) as process:
        await_everything(server, node, started)
        node.gpu[2].state = GpuState.HUNG
        time.sleep(5)
        share = idle_share(process.pid, 5)
        try:
            return scrape(server.port, process.pid, gzip=True, idle_share=share)
        finally:
            node.gpu[2].state = GpuState.OK


def table() -> str:
    """Measure everything and return the tables as Markdown."""
    conditions = (
        "All that is on by default: every GPU signal, an Xid on every GPU, and a training rank on each that reports to "
        "ours. The stand-in's PCIe throughput takes its real 20 ms: nvitop queries it twice a GPU and round, which "
        "lengthens its rounds by a third of a second but not its scrapes; it sleeps meanwhile, so that its CPU "
        "share stays comparable."
    )
    lines = [conditions]
    with tempfile.TemporaryDirectory() as folder, busy_node(Path(folder)) as node:
        for delay in (0, 200):
            node.set_delay(delay)
            costs = [measure(server, node) for server in (ours(Path(folder)), peer())]
            lines += ["", f"#### {delay} µs a driver call", "", *_rows(*costs)]
        node.set_delay(0)
        hung = hung_driver(ours(Path(folder)), node)
    lines += [
        "",
        "#### One driver call that never returns",
        "",
        f"Ours, gzip: p50 {hung.p50:.3f} ms, p99 {hung.p99:.3f} ms, {hung.cpu:.3f} ms of CPU time a scrape.",
    ]
    return "\n".join(lines)


def _rows(own: Costs, other: Costs) -> list[str]:
    rows = [
        ("series", f"{own.series}", f"{other.series}", "> 1500", own.series / other.series),
        _time("scrape p50, ms", own.plain.p50, other.plain.p50, "1/20"),
        _time("scrape p99, ms", own.plain.p99, other.plain.p99, "1/10"),
        _time("gzipped scrape p50, ms", own.gzip.p50, other.gzip.p50, "1/20"),
        _time("gzipped scrape p99, ms", own.gzip.p99, other.gzip.p99, "1/10"),
        _time("CPU time a scrape, ms", own.plain.cpu, other.plain.cpu, "1/20"),
        _time("CPU time a gzipped scrape, ms", own.gzip.cpu, other.gzip.cpu, "1/20"),
        (
            "CPU share of sampling, %",
            f"{own.idle * 100:.2f}",
            f"{other.idle * 100:.2f}",
            "≤ 2, ≤ peer",
            own.idle / other.idle,
        ),
        (
            "memory (PSS), MB",
            f"{own.memory / 1e6:.1f}",
            f"{other.memory / 1e6:.1f}",
            "≤ peer",
            own.memory / other.memory,
        ),
        _time("first answer, s", own.beginning.first_answer, other.beginning.first_answer, "≤ 0.5 s"),
        _time("first full page, s", own.beginning.first_page, other.beginning.first_page, ""),
        (
            "driver calls a second and GPU",
            f"{own.calls_a_second / 8:.1f}",
            f"{other.calls_a_second / 8:.1f}",
            "≤ 12",
            own.calls_a_second / other.calls_a_second,
        ),
        ("driver calls a scrape", f"{own.calls_a_scrape:.3f}", f"{other.calls_a_scrape:.3f}", "0", None),
        ("page, bytes (gzip)", _size(own), _size(other), "", None),
    ]
    return [
        "| | stallscope | nvitop-exporter | to reach | ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {a} | {b} | {goal} | {'' if ratio is None else _ratio(ratio)} |"
            for name, a, b, goal, ratio in rows
        ),
    ]


def _time(name: str, ours: float, peer: float, goal: str) -> tuple[str, str, str, str, float]:
    return name, f"{ours:.3f}", f"{peer:.3f}", goal, ours / peer


def _ratio(ratio: float) -> str:
    return f"1/{1 / ratio:.1f}" if 0 < ratio < 1 else f"{ratio:.2f}"


def _size(costs: Costs) -> str:
    return f"{len(costs.plain.body)} ({len(costs.gzip.body)})"


if __name__ == "__main__":
    print(table())
