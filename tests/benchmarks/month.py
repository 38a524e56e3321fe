"""Cost of reading back a month of a 512-GPU run: seconds and memory of `frames` and `stallscope frames`.

`python -m tests.benchmarks.month` takes about half an hour, and is therefore no part of `make bench`. Nothing stores
the month: `formula_prometheus` makes it up in a process of its own, and what is measured is who reads.
`python -m tests.benchmarks.month 64x720` measures another size.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.benchmarks.__main__ import load, machine
from tests.benchmarks.processes import finished
from tests.benchmarks.reading_back import RUN, Size

MONTH = Size(512, 720)
_INTO_MEMORY = """
import json, sys, warnings
from stallscope.model.analysis import frames
warnings.simplefilter("ignore")
run = frames(sys.argv[1], prometheus=sys.argv[2], start=float(sys.argv[3]))
files = [{"rows": len(frame), "bytes": int(frame.memory_usage().sum())} for _, frame in run.items()]
print(json.dumps({"resolution_seconds": run.resolution, "files": files}))
"""
_DAY_HOURS = 24.0


class Reading(NamedTuple):
    """Cost of one way to read a run."""

    way: str
    hours: float
    resolution: float
    """Seconds between two rows of a subject."""
    rows: int
    """Of all data frames together."""
    seconds: float
    cpu: float
    """Seconds of the process that read; the server's are not among them."""
    megabytes: float
    """Most memory that it had, MiB."""


@contextmanager
def serving(size: Size) -> Iterator[str]:
    """Return the address of a server with such a run until now."""
    command = [sys.executable, "-m", "tests.benchmarks.formula_prometheus", f"{size.gpus}x{size.hours:g}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def measure(size: Size = MONTH) -> Iterator[Reading]:
    """Read a run into memory, to files, and the last day of it at every scrape."""
    with serving(size) as url, tempfile.TemporaryDirectory() as folder:
        start = dt.datetime.now(dt.timezone.utc).timestamp() - (size.hours + 1) * 3600
        command = [sys.executable, "-m", "stallscope", "frames", "--run", RUN, "--prometheus.url", url]
        command += ["--out", folder, "--json"]
        day = min(_DAY_HOURS, size.hours)
        into_memory = [sys.executable, "-c", _INTO_MEMORY, RUN, url, f"{start}"]
        yield _timed("`frames()`, at the step that it chooses", size.hours, into_memory)
        yield _timed("`stallscope frames --step 5m`", size.hours, [*command, f"--since={start:.0f}", "--step=5m"])
        yield _timed("`stallscope frames`, every scrape", day, [*command, f"--since={day:g}h"])


def _timed(way: str, hours: float, command: Sequence[str]) -> Reading:
    took = finished(command)
    document = json.loads(took.output)
    rows = sum(each["rows"] for each in document["files"])
    resolution = document["resolution_seconds"]
    return Reading(way, hours, resolution, rows, took.seconds, took.cpu, took.megabytes)


def table(size: Size = MONTH) -> str:
    """Measure, and return the table as Markdown."""
    conditions = (
        f"A run on {size.gpus} GPUs, scraped every 30 s. The server makes its answers up from a formula, so that no "
        "month need be stored: seconds are the reader's with the time in which such a server answers, and a real "
        "Prometheus takes more. Memory is the most that the reading process had."
    )
    lines = [
        conditions,
        "",
        "| what | days | a row | rows | s | CPU s | MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.way} | {each.hours / _DAY_HOURS:g} | {each.resolution:g} s | {each.rows:,} | {each.seconds:.0f} "
        f"| {each.cpu:.0f} | {each.megabytes:.0f} |"
        for each in measure(size)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    before = load()
    measured = table(Size.parse(sys.argv[1]) if sys.argv[1:] else MONTH)
    print(
        f"{dt.datetime.now(dt.timezone.utc).date()}: {machine()}; load {before} before, {load()} after it\n\n{measured}"
    )
