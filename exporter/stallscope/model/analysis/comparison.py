"""Compare runs with one of them: speed, scaling, and the causes of the difference.

comparison = compare([one, two, four], base=one)
comparison.against[0].scaling.efficiency, comparison.batch_sizes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import NamedTuple

from stallscope.model.analysis.batch_size import BatchSizeStudy, Measured, StudyError, study_batch_sizes
from stallscope.model.analysis.run_figures import WINDOW_SECONDS, RunFigures, Work
from stallscope.model.analysis.scaling import Scaling, scaling

UNEXPLAINED = "unexplained"
"""Pseudo-cause for the part of a difference that no recorded cause explains."""

_FEW_SECONDS = 3 * WINDOW_SECONDS
"""Training time below which a note doubts the means: they are of fewer than three windows."""
_TOLERANCE = 0.02
"""Relative difference up to which values count as equal: means of a few minutes scatter by as much."""


class Part(NamedTuple):
    """The contribution of one cause to the difference between two runs."""

    cause: str
    base: float | None
    """Share of the base's GPU time that it costs."""
    run: float | None
    """Share of the run's GPU time that it costs."""
    explains: float | None
    """Additional GPU time per sample, relative to the base's GPU time per sample; negative if it saves time."""


@dataclass(frozen=True)
class Against:
    """One run compared with the base."""

    run: RunFigures
    scaling: Scaling | None
    """None if the work or the GPUs of one of the two are unknown."""
    gpu_time: float | None
    """Additional GPU time per sample, relative to the base; the sum of the parts."""
    uncertainty: float | None
    """Uncertainty of `gpu_time` at about 95 % confidence, by the scatter of both step times; None if unknown."""
    parts: tuple[Part, ...]
    """Causes by contribution, and last the unexplained part. Empty if one of the two runs has no verdicts."""


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison."""

    base: RunFigures
    runs: tuple[RunFigures, ...]
    """All runs, including the base."""
    work: Work
    """The unit of work that is compared."""
    against: tuple[Against, ...]
    """All runs except the base."""
    studied: tuple[RunFigures, ...]
    """Runs on equally many GPUs, whose batch sizes are studied."""
    batch_sizes: BatchSizeStudy | None
    no_batch_sizes: str
    """Reason why there is no study of batch sizes; empty if there is one."""
    notes: tuple[str, ...]
    """Limitations of the comparison."""


def compare(runs: Sequence[RunFigures], base: RunFigures | None = None) -> Comparison:
    """Compare runs.

    Args:
        runs: two or more.
        base: the run to compare with; by default the first with the fewest GPUs.
    """
    base = base or min(runs, key=lambda run: run.units or float("inf"))
    work = _work(runs)
    studied = _of_one_size(runs, base)
    study, reason = None, ""
    try:
        study = study_batch_sizes(
            [
                Measured(run.batch_on_unit, run.step_seconds, run.memory_peak)
                for run in studied
                if run.batch_on_unit and run.step_seconds
            ]
        )
    except StudyError as problem:
        reason = str(problem)
    against = tuple(_against(run, base, work) for run in runs if run is not base)
    return Comparison(base, tuple(runs), work, against, studied, study, reason, tuple(_notes(runs, work)))


def _work(runs: Sequence[RunFigures]) -> Work:
    """Return the unit of work that all runs report: tokens if samples differ in length."""
    reported: list[Work] = [work for work in ("samples", "tokens") if all(run.rate(work) for run in runs)]
    if len(reported) == 2 and not _are_similar([_ratio(run.tokens, run.samples) for run in runs]):
        return "tokens"
    return reported[0] if reported else "steps"


def _of_one_size(runs: Sequence[RunFigures], base: RunFigures) -> tuple[RunFigures, ...]:
    """Return the runs on equally many GPUs with the most batch sizes; prefer the GPU count of the base."""
    known = [run for run in runs if run.batch_on_unit and run.step_seconds]
    sizes = {run.units: {other.batch_on_unit for other in known if other.units == run.units} for run in known}
    chosen = max(sizes, key=lambda units: (len(sizes[units]), units == base.units), default=None)
    return tuple(run for run in known if run.units == chosen)


def _against(run: RunFigures, base: RunFigures, work: Work) -> Against:
    rate, base_rate = run.rate(work), base.rate(work)
    if not (rate and base_rate and run.units and base.units):
        return Against(run, None, None, None, _parts(run, base, None))
    found = scaling(gpus=run.units, rate=rate, base_gpus=base.units, base_rate=base_rate)
    time = 1 / found.efficiency
    return Against(run, found, time - 1, _uncertainty(run, base, time), _parts(run, base, time))


def _uncertainty(run: RunFigures, base: RunFigures, relative_time: float) -> float | None:
    errors = [each.step_uncertainty for each in (run, base)]
    known = [error for error in errors if error is not None]
    return 2 * relative_time * hypot(*known) if len(known) == len(errors) else None


def _parts(run: RunFigures, base: RunFigures, relative_time: float | None) -> tuple[Part, ...]:
    """Return the contributions of causes; the run's GPU time per sample is `relative_time` times the base's."""
    if run.time_lost is None or base.time_lost is None:
        return ()
    ours, theirs = _shared(run.lost), _shared(base.lost)
    parts = []
    for cause in {**ours, **theirs}:
        of_run, of_base = ours.get(cause, 0.0), theirs.get(cause, 0.0)
        explains = None if relative_time is None else of_run * relative_time - of_base
        parts.append(Part(cause, of_base, of_run, explains))
    parts.sort(key=lambda part: -abs(part.explains if part.explains is not None else (part.run or 0.0)))
    if relative_time is not None:
        unexplained = relative_time - 1 - sum(part.explains or 0.0 for part in parts)
        parts.append(Part(UNEXPLAINED, None, None, unexplained))
    return tuple(parts)


def _shared(lost: Mapping[str, float]) -> dict[str, float]:
    """Scale shares that add up to more than the whole time."""
    claimed = max(1.0, sum(lost.values()))
    return {cause: share / claimed for cause, share in lost.items()}


def _notes(runs: Sequence[RunFigures], work: Work) -> Iterator[str]:
    for run in runs:
        if run.seconds < _FEW_SECONDS:
            minutes = f"{run.seconds / 60:.0f} min"
            yield f"{run.name}: only {minutes} of training are averaged; its values and their scatter may be inaccurate"
        if run.running:
            yield f"{run.name} is still running: its values are those so far"
        if run.gpus is None and run.ranks is not None:
            yield f"{run.name} claims no GPU: its ranks count in place of GPUs"
        if run.time_lost is None:
            yield f"{run.name} has no verdicts, so nothing explains its difference"
    if work == "steps":
        yield "not all runs report samples or tokens: steps are compared, which is valid for equal batches only"
    if work == "tokens" and all(run.samples for run in runs):
        yield "samples have different numbers of tokens: tokens are compared"
    if not _are_similar([run.operations for run in runs]):
        yield "samples take different numbers of operations: the models or inputs differ"
    batches = [run.batch_on_unit for run in runs]
    if not _are_similar(batches) and not _are_similar([run.units for run in runs]):
        yield "both the number of GPUs and the batch per GPU differ, so their effects can't be separated"


def _are_similar(values: Sequence[float | None]) -> bool:
    """Return whether the known values are equal within the tolerance."""
    known = [value for value in values if value]
    return not known or max(known) <= min(known) * (1 + _TOLERANCE)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None
