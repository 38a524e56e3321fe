"""A node's training series: what its ranks report, with the load of their processes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.scenarios.disturbance import Floats
from tests.scenarios.page_gpu import allocator
from tests.scenarios.reports import Reports, reports_of
from tests.scenarios.sheet import Mask, Sheet
from tests.scenarios.world import World

_SLOW_LINES = {"data/augment.py:41": 0.62, "data/read.py:7": 0.2}
"""Lines of code in which a rank waits for data, with their share."""
_PERIODS = 10.0
"""Periods of a cgroup's quota in a second."""


def show_training(sheet: Sheet, world: World) -> None:
    """Add the series of every rank that reports to one node's exporter."""
    claims = [
        claim
        for claim in world.ranks_on(sheet.node)
        if claim.run.instrumented and claim.rank not in world.disturbance.missing[claim.number]
    ]
    for reports in reports_of(world, claims, sheet.times, sheet.skew):
        for (name, labels), values in reports.series.items():
            sheet.add(name, values, ~np.isnan(values), **dict(labels))
        _Process(sheet, world, reports).show()


class _Process:
    """Values of a rank's process: the world knows them at any moment, and they are those of the newest report."""

    def __init__(self, sheet: Sheet, world: World, reports: Reports) -> None:
        self._sheet = sheet
        self._world = world
        self._claim = claim = reports.claim
        self._course, self._rank, self._run = claim.course, claim.rank, claim.run
        self._reported, self._begun = reports.sent, reports.begun
        self._present: Mask = reports.present
        self._waited = reports.phase_seconds("data_wait")

    def show(self) -> None:
        self._processes()
        self._allocator()
        self._code()

    def _add(self, name: str, values: Floats | float, present: Mask | bool = True, /, **labels: str) -> None:
        given = {"run": self._run.name, "rank": str(self._rank), **labels}
        self._sheet.add(f"stallscope_training_{name}", values, self._present & present, **given)

    def _counted(self, integral: Callable[[Floats], Floats]) -> Floats:
        """A counter of the session: restarts with the process."""
        return integral(self._reported) - integral(self._begun)

    def _code(self) -> None:
        """Stacks are sampled where the rank waits for data for long."""
        if self._waited[-1] > 0.1 * (self._reported - self._begun)[-1]:
            for location, share in _SLOW_LINES.items():
                line = {"location": location, "function": "load", "phase": "data_wait"}
                self._add("code_seconds_total", share * self._waited, self._waited > 0, **line)

    def _processes(self) -> None:
        world, claim, run, course, rank = self._world, self._claim, self._run, self._course, self._rank
        limit = world.cores(claim)
        self._add("process_cpu_seconds_total", self._counted(lambda times: world.rank_cpu(claim, times)))
        self._add("main_thread_cpu_seconds_total", self._counted(lambda times: world.main_thread(claim, times)))
        self._add("cpu_limit_cores", limit)
        workers = course.segments[-1].works[rank].loader_workers
        if workers is not None:
            self._add("dataloader_workers", workers)
        self._add("process_memory_bytes", 6e9 + 9e8 * (workers or 0))
        collected = self._counted(lambda times: course.elapsed(rank, "collector", times))
        self._add("garbage_collection_seconds_total", collected)
        node = world.gpus[run.ranks[rank][0]][0]
        self._add("cgroup_oom_kills_total", world.oom_kills(node, self._reported))
        # A pod's cgroup has these counters without a quota as well, and then they stay at zero.
        if run.quota or run.pods:
            periods = _PERIODS if run.quota else 0.0
            self._add("cpu_periods_total", np.floor(periods * (self._reported - self._begun)))
            throttled = self._counted(lambda times: course.elapsed(rank, "quota_throttled", times))
            self._add("cpu_throttled_periods_total", np.floor(_PERIODS * throttled))
            waited = self._counted(lambda times: course.elapsed(rank, "quota_waited", times))
            self._add("cpu_throttled_seconds_total", waited)

    def _allocator(self) -> None:
        gpu = self._run.ranks[self._rank][0]
        memory = self._world.node(gpu).card.memory
        for name, share in allocator(self._claim, self._reported).items():
            self._add(f"allocator_{name}_bytes", np.floor(share * memory))
        retries = self._counted(lambda times: self._course.elapsed(self._rank, "allocator_retries", times) / 60)
        self._add("allocator_retries_total", np.floor(retries))
        self._add("out_of_memory_total", 0)
