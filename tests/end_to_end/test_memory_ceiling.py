"""No report makes the exporter take more memory than exporter/COST.md states: measured by the kernel, in a cgroup."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.node.intake.held import Held
from stallscope.node.intake.journal import Journal
from stallscope.training.protocol.report import parse
from tests.end_to_end.memory_limit import memory_limit
from tests.free_ports import free_port
from tests.intake.heavy_reports import SHAPES, many_series
from tests.nvml_library.stand_in import NvmlStandIn
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CEILING = 160
"""Megabytes, as exporter/COST.md and SECURITY.md state."""
RANKS = 1024
ROUNDS = 2
"""How often each rank reports after those of the state file."""
SLOW_SCRAPES = 6
"""In each round."""
FORMATS = [
    {"Accept": accept, "Accept-Encoding": encoding}
    for accept in ("text/plain", "application/openmetrics-text;version=1.0.0")
    for encoding in ("identity", "gzip")
]


class Exporter:
    """An exporter with eight GPUs and a state file, in a cgroup where the machine permits it."""

    def __init__(self, folder: Path, cgroup: Path | None) -> None:
        self.socket = folder / "report.sock"
        self.state_file = folder / "runs.jsonl"
        self.port = free_port()
        self._environment = os.environ | NvmlStandIn(folder).environment
        self._join = None if cgroup is None else lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())) and None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "stallscope", "exporter", "--log.level=error", "--report.udp-address="),
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--report.unix-socket={self.socket}",
            f"--report.state-file={self.state_file}",
        ]
        self.process = subprocess.Popen(command, env=self._environment, preexec_fn=self._join)
        self.until(lambda page: "stallscope_gpu_up{" in page)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def get(self, headers: dict[str, str], path: str = "/metrics") -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return bytes(reply.read())

    def until(self, condition: Callable[[str], bool]) -> None:
        """Wait for a page as wanted."""

        def found() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, "the exporter was killed"
            return condition(self.get({}).decode())

        until(found, "no page was as wanted", pause=0.5, seconds=240)  # a page takes half a CPU second

    def peak(self) -> float:
        """Most megabytes of resident memory so far."""
        assert self.process is not None
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024 / 1e6


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    with memory_limit(CEILING * 10**6) as cgroup:
        found = Exporter(tmp_path, cgroup)
        try:
            yield found
        finally:
            found.kill()


def refused_or_held(page: str) -> int:
    """Reports that arrived, of those that the page shows."""
    return sum(int(float(each)) for each in re.findall(r"^stallscope_exporter_reports_total\S+ (\S+)$", page, re.M))


@pytest.mark.slow(60)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "heavy_report",
    [many_series, *(pytest.param(each, marks=pytest.mark.nightly) for each in SHAPES if each != many_series)],
    ids=lambda shape: shape.__name__,
)
def test_the_heaviest_reports_stay_below_the_stated_ceiling(
    exporter: Exporter, heavy_report: Callable[..., bytes]
) -> None:
    """Sent again and again, scraped in every format, by slow scrapers as well, and read back from the state file."""
    heavy = (parse(heavy_report(f"run{number // 16}", number % 16)) for number in range(RANKS))
    now = time.time()
    assert Journal(exporter.state_file).save(Held(each, now, time.monotonic()) for each in heavy)
    exporter.start()
    sent = 0
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        for sequence in range(2, 2 + ROUNDS):
            for number in range(RANKS):
                sender.sendto(heavy_report(f"run{number // 16}", number % 16, sequence), str(exporter.socket))
            sent += RANKS
            for _ in range(SLOW_SCRAPES):
                scraper = stack.enter_context(socket.create_connection(("127.0.0.1", exporter.port)))
                scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            exporter.until(lambda page, sent=sent: refused_or_held(page) == sent)  # type: ignore[misc]
            for headers in FORMATS:
                assert exporter.get(headers)
            assert exporter.get({}, "/")
        page = exporter.get({}).decode()
    assert re.search(r'_reports_rejected_total\{reason="(series|memory)_limit"\} [1-9]', page)
    assert "stallscope_training_state{" in page
    print(f"{heavy_report.__name__}: at most {exporter.peak():.0f} MB, {len(page) / 1e6:.1f} MB of page")
    assert exporter.peak() < CEILING


def test_the_ceiling_is_stated_and_the_deployments_permit_it() -> None:
    for file in ("exporter/COST.md", "SECURITY.md"):
        assert f"{CEILING} MB" in (ROOT / file).read_text()
    limits = {
        "deploy/systemd/stallscope-exporter.service": r"MemoryMax=(\d+)M",
        "deploy/kubernetes/base/daemonset.yaml": r"limits:\s+(?:cpu: \S+\s+)?memory: (\d+)Mi",
        "deploy/helm/stallscope/values.yaml": r"limits:\s+(?:cpu: \S+\s+)?memory: (\d+)Mi",
    }
    for file, pattern in limits.items():
        found = re.search(pattern, (ROOT / file).read_text())
        assert found is not None, file
        assert int(found[1]) * 2**20 > CEILING * 1.25e6, file
