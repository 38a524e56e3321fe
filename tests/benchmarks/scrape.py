"""What a scrape and what sampling cost, ours beside nvitop-exporter's, on one stand-in driver with eight GPUs."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.processes import (
    Scrapes,
    first_page,
    idle_share,
    proportional_memory,
    running,
    scrape,
)
from tests.free_ports import free_port
from tests.nvml_library.stand_in import GpuState, NvmlStandIn

_IDLE_SECONDS = 10.0
_ROUNDS = 3
_SERVER_PROCESSOR, _CLIENT_PROCESSOR = 1, 0


@dataclass(frozen=True)
class Server:
    """An exporter under test."""

    name: str
    command: tuple[str, ...]
    port: int
    last_series: bytes
    """What only a full page holds."""


@dataclass(frozen=True)
class Costs:
    """What one exporter cost in one condition."""

    plain: Scrapes
    gzip: Scrapes
    idle: float
    """Processor share with nobody scraping."""
    memory: int
    """PSS in bytes, after the scrapes."""
    series: int
    first_answer: float
    first_page: float
    calls_a_second: float
    """Driver calls with nobody scraping."""
    calls_a_scrape: float
    """Driver calls while scraping, net of those that sampling makes meanwhile."""


def exporters(directory: Path) -> tuple[Server, Server]:
    """Ours with every source on, and the peer."""
    scripts = Path(sys.executable).parent
    ours, theirs = free_port(), free_port()
    return (
        Server(
            "stallscope exporter",
            (
                str(scripts / "stallscope"),
                "exporter",
                f"--web.listen-address=127.0.0.1:{ours}",
                f"--report.unix-socket={directory}/report.sock",
                "--report.udp-address=",
                "--log.level=error",
            ),
            ours,
            b"stallscope_gpu_processes{",
        ),
        Server(
            "nvitop-exporter",
            (str(scripts / "nvitop-exporter"), "--bind-address", "127.0.0.1", "--port", str(theirs)),
            theirs,
            b"process_gpu_memory_MiB{",
        ),
    )


def busy_node(node: NvmlStandIn) -> None:
    """Eight GPUs at work, one process each."""
    for index, gpu in enumerate(node.gpu):
        gpu.utilization, gpu.memory_utilization = 97, 60
        gpu.memory_used = 19_818 << 20
        gpu.power_milliwatts = 650_000 + index
        gpu.run((os.getpid(), 19_818 << 20, False))


def measure(server: Server, node: NvmlStandIn) -> Costs:
    """Start the exporter, scrape it, stop it."""
    started = time.perf_counter()
    with running(server.command, node.environment, _SERVER_PROCESSOR) as process:
        first_answer, full = first_page(server.port, server.last_series, started)
        time.sleep(3)
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
            first_answer=first_answer,
            first_page=full,
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
    with running(server.command, node.environment, _SERVER_PROCESSOR) as process:
        first_page(server.port, server.last_series, started)
        node.gpu[2].state = GpuState.HUNG
        time.sleep(5)
        share = idle_share(process.pid, 5)
        try:
            return scrape(server.port, process.pid, gzip=True, idle_share=share)
        finally:
            node.gpu[2].state = GpuState.OK


def table() -> str:
    """Measure everything and return the tables as Markdown."""
    os.sched_setaffinity(0, {_CLIENT_PROCESSOR})
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        node = NvmlStandIn(Path(folder))
        busy_node(node)
        for delay in (0, 200):
            node.set_delay(delay)
            ours, peer = (measure(server, node) for server in exporters(Path(folder)))
            lines += ["", f"### {delay} µs a driver call", "", *_rows(ours, peer)]
        node.set_delay(0)
        ours_server, _peer_server = exporters(Path(folder))
        hung = hung_driver(ours_server, node)
    lines += [
        "",
        "### One driver call that never returns",
        "",
        f"Ours, gzip: p50 {hung.p50:.3f} ms, p99 {hung.p99:.3f} ms, {hung.cpu:.3f} ms of processor time a scrape.",
    ]
    return "\n".join(lines)


def _rows(ours: Costs, peer: Costs) -> list[str]:
    rows = [
        ("series", f"{ours.series}", f"{peer.series}", "≥ peer", ours.series / peer.series),
        _time("scrape p50, ms", ours.plain.p50, peer.plain.p50, "1/20"),
        _time("scrape p99, ms", ours.plain.p99, peer.plain.p99, "1/10"),
        _time("gzipped scrape p50, ms", ours.gzip.p50, peer.gzip.p50, "1/20"),
        _time("gzipped scrape p99, ms", ours.gzip.p99, peer.gzip.p99, "1/10"),
        _time("processor time a scrape, ms", ours.plain.cpu, peer.plain.cpu, "1/20"),
        _time("processor time a gzipped scrape, ms", ours.gzip.cpu, peer.gzip.cpu, "1/20"),
        (
            "processor share of sampling, %",
            f"{ours.idle * 100:.2f}",
            f"{peer.idle * 100:.2f}",
            "≤ peer",
            ours.idle / peer.idle,
        ),
        (
            "memory (PSS), MB",
            f"{ours.memory / 1e6:.1f}",
            f"{peer.memory / 1e6:.1f}",
            "≤ peer",
            ours.memory / peer.memory,
        ),
        _time("first answer, s", ours.first_answer, peer.first_answer, "≤ 0.5 s"),
        _time("first full page, s", ours.first_page, peer.first_page, ""),
        (
            "driver calls a second and GPU",
            f"{ours.calls_a_second / 8:.1f}",
            f"{peer.calls_a_second / 8:.1f}",
            "≤ 12",
            ours.calls_a_second / peer.calls_a_second,
        ),
        ("driver calls a scrape", f"{ours.calls_a_scrape:.3f}", f"{peer.calls_a_scrape:.3f}", "0", None),
        ("page, bytes (gzip)", _size(ours), _size(peer), "", None),
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
