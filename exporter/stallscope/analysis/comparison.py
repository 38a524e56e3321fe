"""Runs against one of them: how much faster, how well they scale, and which causes make the difference.

comparison = compare([one, two, four], base=one)
comparison.against[0].scaling.efficiency, comparison.batch_sizes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.analysis.batch_size import BatchSizeStudy, Measured, NoStudy, study_batch_sizes
from stallscope.analysis.run_figures import SHORT_SECONDS, RunFigures, Work
from stallscope.analysis.scaling import Scaling, scaling

UNEXPLAINED = "unexplained"
"""Stands for a cause: the part of a difference for which no cause has been recorded."""

_ALIKE = 0.02
"""Figures that differ by no more than this share are the same: means of a few minutes scatter so."""


class Part(NamedTuple):
    """What one cause has to do with the difference of two runs."""

    cause: str
    base: float | None
    """Share of the base's GPU time that it cost."""
    run: float | None
    """Share of the run's."""
    explains: float | None
    """GPU time that it adds to a sample, as a share of what a sample takes in the base; negative where it saves."""


@dataclass(frozen=True)
class Against:
    """One run against the base."""

    run: RunFigures
    scaling: Scaling | None
    """None where one of the two doesn't tell its work or its GPUs."""
    gpu_time: float | None
    """GPU time that a sample takes more than in the base, as a share of that; what the parts add up to."""
    parts: tuple[Part, ...]
    """Causes by what they explain, and last what none does. Empty where one of the two was not judged."""


@dataclass(frozen=True)
class Comparison:
    """What there is to say of a few runs."""

    base: RunFigures
    runs: tuple[RunFigures, ...]
    """All, the base among them."""
    work: Work
    """What is counted."""
    against: tuple[Against, ...]
    """All but the base."""
    studied: tuple[RunFigures, ...]
    """Whose batch sizes are studied: runs on as many GPUs."""
    batch_sizes: BatchSizeStudy | None
    no_batch_sizes: str
    """Why there is no study of them; empty where there is one."""
    notes: tuple[str, ...]
    """What makes the comparison less than it seems."""


def compare(runs: Sequence[RunFigures], base: RunFigures | None = None) -> Comparison:
    """Compare runs.

    Args:
        runs: two or more.
        base: the one among them that the others are measured by; the first with the fewest GPUs if left out.
    """
    base = base or min(runs, key=lambda run: run.gpus or float("inf"))
    work = _work(runs)
    studied = _of_one_size(runs, base)
    study, reason = None, ""
    try:
        study = study_batch_sizes(
            [
                Measured(run.batch_on_gpu, run.step_seconds, run.memory_peak)
                for run in studied
                if run.batch_on_gpu and run.step_seconds
            ]
        )
    except NoStudy as problem:
        reason = str(problem)
    against = tuple(_against(run, base, work) for run in runs if run is not base)
    return Comparison(base, tuple(runs), work, against, studied, study, reason, tuple(_notes(runs, work)))


def _work(runs: Sequence[RunFigures]) -> Work:
    """What all tell; tokens where a sample is not as long in all of them."""
    told: list[Work] = [work for work in ("samples", "tokens") if all(run.rate(work) for run in runs)]
    if len(told) == 2 and not _alike([_ratio(run.tokens, run.samples) for run in runs]):
        return "tokens"
    return told[0] if told else "steps"


def _of_one_size(runs: Sequence[RunFigures], base: RunFigures) -> tuple[RunFigures, ...]:
    """Runs on as many GPUs as each other, of the most batch sizes; those on as many as the base where that is even."""
    told = [run for run in runs if run.batch_on_gpu and run.step_seconds]
    sizes = {run.gpus: {other.batch_on_gpu for other in told if other.gpus == run.gpus} for run in told}
    chosen = max(sizes, key=lambda gpus: (len(sizes[gpus]), gpus == base.gpus), default=None)
    return tuple(run for run in told if run.gpus == chosen)


def _against(run: RunFigures, base: RunFigures, work: Work) -> Against:
    rate, base_rate = run.rate(work), base.rate(work)
    if not (rate and base_rate and run.gpus and base.gpus):
        return Against(run, None, None, _parts(run, base, None))
    found = scaling(gpus=run.gpus, rate=rate, base_gpus=base.gpus, base_rate=base_rate)
    return Against(run, found, 1 / found.efficiency - 1, _parts(run, base, 1 / found.efficiency))


def _parts(run: RunFigures, base: RunFigures, took: float | None) -> tuple[Part, ...]:
    """What causes explain of GPU time for each sample, which takes `took` times the base's."""
    if run.time_lost is None or base.time_lost is None:
        return ()
    ours, theirs = _shared(run.lost), _shared(base.lost)
    parts = []
    for cause in {**ours, **theirs}:
        of_run, of_base = ours.get(cause, 0.0), theirs.get(cause, 0.0)
        parts.append(Part(cause, of_base, of_run, None if took is None else of_run * took - of_base))
    parts.sort(key=lambda part: -abs(part.explains if part.explains is not None else (part.run or 0.0)))
    if took is not None:
        rest = took - 1 - sum(part.explains or 0.0 for part in parts)
        parts.append(Part(UNEXPLAINED, None, None, rest))
    return tuple(parts)


def _shared(lost: Mapping[str, float]) -> dict[str, float]:
    """What several causes claim together beyond all time, they share."""
    claimed = max(1.0, sum(lost.values()))
    return {cause: share / claimed for cause, share in lost.items()}


def _notes(runs: Sequence[RunFigures], work: Work) -> Iterator[str]:
    for run in runs:
        if run.seconds < SHORT_SECONDS:
            yield f"{run.name}: only {run.seconds / 60:.1f} min of training are recorded; its figures may be off"
        if run.running:
            yield f"{run.name} still runs: its figures are those until now"
        if run.time_lost is None:
            yield f"{run.name} was not judged, so nothing explains its difference"
    if work == "steps":
        yield "not all runs tell samples or tokens: steps are compared, which says something for equal batches only"
    if work == "tokens" and all(run.samples for run in runs):
        yield "a sample has not as many tokens in all runs: tokens are compared"
    if not _alike([run.operations for run in runs]):
        yield "a sample takes not as many operations in all runs: other models, or other inputs"
    batches = [run.batch_on_gpu for run in runs]
    if not _alike(batches) and not _alike([run.gpus for run in runs]):
        yield "both GPUs and the batch on each differ: what is said of one is due to the other as well"


def _alike(figures: Sequence[float | None]) -> bool:
    """Whether those that are known are the same."""
    known = [figure for figure in figures if figure]
    return not known or max(known) <= min(known) * (1 + _ALIKE)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None
