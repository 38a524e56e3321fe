"""The exporters under test, and the node that they look at."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.processes import first_page
from tests.benchmarks.ranks import training
from tests.free_ports import free_port
from tests.nvml_library.stand_in import NvmlStandIn

_SOCKET = "report.sock"


@dataclass(frozen=True)
class Server:
    """An exporter under test."""

    name: str
    command: tuple[str, ...]
    port: int
    last_series: bytes
    """Series that only a full page has."""


@dataclass(frozen=True)
class Beginning:
    """How long an exporter took to answer, in seconds."""

    first_answer: float
    first_page: float


def ours(directory: Path) -> Server:
    """Ours, with everything that is on by default."""
    port = free_port()
    return Server(
        "stallscope exporter",
        (
            str(Path(sys.executable).parent / "stallscope"),
            "exporter",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--report.unix-socket={directory / _SOCKET}",
            "--report.udp-address=",
            "--log.level=error",
        ),
        port,
        b"stallscope_gpu_processes{",
    )


def peer() -> Server:
    """nvitop-exporter."""
    port = free_port()
    return Server(
        "nvitop-exporter",
        (str(Path(sys.executable).parent / "nvitop-exporter"), "--bind-address", "127.0.0.1", "--port", str(port)),
        port,
        b"process_gpu_memory_MiB{",
    )


@contextmanager
def busy_node(directory: Path) -> Iterator[NvmlStandIn]:
    """Eight GPUs at work, with a training rank on each."""
    node = NvmlStandIn(directory)
    for index, gpu in enumerate(node.gpu):
        gpu.utilization, gpu.memory_utilization = 97, 60
        gpu.memory_used = 19_818 << 20
        gpu.power_milliwatts = 650_000 + index
        gpu.gpm_counters = 1
    with training(node, directory / _SOCKET):
        yield node


def await_everything(server: Server, node: NvmlStandIn, started: float) -> Beginning:
    """Wait for the first full page, and then until every series that there can be is there."""
    first_answer, full = first_page(server.port, server.last_series, started)
    # By then the listener has the event; a rank reports again within half a second.
    time.sleep(2)
    for index in range(len(node.gpu)):
        node.raise_xid(index, 31)
    time.sleep(3)
    return Beginning(first_answer, full)
