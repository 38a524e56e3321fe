"""The effect of the batch size: the fixed time of a step, the time of each sample, and the gain of a larger batch.

    study = study_batch_sizes([Measured(4, 0.016), Measured(512, 0.1463)])
    study.samples_per_second(1024), study.fixed_share(4), study.most_samples_per_second

All values are for one GPU, from runs that differ in nothing but the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stallscope.model.analysis.line import Line, line_through

_MIN_BATCH_RATIO = 1.2
"""Smallest ratio of the largest to the smallest batch; below it, scatter would pass for the time of a sample."""
_MIN_MEMORY_GROWTH = 0.01
"""Smallest growth of memory, as a share of the GPU's, that is more than scatter."""


class StudyError(Exception):
    """The runs are unsuitable; the message says why and what to measure."""


class Measured(NamedTuple):
    """The measurements of one run."""

    batch: float
    """Samples per step on each GPU."""
    step_seconds: float
    memory: float | None = None
    """Peak GPU memory of tensors as a share of the GPU's; None if the framework does not report it."""


class BatchSizeStudy(NamedTuple):
    """Step time as a fixed part and a part per sample, in seconds and samples on one GPU."""

    step: Line
    largest: float
    """Largest measured batch size; results beyond it are predictions."""
    memory: Line | None
    """Share of the GPU's memory by batch size; None if unknown or not growing with the batch."""

    @property
    def most_samples_per_second(self) -> float:
        """Upper limit for any batch size."""
        return 1 / self.step.slope

    @property
    def next_batch(self) -> float:
        """The batch size to try next: twice the largest, or the largest that fits in memory."""
        limit = self.largest_that_fits
        return 2 * self.largest if limit is None else min(2 * self.largest, limit)

    @property
    def largest_that_fits(self) -> float | None:
        """Largest batch size that fits in memory, at least the largest measured; None if memory is unknown."""
        if self.memory is None:
            return None
        return max(self.largest, float(int((1 - self.memory.fixed) / self.memory.slope)))

    def samples_per_second(self, batch: float) -> float:
        """Return the predicted throughput of one GPU."""
        return batch / self.step.at(batch)

    def fixed_share(self, batch: float) -> float:
        """Return the fixed time as a share of the step time."""
        return self.step.fixed / self.step.at(batch)


def study_batch_sizes(runs: Sequence[Measured]) -> BatchSizeStudy:
    """Fit the study to runs with different batch sizes.

    Raises:
        StudyError: the batch sizes are too similar, or the step time does not grow linearly.
    """
    if len(runs) < 2:
        raise StudyError("expected two runs on equally many GPUs that report their batch size")
    step = line_through([(run.batch, run.step_seconds) for run in runs])
    largest = max(run.batch for run in runs)
    if step is None or largest < _MIN_BATCH_RATIO * min(run.batch for run in runs):
        raise StudyError("the batch sizes per GPU are too similar; measure a batch several times as large")
    if step.slope <= 0:
        raise StudyError("larger batches take no longer per step; something other than the batch limits the step time")
    if step.fixed < 0:
        raise StudyError("step times grow faster than the batch; a larger batch brings no gain")
    points = [(run.batch, run.memory) for run in runs if run.memory]
    memory = line_through(points)
    grows = memory is not None and memory.at(max(points)[0]) - memory.at(min(points)[0]) > _MIN_MEMORY_GROWTH
    return BatchSizeStudy(step, largest, memory if grows else None)
