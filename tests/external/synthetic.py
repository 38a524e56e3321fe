"""Recordings of trainings by formula, with a known cause: `python -m tests.external synthetic`.

The truth of a recording doesn't use the formulas of the rules. The same draws are played again without the cause: data
parallel ranks end a step together, and a pipeline runs its microbatches in the order of 1F1B.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tests.external.judge import judged, trials
from tests.external.recording import Published, Recording, Step
from tests.external.report import lines

Array = npt.NDArray[np.float64]
_STEPS = 24
_MINUTES = 20
_SOON = 120.0
"""Seconds after which the first right verdict is late, unless eight steps take longer."""
_SOON_STEPS = 8
_BACKWARD = (1.6, 2.2)
"""The backward pass in forward passes: another ratio in each recording."""
_OPTIMIZER = 0.01
_STRAGGLER = ("straggler_rank",)
_EITHER = ("stage_imbalance", "straggler_rank")
_FINE = ("healthy", "compute_bound", "insufficient_data")


@dataclass(frozen=True)
class Shape:
    """Size of a training."""

    ranks: int
    seconds: float
    """Of a step in which all ranks have the usual work."""
    stages: int = 1
    microbatches: int = 1
    communication: float = 0.04
    """Part of that step."""
    jitter: float = 0.02
    """Deviation of the work of a rank from step to step."""


def recordings() -> Iterator[tuple[str, Recording]]:
    """Yield recordings, each with the class of its cause."""
    yield from _slow_ranks()
    yield from _slow_in_pipelines()
    yield from _heavy_stages()
    yield from _others()
    yield from _uneven_loading()


def _slow_ranks() -> Iterator[tuple[str, Recording]]:
    for ranks, factor, seconds in (
        (4, 1.5, 0.5),
        (4, 2.0, 30.0),
        (8, 1.2, 0.1),
        (8, 1.3, 2.0),
        (8, 2.5, 24.0),
        (16, 1.2, 4.0),
        (16, 2.35, 20.0),
        (32, 1.25, 8.0),
        (64, 1.6, 12.0),
        (64, 3.0, 20.0),
    ):
        shape = Shape(ranks, seconds)
        yield "a slow rank", _slow(f"rank-{ranks}-{factor:g}-{seconds:g}s", shape, [ranks * 5 // 8], factor)
    expensive = Shape(16, 6.0, communication=0.3)
    yield "a slow rank", _slow("rank-16-1.8-communication", expensive, [5], 1.8)
    shape = Shape(16, 3.0)
    clocks = replace(_slow("rank-16-1.5-clocks", shape, [3], 1.5), clocks=(-2.5, 4.0))
    yield "a slow rank", clocks
    for ranks, slow, factor, seconds in (
        (8, (2, 5), 1.5, 1.0),
        (16, (3, 9), 1.6, 4.0),
        (32, (1, 8, 20), 2.0, 20.0),
        (64, (7, 30, 31, 50), 1.4, 10.0),
    ):
        # Without labels, equally slow ranks may be a stage.
        found = _slow(f"ranks-{ranks}-{factor:g}", Shape(ranks, seconds), slow, factor, causes=_EITHER)
        yield "several slow ranks", found
    for ranks, node, factor, seconds in ((16, 1, 1.5, 3.0), (32, 2, 1.4, 8.0), (64, 5, 1.8, 20.0)):
        places = range(8 * node, 8 * node + 8)
        yield "a slow node", _slow(f"node-{ranks}-{factor:g}", Shape(ranks, seconds), places, factor)


def _slow_in_pipelines() -> Iterator[tuple[str, Recording]]:
    for stages, replicas, microbatches, factor, seconds in (
        (4, 2, 8, 2.0, 2.0),
        (2, 4, 8, 1.5, 5.0),
        (4, 4, 48, 2.35, 22.0),
        (8, 2, 16, 1.8, 20.0),
        (4, 8, 32, 1.3, 10.0),
        (8, 8, 32, 1.6, 30.0),
    ):
        ranks = stages * replicas
        shape = Shape(ranks, seconds, stages, microbatches)
        name = f"pipeline-{stages}x{replicas}-{factor:g}"
        place = ranks * 5 // 8
        # In a known pipeline work can move; else the rank is compared with the others.
        yield "a slow rank in a pipeline", _slow(name, shape, [place], factor, equal=True)
        yield "a slow rank in a pipeline, no labels", _unlabelled(_slow(name, shape, [place], factor))


def _heavy_stages() -> Iterator[tuple[str, Recording]]:
    for stages, replicas, microbatches, heavy, factor, seconds in (
        (4, 1, 16, 3, 1.8, 0.5),
        (4, 2, 8, 3, 1.63, 2.0),
        (2, 8, 16, 0, 1.4, 10.0),
        (4, 8, 16, 1, 1.5, 40.0),
        (8, 4, 32, 7, 1.5, 30.0),
        (8, 8, 64, 7, 2.0, 12.0),
    ):
        ranks = stages * replicas
        shape = Shape(ranks, seconds, stages, microbatches)
        works = np.ones(ranks)
        works[heavy * replicas : (heavy + 1) * replicas] = factor
        equal = np.full(ranks, works.mean())
        found = _recording(
            f"stage-{stages}x{replicas}-{factor:g}",
            shape,
            works,
            equal,
            Published(
                f"stage {heavy} of {stages} has {factor:g} times the work",
                ("stage_imbalance",),
                ranks=tuple(range(heavy * replicas, (heavy + 1) * replicas)),
            ),
        )
        yield "a slow stage", found
        if replicas > 1:  # else it is a slow rank
            yield "a slow stage, no labels", _unlabelled(_answered(found, causes=_EITHER))


def _others() -> Iterator[tuple[str, Recording]]:
    for ranks, spread, seconds in ((4, 0.5, 20.0), (8, 0.3, 0.5), (16, 0.4, 4.0), (32, 0.35, 24.0), (64, 0.25, 10.0)):
        shape = Shape(ranks, seconds, jitter=spread)
        works = np.ones(ranks)
        answer = Published("the rank with the most work changes from step to step", ("uneven_work",))
        found = _recording(f"uneven-{ranks}-{spread:g}", shape, works, None, answer)
        yield "uneven by step", found
    for ranks, share, seconds in ((4, 0.5, 0.2), (8, 0.4, 1.0), (32, 0.3, 10.0), (64, 0.25, 30.0)):
        shape = Shape(ranks, seconds, communication=share, jitter=0.01)
        answer = Published("communication is slow", ("comm_bound",), lost=share)
        yield "communication", _recording(f"communication-{ranks}", shape, np.ones(ranks), None, answer)
    for stages, replicas, microbatches, seconds in ((2, 4, 4, 1.0), (4, 4, 8, 5.0), (4, 4, 4, 46.0), (8, 2, 8, 10.0)):
        shape = Shape(stages * replicas, seconds, stages, microbatches)
        answer = Published("a pipeline without imbalance", _FINE)
        equal = _recording(f"equal-{stages}x{replicas}", shape, np.ones(stages * replicas), None, answer)
        yield "an equal pipeline", equal
        # Without labels its bubble can't be distinguished from communication. It is no straggler.
        yield "an equal pipeline, no labels", _unlabelled(_answered(equal, causes=(*_FINE, "comm_bound")))
    for ranks, seconds in ((8, 0.2), (64, 15.0)):
        fine = Published("nothing", _FINE)
        yield "equal ranks", _recording(f"equal-{ranks}", Shape(ranks, seconds), np.ones(ranks), None, fine)


def _uneven_loading() -> Iterator[tuple[str, Recording]]:
    for ranks, seconds in ((8, 10.0), (16, 2.0), (64, 15.0)):
        # All loaders start again with the first step, and end at different times.
        yield "uneven loading at the start of an epoch", _loaded(f"epoch-{ranks}", Shape(ranks, seconds), 0.15, 1.0)
    for ranks, seconds in ((8, 1.0), (16, 4.0)):
        yield "a late batch of one rank by turns", _loaded(f"late-{ranks}", Shape(ranks, seconds), 0.02, 1 / ranks)


def _loaded(name: str, shape: Shape, share: float, part: float) -> Recording:
    """Return a recording in which ranks wait for data.

    Args:
        name: name of the recording.
        shape: size of the training.
        share: of the time, that a rank waits on average.
        part: of the ranks that wait in a step; with 1, all of them wait in the first step only.
    """
    seed = sum(map(ord, name))
    random = np.random.default_rng(seed)
    steps, lengths = _Draws(shape, seed).played(np.ones(shape.ranks))
    waits = random.lognormal(-0.08, 0.4, (_STEPS, shape.ranks)) * (random.random((_STEPS, shape.ranks)) < part)
    if part == 1:
        waits[1:] = 0
    waits *= share * lengths.sum() * shape.ranks / waits.sum()
    longest = waits.max(axis=1)
    late: list[Step] = [
        [
            {"data_wait": float(wait), **rank, "communication": rank["communication"] + float(most - wait)}
            for wait, rank in zip(row, step, strict=True)
        ]
        for row, step, most in zip(waits, steps, longest, strict=True)
    ]
    lost = float(longest.sum() / (lengths.sum() + longest.sum()))
    answer = Published("ranks wait for data, not equally long", ("input_bound",), lost=lost)
    return Recording(name=name, source="a formula", ranks=tuple(range(shape.ranks)), steps=late, published=answer)


def _answered(recording: Recording, **changes: tuple[str, ...]) -> Recording:
    assert recording.published is not None
    return replace(recording, published=replace(recording.published, **changes))  # type: ignore[arg-type]


def _unlabelled(recording: Recording) -> Recording:
    return replace(recording, stages=())


def _slow(
    name: str,
    shape: Shape,
    places: Sequence[int],
    factor: float,
    *,
    causes: tuple[str, ...] = _STRAGGLER,
    equal: bool = False,
) -> Recording:
    works = np.ones(shape.ranks)
    works[list(places)] = factor
    statement = f"ranks {', '.join(map(str, places))} take {factor:g} times as long"
    answer = Published(statement, causes, ranks=tuple(places))
    cured = np.full(shape.ranks, works.mean() if equal else 1.0)
    return _recording(name, shape, works, cured, answer)


def _recording(name: str, shape: Shape, works: Array, cured: Array | None, answer: Published) -> Recording:
    """Return a recording.

    Args:
        name: name of the recording.
        shape: size of the training.
        works: work of each rank over the usual work.
        cured: the same without the cause; None if the cause is the difference between ranks in each step.
        answer: the expected answer, to which the lost share is added, unless it is known.
    """
    draws = _Draws(shape, sum(map(ord, name)))
    steps, lengths = draws.played(works)
    lost = answer.lost
    if lost is None and cured is not None:
        lost = 1 - float(draws.played(cured)[1].sum() / lengths.sum())
    elif lost is None and answer.causes == ("uneven_work",):
        lost = float((lengths - draws.means(works)).sum() / lengths.sum())
    return Recording(
        name=name,
        source="a formula",
        ranks=tuple(range(shape.ranks)),
        steps=steps,
        stages=tuple(rank * shape.stages // shape.ranks for rank in range(shape.ranks)) if shape.stages > 1 else (),
        published=replace(answer, lost=lost),
    )


class _Draws:
    """Random work of each rank, step and microbatch, around 1."""

    def __init__(self, shape: Shape, seed: int) -> None:
        random = np.random.default_rng(seed)
        size = (_STEPS, shape.ranks, shape.microbatches)
        self._shape = shape
        self._forward = 1 / (1 + float(random.uniform(*_BACKWARD)))
        self._of_step = random.lognormal(-(shape.jitter**2) / 2, shape.jitter, size[:2])
        self._of_microbatch = random.lognormal(-0.0002, 0.02, size)
        bubble = (shape.stages - 1) / shape.microbatches
        self._usual = shape.seconds * (1 - shape.communication) / (1 + bubble)
        self._transfer = shape.seconds * shape.communication

    def means(self, works: Array) -> Array:
        """Length of each step if its work were spread over all ranks; without a pipeline."""
        computing = self._computing(works).sum(axis=2).mean(axis=1)
        return np.asarray(computing * (1 + _OPTIMIZER) + self._transfer)

    def played(self, works: Array) -> tuple[list[Step], Array]:
        """Return the steps, and the length of each."""
        computing = self._computing(works)
        lengths = []
        steps: list[Step] = []
        for ranks in computing:
            own = ranks.sum(axis=1)
            optimizer = _OPTIMIZER * float(self._usual)
            length = self._ended(ranks) + self._transfer + optimizer
            lengths.append(length)
            steps.append(
                [
                    {
                        "forward": float(self._forward * work),
                        "backward": float((1 - self._forward) * work),
                        "communication": float(length - work - optimizer),
                        "optimizer": optimizer,
                    }
                    for work in own
                ]
            )
        return steps, np.array(lengths)

    def _computing(self, works: Array) -> Array:
        """Seconds by step, rank and microbatch."""
        share = self._usual / self._shape.microbatches
        return np.asarray(self._of_step[:, :, None] * self._of_microbatch * works[None, :, None] * share)

    def _ended(self, ranks: Array) -> float:
        """Seconds until the last rank has computed all microbatches."""
        stages, replicas = self._shape.stages, self._shape.ranks // self._shape.stages
        if stages == 1:
            return float(ranks.sum(axis=1).max())
        return max(pipeline(ranks[replica::replicas], self._forward) for replica in range(replicas))


def pipeline(computing: Array, forward_part: float) -> float:
    """Return the length of a step of one pipeline in the order of 1F1B.

    Args:
        computing: seconds by stage and microbatch.
        forward_part: part of it that is the forward pass.
    """
    stages, count = computing.shape
    orders: list[list[tuple[bool, int]]] = []
    for stage in range(stages):
        early = min(stages - 1 - stage, count)
        order = [(True, number) for number in range(early)]
        for number in range(count - early):
            order += [(True, early + number), (False, number)]
        orders.append(order + [(False, number) for number in range(count - early, count)])
    ends: dict[tuple[int, bool, int], float] = {}
    free = [0.0] * stages
    left = sum(map(len, orders))
    places = [0] * stages
    while left:
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                forward, number = order[places[stage]]
                before = stage - 1 if forward else stage + 1
                ready = ends.get((before, forward, number)) if 0 <= before < stages else 0.0
                if ready is None:
                    break
                part = forward_part if forward else 1 - forward_part
                free[stage] = max(free[stage], ready) + part * float(computing[stage, number])
                ends[stage, forward, number] = free[stage]
                places[stage] += 1
                left -= 1
    return max(free)


def main(arguments: Sequence[str]) -> int:
    """Replay the recordings whose class or name a regular expression matches, and print n right of n for each class."""
    pattern = re.compile(arguments[0] if arguments else "")
    counts: dict[tuple[str, str], list[list[bool]]] = {}
    for kind, recording in recordings():
        if not pattern.search(f"{kind} {recording.name}"):
            continue
        for trial in trials([recording]):
            (finding,) = judged([trial], minutes=_MINUTES)
            print("\n".join(lines(finding)), flush=True)
            soon = finding.delay is not None and finding.delay <= max(_SOON, _SOON_STEPS * recording.step_seconds)
            values = (finding.is_right, finding.is_culprit_right, finding.is_share_right, soon)
            row = counts.setdefault((kind, "yes" if trial.measured else "no"), [[] for _ in values])
            for seen, value in zip(row, values, strict=True):
                if value is not None:
                    seen.append(value)
    print("\n| class | communication measured | cause | culprit | share | soon |\n|---|---|---|---|---|---|")
    for (kind, measured), row in counts.items():
        cells = (f"{sum(seen)} of {len(seen)}" if seen else "" for seen in row)
        print(f"| {kind} | {measured} | {' | '.join(cells)} |")
    return 0
