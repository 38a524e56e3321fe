"""Cost of the bundle's rules for a real Prometheus that watches a cluster, their number of series, and how long
dashboards then take to open.

`python -m tests.benchmarks.rules 4096` measures clusters of the sizes given: 4,096 GPUs take 10 GB of memory and a
quarter of an hour.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.benchmarks import dashboards
from tests.benchmarks.cluster import HOUR, Cluster
from tests.benchmarks.dashboards import Recorded
from tests.benchmarks.processes import cpu_seconds, idle_share, proportional_memory
from tests.benchmarks.remote_write import RemoteWriter
from tests.prometheus_server import Server, prometheus
from tests.promql_names import names_in

_BUNDLE = Path(__file__).parents[2] / "prometheus"
_INTERVAL = 30
_SIZES = (256, 1024)
_GOAL_SECONDS, _GOAL_SERIES = 3.0, 60
_CALM = _INTERVAL * 2.0
"""Seconds for which samples come in before there are rules (what that takes is not theirs), and unwatched with them."""
_WATCHED = _INTERVAL * 8.0
"""Seconds in which evaluations count; a multiple of all groups' intervals."""
_FILL = 20
"""Moments in one writing."""


@dataclass
class Cost:
    """Cost of the rules at one size."""

    gpus: int
    series: int
    """Series written, each with a sample every half a minute."""
    memory: int
    """PSS of Prometheus in bytes."""
    cpu: float
    """Seconds of CPU time of all rules in half a minute: right on a busy machine as well."""
    groups: dict[str, float]
    """Seconds of an evaluation: the median of several."""
    rules: dict[tuple[str, int, str], float]
    """Seconds of an evaluation by group, place in it, and name."""
    recorded: dict[str, int]
    """How many series a rule's name has."""
    recorded_of_healthy: int
    """Of one GPU without trouble and the rank on it."""
    alerts: int
    """Pending or firing."""
    samples: list[Recorded] = field(repr=False)
    """All that rules and alerts recorded, at the end."""

    @property
    def total(self) -> float:
        """Seconds for all groups."""
        return sum(self.groups.values())


