"""Differences of a real installation's pages from ideal ones: drawn once a case and seed."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from tests.scenarios.story import Run, Story

Floats = NDArray[np.float64]

NON_ESSENTIAL = (
    "stallscope_gpu_fan_speed_ratio",
    "stallscope_gpu_bar1_",
    "stallscope_gpu_persistence_mode",
    "stallscope_gpu_engine_busy_seconds_total",
    "stallscope_gpu_memory_utilization_ratio",
    "stallscope_host_page_cache_bytes",
    "stallscope_training_learning_rate",
    "stallscope_training_epoch",
    "stallscope_training_process_memory_bytes",
    "stallscope_exporter_source_read_seconds",
)
"""One of these families goes missing under noise: no rule may need it."""


class Disturbance:
    """When each page is made and stored, and what is wrong with it.

    Without noise every page is made at its scrape and nothing is wrong; steps are drawn by seed nevertheless.
    """

    def __init__(
        self, story: Story, seed: int, scrapes: int, scrape_seconds: int, *, noise: bool, case: str = ""
    ) -> None:
        self._entropy = (zlib.crc32(case.encode()), seed)
        draw = self.generator("noise")
        nodes = len(story.nodes)
        grid = np.arange(scrapes) * float(scrape_seconds)
        self.grid = grid
        self.times: list[Floats] = [grid.copy() for _ in range(nodes)]
        """When the page that each scrape stores was made, by node."""
        self.answered = [np.ones(scrapes, dtype=bool) for _ in range(nodes)]
        self.scraped = np.ones(scrapes, dtype=bool)
        """False where Prometheus makes no scrape at all."""
        for start, end in story.scrape_gaps:
            self.scraped &= (grid <= start * 60) | (grid >= end * 60)
        self.skew = [0.0] * nodes
        """Seconds by which a node's clock is ahead."""
        reported = {node: 60 * minute for node, minute in story.exporter_restarts}
        self.exporter_restarts: list[float | None] = [reported.get(node) for node in range(nodes)]
        self.absent: tuple[str, ...] = ()
        self.pace = [1.0] * len(story.runs)
        """Factor on all phases of a run."""
        self.level = [1.0] * nodes
        """Factor on a node's load that no case is about."""
        self.spread = 1.0
        self.missing: list[tuple[int, ...]] = [run.missing for run in story.runs]
        if not noise:
            return
        for node in range(nodes):
            self.times[node] = grid - draw.uniform(0, 3) + draw.uniform(-0.5, 0.5, scrapes)
            self.answered[node][draw.choice(np.arange(1, scrapes), 2, replace=False)] = False
            self.skew[node] = float(draw.uniform(-2, 2))
            self.level[node] = float(draw.uniform(0.8, 1.2))
        node, restart = int(draw.integers(nodes)), float(draw.uniform(0.1, 0.6) * grid[-1])
        if node not in reported:
            self.exporter_restarts[node] = restart
        self.absent = (NON_ESSENTIAL[int(draw.integers(len(NON_ESSENTIAL)))],)
        self.pace = [float(draw.uniform(0.8, 1.2)) for _ in story.runs]
        self.spread = 1.5
        for number, run in enumerate(story.runs):
            alike = [rank for rank in range(1, len(run.ranks)) if rank not in set(_distinguished(story, run))]
            if len(run.ranks) >= 4 and alike:
                self.missing[number] = (*run.missing, int(draw.choice(alike)))

    def generator(self, *purpose: object) -> np.random.Generator:
        """Draw for a purpose, whatever else is drawn."""
        return np.random.default_rng((*self._entropy, zlib.crc32(repr(purpose).encode())))


def _distinguished(story: Story, run: Run) -> list[int]:
    """Ranks that the story says something of by themselves: a case is about them."""
    ranks = [rank for each in run.work for rank in each.only or ()] + list(run.killed)
    gpus = {gpu for each in story.gpus for gpu in each.only or ()}
    return ranks + [rank for rank, held in enumerate(run.ranks) if gpus.intersection(held)]
