"""`make bench`: measure, print, and keep the tables with machine and date in RESULTS.md."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
from pathlib import Path

from tests.benchmarks import (
    accuracy,
    reading_back,
    report,
    reports,
    rules,
    sampling_round,
    scrape,
    scraped_cluster,
    shim_cost,
    stack_samples,
    status_page,
    top,
    training_step,
    unmodified_loop,
)
from tests.benchmarks.processes import CLIENT_CPU

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = """# Benchmark results

Written by `make bench`, newest first. Ratios are against the peer in the same run, on one stand-in driver library
(`tests/nvml_library`): they show what the exporters cost, not how long a real driver's calls take. Server and client
each have a CPU of their own.
"""


def machine() -> str:
    """Return a description of this machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    system = f"Linux {platform.release()}, CPython {platform.python_version()}"
    return f"{os.cpu_count()} CPUs, {model}, {system}"


def load() -> str:
    """Return the mean number of threads that wanted a CPU over the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="print only; leave RESULTS.md alone")
    options = parser.parse_args()
    today = dt.datetime.now(dt.timezone.utc).date()
    before = load()
    shim = (shim_cost, stack_samples, training_step, unmodified_loop)
    parts = ["### The shim", *[part.table().strip() for part in shim]]
    # Prometheus may use every CPU.
    rule_cost = ["### Rules", rules.table(), "### A cluster that is scraped", scraped_cluster.table()]
    reading = ["### Reading a run back", reading_back.table(), "### stallscope report", report.table()]
    os.sched_setaffinity(0, {CLIENT_CPU})
    parts += ["### Scrapes", scrape.table()]
    parts += ["### Taking reports", reports.table()]
    parts += ["### The status page", status_page.table()]
    parts += ["### stallscope top", top.table()]
    parts += ["### A sampling round", sampling_round.table()]
    parts += ["### Accuracy", accuracy.table(), *rule_cost, *reading]
    parts = [f"## {today}", f"{machine()}; load {before} before the run, {load()} after it (its own is 1)", *parts]
    entry = "\n\n".join(parts) + "\n\n"
    print(entry)
    if not options.no_write:
        earlier = RESULTS.read_text(encoding="utf-8").removeprefix(_HEAD) if RESULTS.exists() else ""
        RESULTS.write_text(f"{_HEAD}\n{entry}{earlier}", encoding="utf-8")


if __name__ == "__main__":
    main()