@dataclass
class _Watch:
    """Evaluations seen so far."""

    groups: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    rules: dict[tuple[str, int, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def take(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Record the server's newest evaluations."""
        for group in groups:
            if group["evaluationTime"]:
                self.groups[group["name"]][group["lastEvaluation"]] = group["evaluationTime"]
            for place, rule in enumerate(group["rules"]):
                if rule.get("health") == "err":
                    raise RuntimeError(f"{rule['name']} fails: {rule.get('lastError')}")
                if rule["evaluationTime"]:
                    key = (group["name"], place, rule["name"])
                    self.rules[key][rule["lastEvaluation"]] = rule["evaluationTime"]


def rule_files() -> list[Path]:
    """The files that the bundle's own configuration names."""
    configuration = yaml.safe_load((_BUNDLE / "prometheus.yml").read_text(encoding="utf-8"))
    return sorted(path.resolve() for pattern in configuration["rule_files"] for path in _BUNDLE.glob(pattern))


def names_read(files: Sequence[Path]) -> frozenset[str]:
    """Return every series that a rule reads."""
    return frozenset(
        name
        for path in files
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        for name in names_in(rule["expr"]).metrics
    )


def measure(gpus: int) -> Cost:
    """Fill a Prometheus with an hour of samples of this many GPUs, continue as scrapes do, and watch its rules."""
    files = rule_files()
    now = math.floor(time.time())
    cluster = Cluster(gpus, names_read(files), now)
    with prometheus(interval=_INTERVAL) as server:
        pid = server.pid
        writer = RemoteWriter(cluster, server.port)
        moment = now - HOUR
        while moment < time.time() - _INTERVAL:
            behind = min(_FILL, int((time.time() - moment) / _INTERVAL))
            writer.send(moment + _INTERVAL * np.arange(behind, dtype=float))
            moment += behind * _INTERVAL
        watch = _Watch()
        with _going_on(writer, moment):
            without_rules = idle_share(pid, _CALM)
            # Rules that have no thresholds yet take every rank for a young one, for minutes.
            server.configure([path for path in files if path.stem == "thresholds"], _INTERVAL)
            time.sleep(_INTERVAL + 5)
            server.configure(files, _INTERVAL)
            time.sleep(_CALM)
            before, began = cpu_seconds(pid), time.monotonic()
            while time.monotonic() < began + _WATCHED:
                time.sleep(5)
                watch.take(server.get("rules")["data"]["groups"])
            share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
        healthy = cluster.healthy()
        return Cost(
            gpus=gpus,
            series=cluster.series,
            memory=proportional_memory(pid),
            cpu=(share - without_rules) * _INTERVAL,
            groups={name: _median(seen) for name, seen in watch.groups.items()},
            rules={key: _median(seen) for key, seen in watch.rules.items()},
            recorded={
                sample["metric"]["__name__"]: int(sample["value"][1])
                for sample in _query(server, 'count by (__name__) ({__name__=~".+:.+", __name__!~"stallscope:.+"})')
            },
            recorded_of_healthy=len(_query(server, f'{{__name__=~".+:.+", uuid="{healthy["uuid"]}"}}'))
            + len(_query(server, f'{{__name__=~".+:.+", run="{healthy["run"]}", rank="{healthy["rank"]}", uuid=""}}')),
            alerts=len(_query(server, 'ALERTS{alertname!="StallscopeWatchdog"}')),
            samples=[
                (sample["metric"], float(sample["value"][1]))
                for sample in _query(server, '{__name__=~".+:.+|ALERTS.*"}')
            ],
        )


def table(sizes: Sequence[int] = _SIZES) -> str:
    """Measure, and return the tables as Markdown."""
    costs: list[Cost] = []
    openings: list[tuple[int, str]] = []
    for size in sizes:
        costs.append(measure(size))
        openings.append((size, dashboards.table(dashboards.measure(size, costs[-1].samples))))
        costs[-1].samples.clear()  # hundreds of megabytes
    largest = costs[-1]
    conditions = (
        f"The bundle's rules in a real Prometheus on {os.cpu_count()} CPUs. Eight GPUs a node, a rank on each, "
        "runs of 64 ranks, about a fifth of them in trouble; an hour of samples every 30 s, of the series that rules "
        "read, which go on coming in meanwhile. Windows over what rules have recorded themselves hold only the minutes "
        "of the measurement. Seconds of one evaluation, median of four minutes:"
    )
    goals = (
        f"To reach: all under {_GOAL_SECONDS:g} s at 1024 GPUs, growth by the GPUs to the power of 1 at most, and at "
        f"most {_GOAL_SERIES} recorded series a GPU."
    )
    several = len(costs) > 1
    names = sorted(largest.groups, key=lambda each: -largest.groups[each])
    sizes_head = _cells("", [f"{cost.gpus} GPUs" for cost in costs])
    costliest = sorted(largest.rules.items(), key=lambda each: -each[1])[:10]
    return "\n".join(
        [
            conditions,
            "",
            _cells("rule group", [*(f"{cost.gpus} GPUs" for cost in costs), *["power"][:several]]),
            "|---" * (len(costs) + 1 + several) + "|",
            *(_row(name, [cost.groups.get(name, 0.0) for cost in costs], costs) for name in names),
            _row("**all**", [cost.total for cost in costs], costs),
            _row("CPU time in 30 s", [cost.cpu for cost in costs], costs),
            "",
            goals,
            "",
            sizes_head,
            "|---" * (len(costs) + 1) + "|",
            _cells("series that rules read", [f"{cost.series}" for cost in costs]),
            _cells("recorded series", [f"{sum(cost.recorded.values())}" for cost in costs]),
            _cells("the same a GPU", [f"{sum(cost.recorded.values()) / cost.gpus:.1f}" for cost in costs]),
            _cells("of a healthy GPU and its rank", [f"{cost.recorded_of_healthy}" for cost in costs]),
            _cells("alerts, pending or firing", [f"{cost.alerts}" for cost in costs]),
            _cells("memory of Prometheus (PSS), MB", [f"{cost.memory / 1e6:.0f}" for cost in costs]),
            "",
            f"The ten costliest rules at {largest.gpus} GPUs:",
            "",
            "| group | rule | ms |",
            "|---|---|---|",
            *(f"| {_short(group)} | {name} | {1000 * took:.0f} |" for (group, _, name), took in costliest),
            *(line for size, opening in openings for line in ("", f"Dashboards at {size} GPUs:", "", opening)),
        ]
    )


def _row(name: str, seconds: Sequence[float], costs: Sequence[Cost]) -> str:
    cells = [f"{took:.3f}" for took in seconds]
    if len(costs) > 1:
        first, last = seconds[-2], seconds[-1]
        growth = math.log(last / first) / math.log(costs[-1].gpus / costs[-2].gpus) if first and last else 0.0
        cells.append(f"{growth:.2f}")
    return _cells(_short(name), cells)


def _short(group: str) -> str:
    return group.removeprefix("stallscope-")


def _cells(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


@contextmanager
def _going_on(writer: RemoteWriter, moment: float) -> Iterator[None]:
    """Samples that come in every half minute, beginning with this moment's."""
    ended = threading.Event()

    def write() -> None:
        due = moment
        while not ended.wait(max(0.0, due - time.time())):
            writer.send(np.array([due]), seconds=_INTERVAL * 0.9)
            due += _INTERVAL

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        try:
            yield
        finally:
            ended.set()
            writing.result()
            writer.close()


def _query(server: Server, expression: str) -> Any:
    return server.get("query", query=expression)["data"]["result"]


def _median(seen: Mapping[str, float]) -> float:
    return statistics.median(seen.values())


if __name__ == "__main__":
    print(table([int(size) for size in sys.argv[1:]] or _SIZES))
