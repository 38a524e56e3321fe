"""Measures if one Prometheus keeps up with 256 nodes of eight GPUs that it scrapes every 15 s, with rules and alerts.

`python -m tests.benchmarks.scraped_cluster 256 20` takes 256 nodes and 20 minutes; the results are of the last five.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.processes import cpu_seconds, first_page, proportional_memory
from tests.benchmarks.replay import GPUS_A_NODE, NODES_A_RUN, TROUBLED, name_of
from tests.benchmarks.rules import rule_files
from tests.free_ports import free_port
from tests.prometheus_server import Prometheus, Server, prometheus

_NODES, _MINUTES = 256, 20.0
_INTERVAL = 15
_WATCHED_MINUTES = 5.0
_KINDS = ("healthy", "input_cpu_saturated", "thermal_throttle")


@dataclass(frozen=True)
class Outcome:
    """How it went, over the last minutes."""

    nodes: int
    minutes: float
    series: float
    samples_a_second: float
    scrapes: float
    """Share of the scrapes due that were made and answered."""
    scrape_seconds: tuple[float, float]
    """Mean and worst duration of a scrape."""
    page_series: float
    missed: float
    """Evaluations of rule groups that came too late and were left out, since the beginning."""
    groups: list[tuple[str, float]]
    """Rule groups by their newest evaluation's seconds, the longest first."""
    failing: int
    """Rules that can't be evaluated."""
    alerts: int
    cpu: float
    """Cores that Prometheus takes, and the replaying server."""
    replaying: float
    memory: tuple[int, int]
    """PSS of Prometheus in bytes: at the beginning of the last minutes, and at their end."""


