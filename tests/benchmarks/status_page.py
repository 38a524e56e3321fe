"""Cost of the status page: bytes, the server's time, memory, and scrapes while it is open."""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.exporters import Server, await_everything, busy_node, ours
from tests.benchmarks.processes import (
    SERVER_CPU,
    Scrapes,
    cpu_seconds,
    idle_share,
    proportional_memory,
    repeatedly,
    running,
    scrape,
)
from tests.nvml_library.stand_in import NvmlStandIn

_LOOKS = 30
_NEW_RENDERING_SECONDS = 1.1
"""Longer than one rendering is shared."""
_SCRAPES = 3000


def _look(port: int) -> tuple[float, bytes]:
    """Milliseconds until the page is there, and the page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    began = time.perf_counter()
    try:
        connection.request("GET", "/")
        body = connection.getresponse().read()
    finally:
        connection.close()
    return (time.perf_counter() - began) * 1000, body


def _rows(server: Server, node: NvmlStandIn) -> list[tuple[str, str, str]]:
    started = time.perf_counter()
    with running(server.command, node.environment, SERVER_CPU) as process:
        await_everything(server, node, started)
        idle = idle_share(process.pid, 5)
        unseen = proportional_memory(process.pid)
        alone = _scrapes(server, process.pid)
        _look(server.port)
        taken = []
        before, began = cpu_seconds(process.pid), time.perf_counter()
        for _ in range(_LOOKS):
            time.sleep(_NEW_RENDERING_SECONDS)
            taken.append(_look(server.port))
        cpu = cpu_seconds(process.pid) - before - idle * (time.perf_counter() - began)
        shared = [_look(server.port)[0] for _ in range(_LOOKS)]
        with repeatedly(0.1, lambda: _look(server.port)):  # ten looks a second, which is a new rendering a second
            viewed = _scrapes(server, process.pid)
        seen = proportional_memory(process.pid)
    return [
        ("bytes", f"{len(taken[-1][1])}", "< 60,000"),
        ("a new rendering, ms", f"{statistics.median(each[0] for each in taken):.1f}", "< 10"),
        ("its CPU time, ms", f"{cpu / _LOOKS * 1000:.1f}", ""),
        ("a look at a shared one, ms", f"{statistics.median(shared):.2f}", ""),
        ("scrape p50 and p99 alone, ms", f"{alone.p50:.3f}, {alone.p99:.3f}", ""),
        ("while looked at ten times a second, ms", f"{viewed.p50:.3f}, {viewed.p99:.3f}", "as alone"),
        ("memory (PSS) before the first look, MB", f"{unseen / 1e6:.1f}", ""),
        ("after it, MB", f"{seen / 1e6:.1f}", "< 26"),
    ]


def _scrapes(server: Server, pid: int) -> Scrapes:
    return scrape(server.port, pid, gzip=True, idle_share=0.0, scrapes=_SCRAPES)


def _memory_with_prometheus(server: Server, node: NvmlStandIn) -> int:
    """PSS where a Prometheus is configured that isn't there."""
    server = replace(server, command=(*server.command, "--prometheus.url=http://127.0.0.1:9"))
    started = time.perf_counter()
    with running(server.command, node.environment, SERVER_CPU) as process:
        await_everything(server, node, started)
        _look(server.port)
        time.sleep(3)
        _look(server.port)
        return proportional_memory(process.pid)


def table() -> str:
    """Measure and return the table as Markdown."""
    with tempfile.TemporaryDirectory() as folder, busy_node(Path(folder)) as node:
        rows = _rows(ours(Path(folder)), node)
        configured = _memory_with_prometheus(ours(Path(folder)), node)
    rows.append(("with --prometheus.url, MB", f"{configured / 1e6:.1f}", ""))
    return "\n".join(
        [
            "Eight GPUs of the stand-in and eight ranks that report.",
            "",
            "| | | to reach |",
            "|---|---|---|",
            *(f"| {name} | {value} | {goal} |" for name, value, goal in rows),
        ]
    )


if __name__ == "__main__":
    print(table())
