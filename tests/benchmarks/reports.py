"""Cost of reports for an exporter, its highest rate, and the effect on scrapes above that rate."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from tests.benchmarks.exporters import ours
from tests.benchmarks.processes import SERVER_CPU, Client, cpu_seconds, first_page, idle_share, running
from tests.benchmarks.reporters import Sent, reporting, sent
from tests.free_ports import free_port
from tests.nvml_library.stand_in import NvmlStandIn

_SECONDS = 15.0
_IDLE_SECONDS = 10.0
_SETTLED = 8.0
"""Seconds until a batch is dispatched and a large page shows it."""
_USUAL, _OFTEN = 1 / 15, 5.0
"""Scrapes a second: Prometheus', and enough to measure their duration."""
_LOADS = (
    (8, 16.0, _USUAL),
    (64, 128.0, _USUAL),
    (1024, 2048.0, _USUAL),
    (64, 5000.0, _OFTEN),
    (64, 10_000.0, _OFTEN),
    (64, 20_000.0, _OFTEN),
)
"""Ranks, how many reports a second they send together, and scrapes a second meanwhile."""


@dataclass(frozen=True)
class Load:
    """Result of a load of reports."""

    transport: str
    ranks: int
    rate: float
    sent: Sent
    taken: int
    rejected: int
    share: float
    """Share of a CPU, beyond the exporter's use without reports."""
    scrapes: list[float]
    """Seconds that each took."""
    failed: int
    """Scrapes without an answer."""


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


def _counter(page: bytes, name: str) -> int:
    """The sum of a family's series on a page."""
    return sum(int(float(line.rsplit(b" ", 1)[1])) for line in page.splitlines() if line.startswith(name.encode()))


def measure(transport: str, ranks: int, rate: float, scrapes: float, seconds: float = _SECONDS) -> Load:
    """Start an exporter with eight idle GPUs, send it reports, and scrape it meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = NvmlStandIn(folder)
        server = ours(folder)
        port = free_port()
        udp = f"127.0.0.1:{port}"
        command = [each for each in server.command if not each.startswith("--report.udp-address")]
        command.append(f"--report.udp-address={udp}")
        address = f"unix://{folder / 'report.sock'}" if transport == "unix" else f"udp://{udp}"
        with running(command, node.environment, SERVER_CPU) as process:
            first_page(server.port, b"stallscope_gpu_up{", time.perf_counter())
            scraper = Client(server.port, gzip=True)
            scraper.get()  # from now on it is made ahead
            idle = idle_share(process.pid, _IDLE_SECONDS)
            with reporting(address, ranks, rate, seconds) as sender:
                times, failed = [], 0
                cpu, began = cpu_seconds(process.pid), time.perf_counter()
                for number in range(ceil(seconds * scrapes)):
                    _sleep_until(began + number / scrapes)
                    start = time.perf_counter()
                    try:
                        scraper.get()
                        times.append(time.perf_counter() - start)
                    except OSError:
                        failed += 1
                        scraper = Client(server.port, gzip=True)
                _sleep_until(began + seconds)
                share = (cpu_seconds(process.pid) - cpu) / (time.perf_counter() - began) - idle
                outcome = sent(sender)
            scraper.close()
            time.sleep(_SETTLED)
            plain = Client(server.port, gzip=False)
            page = plain.get()
            plain.close()
    return Load(
        transport,
        ranks,
        rate,
        outcome,
        _counter(page, "stallscope_exporter_reports_total{"),
        _counter(page, "stallscope_exporter_reports_rejected_total{"),
        share,
        sorted(times),
        failed,
    )


def table(loads: Sequence[tuple[int, float, float]] = _LOADS, seconds: float = _SECONDS) -> str:
    """Measure and return the table as Markdown."""
    conditions = (
        f"An exporter with eight idle GPUs that takes reports as the shim writes them, {seconds:g} s each. A rank "
        "counts reports that the kernel refuses as dropped on a UNIX socket; over UDP they are lost silently. "
        "To reach: 128 reports a second of 64 ranks within 2 % of a CPU, including the page that shows them; "
        "5,000 a second with every scrape answered. Past the UNIX socket's limit, which is its queue of eleven "
        "(net.unix.max_dgram_qlen), UDP takes more; past that, let the ranks report less often (Run's `interval`): "
        "reports are cumulative, and a lost one costs nothing but its moment."
    )
    head = (
        "receiver | ranks | reports a second | refused by the kernel | lost on the way | rejected | CPU, % | "
        "the same a report, µs | scrapes | without an answer | p50, ms | p99, ms | worst, ms"
    )
    measured = [measure(transport, *load, seconds) for transport in ("unix", "udp") for load in loads]
    return "\n".join([conditions, "", f"| {head} |", "|---" * 13 + "|", *(_row(load) for load in measured)])


def _row(load: Load) -> str:
    attempted = load.sent.reports + load.sent.refused
    cells = (
        load.transport,
        f"{load.ranks}",
        f"{attempted / load.sent.seconds:,.0f}",
        f"{100 * load.sent.refused / attempted:.1f} %",
        f"{100 * (load.sent.reports - load.taken) / attempted:.1f} %",
        f"{load.rejected}",
        f"{100 * load.share:.2f}",
        f"{1e6 * load.share * load.sent.seconds / max(1, load.taken):.0f}",
        f"{len(load.scrapes)}",
        f"{load.failed}",
        *(f"{1000 * load.scrapes[int(place * (len(load.scrapes) - 1))]:.2f}" for place in (0.5, 0.99, 1.0)),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table())