def measure(nodes: int, minutes: float) -> Outcome:
    """Run all of it, and watch the end."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = Path(name)
        sources = [running.enter_context(_simulated(folder, kind)) for kind in _KINDS]
        port = free_port()
        command = [sys.executable, "-m", "tests.benchmarks.replay", *map(str, (port, *sources))]
        replay = running.enter_context(_process(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]))
        assert replay.stdout is not None
        replay.stdout.readline()
        server = running.enter_context(prometheus(interval=_INTERVAL))
        _scrape(server, port, nodes)
        time.sleep((minutes - _WATCHED_MINUTES) * 60)
        memory = proportional_memory(server.pid)
        used, replayed, began = cpu_seconds(server.pid), cpu_seconds(replay.pid), time.monotonic()
        time.sleep(_WATCHED_MINUTES * 60)
        passed = time.monotonic() - began
        used, replayed = (cpu_seconds(server.pid) - used) / passed, (cpu_seconds(replay.pid) - replayed) / passed
        return _outcome(server, nodes, minutes, used, replayed, (memory, proportional_memory(server.pid)))


def _outcome(
    server: Prometheus, nodes: int, minutes: float, cpu: float, replaying: float, memory: tuple[int, int]
) -> Outcome:
    window = f"[{_WATCHED_MINUTES * 60:.0f}s]"
    groups = server.get("rules")["data"]["groups"]
    return Outcome(
        nodes,
        minutes,
        _figure(server, 'prometheus_tsdb_head_series{job="prometheus"}'),
        _figure(server, f'sum(rate(prometheus_tsdb_head_samples_appended_total{{job="prometheus"}}{window}))'),
        _figure(server, f'sum(sum_over_time(up{{job="stallscope"}}{window}))')
        / (nodes * _WATCHED_MINUTES * 60 / _INTERVAL),
        (
            _figure(server, f'avg(avg_over_time(scrape_duration_seconds{{job="stallscope"}}{window}))'),
            _figure(server, f'max(max_over_time(scrape_duration_seconds{{job="stallscope"}}{window}))'),
        ),
        _figure(server, f'avg(avg_over_time(scrape_samples_scraped{{job="stallscope"}}{window}))'),
        _figure(server, 'sum(prometheus_rule_group_iterations_missed_total{job="prometheus"})'),
        sorted(((group["name"], group["evaluationTime"]) for group in groups), key=lambda each: -each[1]),
        sum(rule.get("health") == "err" for group in groups for rule in group["rules"]),
        int(_figure(server, 'count(ALERTS{alertname!="StallscopeWatchdog", alertstate="firing"}) or vector(0)')),
        cpu,
        replaying,
        memory,
    )


def table(nodes: int = _NODES, minutes: float = _MINUTES) -> str:
    """Measure and return the tables as Markdown."""
    found = measure(nodes, minutes)
    mean, worst = found.scrape_seconds
    total = sum(seconds for _name, seconds in found.groups)
    rows = [
        ("nodes, GPUs and ranks", f"{found.nodes}, {found.nodes * GPUS_A_NODE}, {found.nodes * GPUS_A_NODE}", ""),
        ("series in memory", f"{found.series:,.0f}", ""),
        ("samples a second", f"{found.samples_a_second:,.0f}", ""),
        ("series of a page", f"{found.page_series:,.0f}", ""),
        ("scrapes answered of those due", f"{100 * found.scrapes:.2f} %", "100 %"),
        ("a scrape, mean and worst, ms", f"{1000 * mean:.0f} and {1000 * worst:.0f}", "under 10 s"),
        ("evaluations of rule groups left out", f"{found.missed:.0f}", "0"),
        ("longest evaluation of a group, s", f"{found.groups[0][1]:.2f} ({found.groups[0][0]})", f"under {_INTERVAL}"),
        ("all groups together, s", f"{total:.2f}", ""),
        ("rules that fail", f"{found.failing}", "0"),
        ("alerts firing", f"{found.alerts}", ""),
        ("CPUs that Prometheus takes", f"{found.cpu:.2f}", f"under {os.cpu_count()}"),
        ("and the server that replays", f"{found.replaying:.2f}", ""),
        ("memory of Prometheus (PSS), MB", f"{found.memory[0] / 1e6:,.0f}, {found.memory[1] / 1e6:,.0f} later", ""),
    ]
    conditions = (
        f"One real Prometheus on {os.cpu_count()} CPUs scrapes {nodes} nodes every {_INTERVAL} s, with the "
        f"bundle's rules and alerts every {_INTERVAL} s. One server, on the same CPUs, replays the pages of live "
        f"simulated nodes under as many names, runs of {NODES_A_RUN * GPUS_A_NODE} ranks, a run of {TROUBLED} in "
        f"trouble. {minutes:g} minutes, of which the last {_WATCHED_MINUTES:g} count. Past its limit: more "
        "CPUs, an interval of 30 s, a Prometheus for each cluster, or rules at the edge (prometheus/examples)."
    )
    return "\n".join(
        [
            conditions,
            "",
            "| | | to reach |",
            "|---|---|---|",
            *(f"| {name} | {value} | {goal} |" for name, value, goal in rows),
            "",
            "| rule group | s |",
            "|---|---|",
            *(f"| {name.removeprefix('stallscope-')} | {seconds:.3f} |" for name, seconds in found.groups[:10]),
        ]
    )


def _figure(server: Prometheus, expression: str) -> float:
    found: list[Any] = server.get("query", query=expression)["data"]["result"]
    if len(found) != 1:
        raise RuntimeError(f"{expression} has {len(found)} values")
    return float(found[0]["value"][1])


@contextlib.contextmanager
def _process(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **how) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def _simulated(folder: Path, kind: str) -> Iterator[int]:
    """An exporter that simulates its node; its port."""
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "stallscope"),
        "exporter",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--report.unix-socket={folder / kind}",
        "--report.udp-address=",
        f"--simulation.scenario={kind}",
        "--simulation.host=true",
        "--log.level=error",
    ]
    with _process(command):
        first_page(port, b"stallscope_training_samples_total{", time.perf_counter())
        yield port


def _scrape(server: Server, port: int, nodes: int) -> None:
    """Let a running Prometheus scrape the nodes, and itself, and evaluate the bundle's rules."""
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"cluster": "east", "instance": f"{name_of(node)}:19400", "__metrics_path__": f"/node{node}"},
        }
        for node in range(nodes)
    ]
    configuration = {
        "global": {"scrape_interval": f"{_INTERVAL}s", "evaluation_interval": f"{_INTERVAL}s"},
        "rule_files": [str(file) for file in rule_files()],
        "scrape_configs": [
            {"job_name": "stallscope", "honor_labels": True, "static_configs": targets},
            {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]},
        ],
    }
    (server.folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    urllib.request.urlopen(f"{server.address}/-/reload", data=b"", timeout=60).close()


if __name__ == "__main__":
    reported = sys.argv[1:]
    print(table(int(reported[0]), float(reported[1])) if reported else table())
