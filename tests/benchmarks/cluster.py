"""A cluster's series: copies of a few nodes of eight GPUs, as the labelled cases show them.

A fifth of the runs is in trouble, each kind in turn, and another fifth has a node with faulty GPUs. One node more for
every 32 is held by an owner and does nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stallscope.lab.replay.series import Series
from tests.scenarios.cases.settings import NODE_WORK, run_on, slowed, taking
from tests.scenarios.disturbance import Disturbance
from tests.scenarios.machines import HGX
from tests.scenarios.page import pages
from tests.scenarios.runner import EVALUATION_SECONDS
from tests.scenarios.story import ALWAYS, From, Gpu, Host, Pause, Story, Work

GPUS_A_NODE = HGX.gpus
RANKS_A_RUN = 64
HOUR = 3600

Floats = NDArray[np.float64]
_SCRAPES = 41
_OBSERVED = 20
"""Scrapes at the end from which a series' rate and swing are taken."""
_GROWN_SECONDS = 2 * HOUR
"""By how much runs are older than in the story, and counters further on."""
_WORK = replace(NODE_WORK, tokens_per_sample=4096, flops_per_sample=3e12)


def _run_of(work: Work, only: tuple[int, ...] | None = None, host: Host | None = None) -> Story:
    """Two nodes with one run, whose ranks, or those in `only`, do that work; the others do the usual."""
    return run_on(
        HGX,
        work,
        before=_WORK,
        only=only,
        onset=ALWAYS / 2,
        count=2,
        host=host,
        namespace="research",
        pods=True,
        quota=True,
        measures_communication=True,
    )


_HEALTHY = _run_of(_WORK)
_STORIES = {
    "healthy": _HEALTHY,
    "input": _run_of(replace(taking(_WORK, "data_wait", 0.30), loader_cores=22), host=Host(cores=8, cpu_waiting=0.25)),
    "straggler": _run_of(slowed(_WORK, 1.6), only=(7,)),
    "checkpoint": _run_of(replace(_WORK, pauses=(Pause("checkpoint", 9.0, every_seconds=60.0),))),
    "host_copy": _run_of(taking(_WORK, "host_copy", 0.25)),
    "communication": _run_of(taking(_WORK, "communication", 0.25)),
    "hardware": replace(
        _HEALTHY,
        gpus=(
            From(ALWAYS, Gpu()),
            From(0, Gpu(celsius=87, throttled={"sw_thermal": 0.4}, clock=0.7), only=(1,)),
            From(0, Gpu(throttled={"power_cap": 0.6}, clock=0.8), only=(3,)),
            From(0, Gpu(xids=(31,)), only=(4,)),
            From(0, Gpu(width=8, replays=30.0), only=(5,)),
            From(0, Gpu(links_down=1, link_errors={"crc": 6.0}, remap_pending=True), only=(6,)),
        ),
    ),
    "idle": Story(nodes=(HGX,), gpus=(From(ALWAYS, Gpu(foreign=("research/notebook-0",))),)),
}
_TROUBLES = ("input", "straggler", "checkpoint", "host_copy", "communication")


@dataclass(frozen=True)
class Columns:
    """The series of a name: each is `start` now, grows by `rate` a second and swings by `swing`."""

    name: str
    labels: Sequence[Mapping[str, str]]
    nodes: NDArray[np.int64]
    """Of each series, which exporter shows it: its samples share the moment of a scrape."""
    start: Floats
    rate: Floats
    swing: Floats


class _Shape(NamedTuple):
    """How a series behaves."""

    start: float
    rate: float
    swing: float


@dataclass(frozen=True)
class _Place:
    """Where in the cluster a copy of a node is."""

    node: int
    run: str = ""
    first_rank: int = 0
    world_size: int = 0

    def labels(self, shown: Mapping[str, str]) -> dict[str, str]:
        """Return the labels of a series here."""
        pod = f"{self.run}-{self.first_rank // GPUS_A_NODE}"
        here = {"instance": f"node{self.node:04}:19400", "hostname": f"node{self.node:04}"}
        if self.run:
            here |= {"run": self.run, "pod": pod, "world_size": str(self.world_size)}
        if "rank" in shown:
            here["rank"] = str(self.first_rank + int(shown["rank"]) % GPUS_A_NODE)
        if "uuid" in shown:
            here["uuid"] = f"GPU-{self.node:08x}-5ca1-4b1e-a5a5-{shown['gpu']:0>12}"
        return {**{name: here.get(name, value) for name, value in shown.items()}, "cluster": "east"}


