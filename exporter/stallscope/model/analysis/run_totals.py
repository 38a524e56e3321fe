"""Totals of a run from its cumulative counters: exact for a run of any length, also before the rules judge it.

totals = read_totals(server, find_run(server, "resnet50", start, end))
totals.shares["data_wait"], totals.mean_step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from stallscope.common.percentiles import Bucket, buckets_of, relative_error
from stallscope.model.analysis.over_time import FIRST_SCRAPE_SECONDS, Server
from stallscope.model.analysis.runs import Run
from stallscope.model.catalogue.metrics import NOT_OF_THE_LOOP

_RANK = "cluster, job, instance, run, rank"


@dataclass(frozen=True)
class RunTotals:
    """Totals of all ranks of a run at its end; only times for a run whose counters began again."""

    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all ranks by phase, by the host's clock."""
    gpu_phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all ranks by phase, by the GPU's clock."""
    steps: float = 0.0
    """Steps with a known duration, of all ranks."""
    step_seconds: float = 0.0
    """Seconds of these steps."""
    ranks: float = 0.0
    """Number of ranks."""
    samples: float = 0.0
    tokens: float = 0.0
    cumulative: Mapping[str, float] = field(default_factory=dict)
    """Steps of at most a length, by upper limit."""
    first_step: float | None = None
    """Unix time at which the first step ended."""
    last_step: float | None = None
    """Unix time at which the newest step ended."""

    @cached_property
    def loop(self) -> Mapping[str, float]:
        """Seconds of all ranks by phase of the loop, the greatest first."""
        times = {name: spent for name, spent in self.phases.items() if name not in NOT_OF_THE_LOOP and spent > 0}
        return dict(sorted(times.items(), key=lambda each: -each[1]))

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Share of the loop's time by phase, the greatest first; empty without time."""
        total = sum(self.loop.values())
        return {name: spent / total for name, spent in self.loop.items()} if total > 0 else {}

    @property
    def mean_step(self) -> float | None:
        """Mean duration of a step; None without steps."""
        return self.step_seconds / self.steps if self.steps > 0 else None

    @property
    def loop_seconds(self) -> float | None:
        """Mean length of a rank's loop; None without time."""
        return sum(self.loop.values()) / self.ranks if self.loop and self.ranks else None

    def rate(self, work: float) -> float | None:
        """Return work of all ranks by second of the loop; None if no work is reported."""
        return work / self.loop_seconds if work and self.loop_seconds else None

    @property
    def step_uncertainty(self) -> float | None:
        """Relative standard error of the mean step time, at most, by the buckets; None without steps."""
        return relative_error(self.buckets, self.mean_step) if self.mean_step else None

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Steps by length, without empty buckets at the ends."""
        return buckets_of({inf if edge == "+Inf" else float(edge): number for edge, number in self.cumulative.items()})


def read_totals(server: Server, run: Run) -> RunTotals:
    """Read the totals of one run.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    which = run.matchers

    def one(expression: str) -> float | None:
        return next((each.value for each in server.query(expression, at=run.end)), None)

    first_step = one(f"min(stallscope_training_first_step_timestamp_seconds{{{which}}})")
    last_step = one(f"max(stallscope_training_last_step_timestamp_seconds{{{which}}})")
    if (one(f"max({_increase('stallscope_training_restarts_total', run)})") or 0.0) > 0 or _has_moved(run):
        return RunTotals(first_step=first_step, last_step=last_step)

    def by(label: str, series: str) -> dict[str, float]:
        expression = f"sum by ({label}) ({_increase(series, run)})"
        return {each.labels.get(label, ""): max(0.0, each.value) for each in server.query(expression, at=run.end)}

    def total(series: str) -> float:
        return one(f"sum({_increase(series, run)})") or 0.0

    return RunTotals(
        phases=by("phase", "stallscope_training_phase_seconds_total"),
        gpu_phases=by("phase", "stallscope_training_phase_gpu_seconds_total"),
        steps=total("stallscope_training_step_seconds_count"),
        step_seconds=total("stallscope_training_step_seconds_sum"),
        cumulative={
            edge: number for edge, number in by("le", "stallscope_training_step_seconds_bucket").items() if edge
        },
        ranks=float(len(run.ranks)),
        samples=total("stallscope_training_samples_total"),
        tokens=total("stallscope_training_tokens_total"),
        first_step=first_step,
        last_step=last_step,
    )


def _has_moved(run: Run) -> bool:
    """Return whether a rank has run in several places, so that some counters are those of an earlier process."""
    return len(run.places) > len(run.ranks)


def _increase(series: str, run: Run) -> str:
    """Return PromQL for the exact increase of counters that were not reset, by all their labels.

    Counters of a process that began with the run count from zero: its first scrape finds some of its work done.
    """
    now = f"{series}{{{run.matchers}}}"
    began = f"stallscope_training_start_timestamp_seconds{{{run.matchers}}} @ {run.start:.3f}"
    older = f"{began} < {run.start - FIRST_SCRAPE_SECONDS:.3f}"
    return f"({now} - ({now} @ {run.start:.3f} and on ({_RANK}) ({older})) or {now})"
