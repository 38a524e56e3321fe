"""The study of batch sizes: what a step costs however small its batch, what a sample adds, what a larger batch gives.

    study = study_batch_sizes([Measured(4, 0.016), Measured(512, 0.1463)])
    study.samples_per_second(1024), study.fixed_share(4), study.most_samples_per_second

Everything is of one GPU, of runs that differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stallscope.analysis.line import Line, line_through

_APART = 1.2
"""How many times the smallest batch the largest must be, lest the scatter of timings pass for what samples take."""
_MEMORY_APART = 0.01
"""Share of the GPU's memory that the largest batch must take more than the smallest, for the like reason."""


class NoStudy(Exception):
    """The runs don't lend themselves to it; the message says why, and what to measure instead."""


class Measured(NamedTuple):
    """What one run tells."""

    batch: float
    """Samples of a step on each GPU."""
    step_seconds: float
    memory: float | None = None
    """Highest use of the GPU's memory by tensors, as a share of it; None where the framework doesn't tell."""


class BatchSizeStudy(NamedTuple):
    """Step time as a fixed part and a part for each sample. Seconds, and samples on one GPU."""

    step: Line
    largest: float
    """Batch size beyond which all is prediction."""
    memory: Line | None
    """Share of the GPU's memory by batch size; None where it isn't known, or doesn't grow with the batch."""

    @property
    def most_samples_per_second(self) -> float:
        """What no batch size exceeds."""
        return 1 / self.step.slope

    @property
    def next_batch(self) -> float:
        """The batch size to try next: twice the largest, or as much as memory lets in."""
        limit = self.largest_that_fits
        return 2 * self.largest if limit is None else min(2 * self.largest, limit)

    @property
    def largest_that_fits(self) -> float | None:
        """Batch size that takes all memory, the largest that was run at least; None where memory isn't known."""
        if self.memory is None:
            return None
        return max(self.largest, float(int((1 - self.memory.fixed) / self.memory.slope)))

    def samples_per_second(self, batch: float) -> float:
        """Of one GPU."""
        return batch / self.step.at(batch)

    def fixed_share(self, batch: float) -> float:
        """Share of the step that would be there without any sample."""
        return self.step.fixed / self.step.at(batch)


def study_batch_sizes(runs: Sequence[Measured]) -> BatchSizeStudy:
    """Fit the study to runs of different batch sizes.

    Raises:
        NoStudy: the batch sizes are all alike, or the step time doesn't behave so.
    """
    if len(runs) < 2:
        raise NoStudy("it takes two runs on as many GPUs that tell their batch size")
    step = line_through([(run.batch, run.step_seconds) for run in runs])
    largest = max(run.batch for run in runs)
    if step is None or largest < _APART * min(run.batch for run in runs):
        raise NoStudy("the batch on each GPU is too much alike in all runs: measure another, several times as large")
    if step.slope <= 0:
        raise NoStudy("larger batches take no longer a step: something else than the batch sets the pace")
    if step.fixed < 0:
        raise NoStudy("step times grow faster than the batch: a larger one doesn't pay, whatever is fixed")
    told = [(run.batch, run.memory) for run in runs if run.memory]
    memory = line_through(told)
    grows = memory is not None and memory.at(max(told)[0]) - memory.at(min(told)[0]) > _MEMORY_APART
    return BatchSizeStudy(step, largest, memory if grows else None)