class Cluster:
    """All series of a cluster.

    Args:
        gpus: GPUs with a rank each, a multiple of eight.
        names: which series to make, as queries name them.
        now: Unix time at which the series have their `start`.
        ranks_a_run: at most.
    """

    def __init__(self, gpus: int, names: Collection[str], now: float, *, ranks_a_run: int = RANKS_A_RUN) -> None:
        self._now = now
        working = gpus // GPUS_A_NODE
        self._nodes = working + max(1, working // 32)
        found: dict[str, list[tuple[Mapping[str, str], int, _Shape]]] = defaultdict(list)
        for node in range(self._nodes):
            first = node * GPUS_A_NODE
            number, first_rank = divmod(first, ranks_a_run)
            place = _Place(node)
            story, page = "idle", 0
            if node < working:
                size = min(ranks_a_run, gpus - number * ranks_a_run)
                place = _Place(node, f"pretrain-{number:03}", first_rank, size)
                story = {1: _TROUBLES[number // 5 % len(_TROUBLES)], 3: "hardware"}.get(number % 5, "healthy")
                page = int(first_rank > 0)
            for each, shape in _nodes_of(story, now)[page]:
                if each.name in names:
                    found[each.name].append((place.labels(each.labels), node, shape))
        self.columns = [_columns(name, *zip(*rows, strict=True)) for name, rows in found.items()]

    @property
    def series(self) -> int:
        """How many there are."""
        return sum(len(each.labels) for each in self.columns)

    def healthy(self) -> Mapping[str, str]:
        """Labels of a GPU without any trouble and of the rank on it."""
        return _Place(0, "pretrain-000").labels({"gpu": "2", "uuid": "", "run": "", "rank": "2"})

    def values(self, moments: Floats) -> Iterator[tuple[Columns, Floats]]:
        """Each name with its values, one row a series.

        Args:
            moments: Unix times of the scrapes.
        """
        # A scrape's jitter is the same in all of a node's series, so that histograms stay cumulative.
        scrape = np.random.default_rng(round(moments[0])).uniform(-0.2, 0.2, (self._nodes, len(moments)))
        for each in self.columns:
            jitter = scrape[each.nodes]
            grown = each.rate[:, None] * (moments - self._now + jitter)
            yield each, each.start[:, None] + grown + each.swing[:, None] * jitter * 5


@cache
def _nodes_of(name: str, now: float) -> list[list[tuple[Series, _Shape]]]:
    """Return what each node of a story shows, and how that behaves if the story ends now."""
    story = _STORIES[name]
    shown = pages(story, Disturbance(story, 1, _SCRAPES, EVALUATION_SECONDS, noise=False))
    instances = sorted({each.labels["instance"] for each in shown})
    return [
        [(each, _shape(each, now)) for each in shown if each.labels["instance"] == instance] for instance in instances
    ]


def _shape(series: Series, now: float) -> _Shape:
    """Return how a series behaves at the end of its story, if that is now."""
    values = np.array([value for value in series.values[-_OBSERVED:] if value is not None])
    first, last = values[[0, -1]].tolist()
    if series.name.endswith(("_timestamp_seconds", "_start_time_seconds")):
        if last > first:
            return _Shape(now, 1.0, 0.0)
        older = _GROWN_SECONDS if series.name.startswith("stallscope_training_") else 0
        return _Shape(now - (_SCRAPES - 1) * EVALUATION_SECONDS + last - older, 0.0, 0.0)
    if last > first and (np.diff(values) >= 0).all():
        rate = (last - first) / ((len(values) - 1) * EVALUATION_SECONDS)
        return _Shape(last + rate * _GROWN_SECONDS, rate, 0.0)
    return _Shape(float(values.mean()), 0.0, float(np.ptp(values)) / 2)


def _columns(name: str, labels: Sequence[Mapping[str, str]], nodes: Sequence[int], shapes: Sequence[_Shape]) -> Columns:
    start, rate, swing = np.array(shapes).T.copy()
    return Columns(name, labels, np.array(nodes), start, rate, swing)
