"""How long it takes to read a run back, and how much memory: whole, as a day of eight GPUs, and long ones in pieces.

`python -m tests.benchmarks.reading_back 8x24 512x1` measures runs of 8 GPUs over 24 hours and so on, one scrape in
half a minute, on a Prometheus that holds nothing else.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from typing import NamedTuple

import numpy as np

from stallscope.model.analysis.columns import COLUMNS
from tests.benchmarks.cluster import HOUR, Cluster
from tests.benchmarks.processes import finished
from tests.benchmarks.remote_write import RemoteWriter
from tests.prometheus_server import prometheus

INTERVAL = 30
RUN = "pretrain-000"
_FILL = 40
"""Scrapes that are written at once."""
READ = frozenset(
    name for columns in COLUMNS.values() for column in columns for name in (column.series, column.over) if name
) | {"stallscope_training_rank_info", "stallscope_training_rank_gpu_info"}
"""Series that are queried to read a run back."""


class Size(NamedTuple):
    """How large a run is."""

    gpus: int
    hours: float

    @classmethod
    def parse(cls, text: str) -> Size:
        """As a command line has it: `8x24`."""
        gpus, hours = text.split("x")
        return cls(int(gpus), float(hours))


SIZES = (Size(8, 24), Size(512, 1))


@dataclass(frozen=True)
class Reading:
    """Cost of one way to read a run."""

    size: Size
    way: str
    rows: int
    """Of all data frames together."""
    seconds: float
    cpu: float
    """Seconds of the process that read; the server's own are not among them."""
    megabytes: float
    """Most memory that it had, MiB."""


@contextmanager
def filled(size: Size) -> Iterator[tuple[str, float]]:
    """Yield the address of a Prometheus with all series of one run's exporters, and the Unix time before all of
    them."""
    end = floor(time.time())
    cluster = Cluster(size.gpus, READ, end, ranks_a_run=size.gpus)
    moments = np.arange(end - size.hours * HOUR, end, INTERVAL, dtype=np.float64)
    with prometheus() as server:
        writer = RemoteWriter(cluster, server.port)
        for begin in range(0, len(moments), _FILL):
            writer.send(moments[begin : begin + _FILL])
        writer.close()
        yield server.address, float(moments[0]) - 1


def measure(size: Size) -> Iterator[Reading]:
    """Read a run in several ways."""
    with filled(size) as (url, start), tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stallscope", "frames", "--run", RUN, "--prometheus.url", url]
        command += ["--since", f"{start:.0f}", "--out", folder, "--json"]
        yield _timed(size, "every scrape, to Parquet", command)
        yield _timed(size, "every scrape, to CSV", [*command, "--format", "csv"])
        yield _timed(size, "a row in 5 min, to Parquet", [*command, "--step", "5m"])


def _timed(size: Size, way: str, command: Sequence[str]) -> Reading:
    took = finished(command)
    rows = sum(each["rows"] for each in json.loads(took.output)["files"])
    return Reading(size, way, rows, took.seconds, took.cpu, took.megabytes)


def table(sizes: Sequence[Size] = SIZES) -> str:
    """Measure, and return the table as Markdown."""
    conditions = (
        "`stallscope frames` on a Prometheus on the same machine, one scrape in 30 s; a process of its own each time. "
        "Memory is the most that the process had; a run of any length takes no more, since it is read in pieces."
    )
    lines = [
        conditions,
        "",
        "| GPUs | hours | what | rows | s | CPU s | MiB |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    for size in sizes:
        lines += [
            f"| {size.gpus} | {size.hours:g} | {each.way} | {each.rows:,} | {each.seconds:.1f} | {each.cpu:.1f} "
            f"| {each.megabytes:.0f} |"
            for each in measure(size)
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([Size.parse(each) for each in sys.argv[1:]] or SIZES))
