"""The phase model: what each rank of a run does at any moment, and what its GPUs do meanwhile.

Steps are drawn one by one and shared by all ranks, because the slowest decides; steps far shorter than a driver's
sample are drawn several at once, with the spread that their sum has. Everything else follows from the phases by
integration, so that what is measured in two ways agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tests.scenarios.story import Pause, Run, Work, at

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

COLUMNS = (
    "data_wait",
    "host_copy",
    "forward",
    "slow",
    "backward",
    "sync",
    "communication",
    "optimizer",
    "logging",
    "checkpoint",
    "rollout",
    "other",
    "evaluation",
    "initialization",
    "restore",
)
"""Parts of a rank's time, in the order of a step. `slow` is the excess of an outlier (reported as forward), `sync`
the wait for slower ranks (reported as communication where a hook measures it, else as backward)."""
COLUMN = {name: index for index, name in enumerate(COLUMNS)}
DRAWN = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging", "other")
COMPUTING = ("forward", "backward", "optimizer")
EFFECTS = ("busy", "memory", "sm", "occupancy", "dram", "tensor", "fp32", "power", "nvlink")
"""Parts of a GPU's time meanwhile: shares, and bytes a second in each direction over NVLink."""
SHORTEST = 0.1
"""Seconds that one row of the model covers at least."""


@dataclass(frozen=True)
class Segment:
    """A stretch under one state of each rank."""

    start: float
    end: float
    kind: str
    """`initialization`, `restore`, `training` or `hang`."""
    works: tuple[Work, ...]


def interpolated(times: Floats, moments: Sequence[float] | Floats, values: Floats) -> Floats:
    """Read an integral that is known at some moments."""
    found: Floats = np.asarray(np.interp(times, moments, values), dtype=np.float64)
    return found


class Course:
    """A run from its start to its end, or to the end of the story."""

    def __init__(self, run: Run, horizon: float, random: np.random.Generator, *, pace: float, spread: float) -> None:
        """Draw it.

        Args:
            run: what it does; minutes.
            horizon: seconds, where the story ends.
            random: draws every step.
            pace: factor on all phases.
            spread: factor on their relative spread.
        """
        self.run = run
        self.start = run.start * 60
        self.end = min(horizon, np.inf if run.end is None else run.end * 60)
        self.first_step = self.start + run.initialization * 60
        self.segments = self._segments()
        rows = [_Drawing(each, random, pace, spread).rows() for each in self.segments]
        self.durations = np.concatenate([each[0] for each in rows])
        """Row, rank, column: seconds."""
        self.steps = np.concatenate([each[1] for each in rows])
        """Steps by row."""
        self.lengthened = np.concatenate([each[2] for each in rows])
        """Length of each row's sequences against the mean."""
        self.segment_of_row = np.repeat(np.arange(len(rows)), [len(each[1]) for each in rows])
        self.lengths = self.durations[:, 0, :].sum(axis=1)
        self.ends = self.start + np.cumsum(self.lengths)
        self.bounds = np.concatenate([[self.start], self.ends])
        self._effects: dict[int, Floats] = {}
        self._cumulated = np.concatenate(
            [np.zeros((1, *self.durations.shape[1:])), np.cumsum(self.durations, axis=0)], axis=0
        )

    def _segments(self) -> list[Segment]:
        run = self.run
        ranks = len(run.ranks)
        changes = {self.first_step, *(each.minute * 60 for each in run.work)}
        for minute in run.restarts:
            changes |= {minute * 60, minute * 60 + run.restart_seconds}
        inner = sorted(each for each in changes if self.start < each < self.end)
        bounds = [self.start, *inner, self.end]
        found = []
        for start, end in pairwise(bounds):
            works = tuple(at(run.work, rank, start / 60 + 1e-9) for rank in range(ranks))
            restoring = any(minute * 60 <= start < minute * 60 + run.restart_seconds for minute in run.restarts)
            if start < self.first_step:
                kind = "initialization"
            elif restoring:
                kind = "restore"
            else:
                kind = "hang" if any(work.hangs for work in works) else "training"
            found.append(Segment(start, end, kind, works))
        return found

    def phases(self, rank: int, times: Floats) -> Floats:
        """Seconds spent by then, by time and column; open phases are counted as far as they have got."""
        cumulated = self._cumulated[:, rank, :]
        return np.stack([np.interp(times, self.bounds, cumulated[:, column]) for column in range(len(COLUMNS))], axis=1)

    def done(self, by_row: Floats, times: Floats) -> Floats:
        """Sum what belongs to the rows that have ended by then."""
        total = np.concatenate([[0.0], np.cumsum(by_row)])
        found: Floats = total[np.searchsorted(self.ends, times, side="right")]
        return found

    def per_row(self, rank: int, name: str) -> Floats:
        """A number of the rank's work, by row."""
        values = np.array([float(getattr(each.works[rank], name) or 0.0) for each in self.segments])
        found: Floats = values[self.segment_of_row]
        return found

    def elapsed(self, rank: int, name: str, times: Floats, kinds: tuple[str, ...] = ("training",)) -> Floats:
        """Integrate a number of the rank's work over the time in segments of some kinds."""
        values = [float(getattr(each.works[rank], name) or 0.0) * (each.kind in kinds) for each in self.segments]
        bounds = [self.start, *(each.end for each in self.segments)]
        sums = np.concatenate(
            [
                [0.0],
                np.cumsum([value * (each.end - each.start) for value, each in zip(values, self.segments, strict=True)]),
            ]
        )
        return interpolated(times, bounds, sums)

    def column_at(self, rank: int, time: float) -> str:
        """Return the rank's activity at a moment; empty outside its life."""
        row = int(np.searchsorted(self.ends, time, side="right"))
        if time < self.start or row >= len(self.ends):
            return ""
        reached = np.cumsum(self.durations[row, rank]) + self.bounds[row]
        return COLUMNS[min(int(np.searchsorted(reached, time, side="right")), len(COLUMNS) - 1)]

    def effect(self, rank: int, name: str, times: Floats) -> Floats:
        """Integrate the rank's use of its GPUs, of one kind."""
        if rank not in self._effects:
            by_row = np.empty((len(self.lengths), len(EFFECTS)))
            for number, segment in enumerate(self.segments):
                rows = self.segment_of_row == number
                by_row[rows] = self.durations[rows, rank, :] @ effects(segment, rank)
            self._effects[rank] = np.concatenate([np.zeros((1, len(EFFECTS))), np.cumsum(by_row, axis=0)])
        return np.interp(times, self.bounds, self._effects[rank][:, EFFECTS.index(name)])

    def busy(self, rank: int, times: Floats, *, share: float = 1.0) -> Floats:
        """Integrate the time with kernels resident, exact within each step."""
        matrix = np.stack([effects(each, rank)[:, 0] for each in self.segments])[self.segment_of_row]
        durations = self.durations[:, rank, :]
        several = self.steps > 1
        mean = (durations * matrix).sum(axis=1) / np.maximum(self.lengths, 1e-12)
        matrix = np.where(several[:, None], mean[:, None], matrix)
        moments = np.concatenate([[self.start], self.start + np.cumsum(durations.ravel())])
        sums = np.concatenate([[0.0], np.cumsum((durations * matrix).ravel())]) * share
        return np.interp(times, moments, sums)


def effects(segment: Segment, rank: int) -> Floats:
    """Use of its GPU by each column of a rank: column by effect, bytes or shares for each second."""
    work = segment.works[rank]
    kernels = work.kernels
    table = np.zeros((len(COLUMNS), len(EFFECTS)))
    computing = np.array(
        [getattr(kernels, name) if name != "nvlink" else 0.0 for name in EFFECTS],
    )
    for phase in ("forward", "backward"):
        table[COLUMN[phase]] = computing
    scale = kernels.sm / 0.92
    table[COLUMN["optimizer"]] = (
        kernels.busy,
        0.9 * kernels.memory / 0.5,
        0.86 * scale,
        0.7 * scale,
        0,
        0,
        0.2,
        0.7,
        0,
    )
    table[COLUMN["optimizer"], 1] = min(1.0, table[COLUMN["optimizer"], 1])
    table[COLUMN["optimizer"], 4] = min(0.82, 1.5 * kernels.dram)
    table[COLUMN["optimizer"], 7] = 0.75 * kernels.power
    table[COLUMN["host_copy"], 1] = 0.1
    table[COLUMN["communication"]] = (1, 0.15, 0.18, 0.06, 0.12, 0, 0.02, 0.3, 60e9)
    table[COLUMN["sync"]] = (1, 0.02, 0.15, 0.05, 0.01, 0, 0.01, 0.28, 0)
    table[COLUMN["data_wait"]] = computing * work.busy_while_waiting
    evaluation = max((each.busy for each in work.pauses if each.phase == "evaluation"), default=0.0)
    table[COLUMN["evaluation"]] = computing * evaluation
    return table


class _Drawing:
    """Draws the rows of one segment."""

    def __init__(self, segment: Segment, random: np.random.Generator, pace: float, spread: float) -> None:
        self._segment = segment
        self._random = random
        self._pace = pace
        self._spread = spread

    def rows(self) -> tuple[Floats, Integers, Floats]:
        segment = self._segment
        length = segment.end - segment.start
        if segment.kind == "training":
            return self._training(length)
        durations = np.zeros((1, len(segment.works), len(COLUMNS)))
        for rank, work in enumerate(segment.works):
            column = segment.kind if segment.kind != "hang" else ("sync" if work.hangs == "spin" else "data_wait")
            durations[0, rank, COLUMN[column]] = length
        return durations, np.zeros(1, dtype=np.int64), np.ones(1)

    def _training(self, length: float) -> tuple[Floats, Integers, Floats]:
        works = self._segment.works
        lead = works[0]
        means = np.array([[getattr(work, phase) for phase in DRAWN] for work in works]) * self._pace
        typical = float(means.sum(axis=1).max())
        several = max(1, int(np.ceil(SHORTEST / typical)))
        count = int(length / (typical * several) * 1.1) + 20
        spread = np.array([work.spread for work in works]) * self._spread / np.sqrt(several)
        # Most of a step's variation comes from its data, which all ranks share in a like way.
        common = self._random.standard_normal((count, 1, len(DRAWN)))
        own = self._random.standard_normal((count, len(works), len(DRAWN)))
        factors = np.maximum(0.1, 1 + spread[None, :, None] * (0.9 * common + 0.4 * own))
        drawn = means[None] * factors * several
        durations = np.zeros((count, len(works), len(COLUMNS)))
        durations[:, :, [COLUMN[phase] for phase in DRAWN]] = drawn
        if any(work.drift_per_hour for work in works):
            passed = np.cumsum(drawn.sum(axis=2).max(axis=1))
            growth = 1 + np.array([work.drift_per_hour for work in works])[None] * passed[:, None] / 3600
            for phase in COMPUTING:
                durations[:, :, COLUMN[phase]] *= growth
        lengthened = np.ones(count)
        if lead.buckets:
            shares, lengths = np.array(lead.buckets).T
            lengthened = self._random.choice(lengths, count, p=shares)
            for phase in COMPUTING:
                durations[:, :, COLUMN[phase]] *= lengthened[:, None]
        if any(work.unevenness for work in works):
            deviation = np.sqrt(np.log1p(np.array([work.unevenness for work in works]) ** 2 / several))
            uneven = self._random.lognormal(-(deviation**2) / 2, deviation, (count, len(works)))
            for phase in COMPUTING:
                durations[:, :, COLUMN[phase]] *= uneven
        if lead.late_batches:
            durations[:, :, COLUMN["data_wait"]] += self._late(lead, count, len(works))
        if lead.outliers:
            slow = (self._random.random(count) < lead.outliers * several).astype(np.float64)
            durations[:, :, COLUMN["slow"]] = (slow * (lead.outlier_factor - 1) * typical)[:, None]
        durations = self._synchronized(durations)
        steps = np.full(count, several, dtype=np.int64)
        for pause in lead.pauses:
            durations, steps, lengthened = self._with_pause(pause, durations, steps, lengthened)
        durations, steps = self._cut(durations, steps, length)
        return durations, steps, lengthened[: len(steps)]

    def _late(self, work: Work, count: int, ranks: int) -> Floats:
        """Return by how much each rank's batch is late, by row."""
        if work.late_batches < 1:
            is_late = self._random.random((count, ranks)) < work.late_batches
        else:
            is_late = self._random.integers(ranks, size=count)[:, None] == np.arange(ranks)
        delays = np.full((count, ranks), work.late_seconds)
        if work.late_tail:
            delays *= 1 + self._random.pareto(work.late_tail, (count, ranks))
        delays[~is_late] = 0.0
        return delays

    @staticmethod
    def _synchronized(durations: Floats) -> Floats:
        """Let every rank wait for the slowest."""
        totals = durations.sum(axis=2)
        durations[:, :, COLUMN["sync"]] = totals.max(axis=1)[:, None] - totals
        return durations

    def _with_pause(
        self, pause: Pause, durations: Floats, steps: Integers, lengthened: Floats
    ) -> tuple[Floats, Integers, Floats]:
        """Put the pause where it is due: as a row of its own, with the step that contains it if one does."""
        passed = np.cumsum(steps.astype(np.float64)) if pause.every_steps else np.cumsum(durations[:, 0].sum(axis=1))
        period = pause.every_steps or pause.every_seconds
        number = int(passed[-1] / period) + 2
        jitter = 0.0 if pause.every_steps else pause.spread
        # Moments differ each from the one before, so that the spread is that of the time between two.
        due = np.cumsum(period * np.maximum(0.05, 1 + jitter * self._random.standard_normal(number)))
        due += period * (self._random.random() - 0.5) if not pause.every_steps else 0.0
        rows = np.unique(np.searchsorted(passed, due[(due > 0) & (due < passed[-1])] - 1e-9))
        rows = rows[rows < len(steps)]
        extra = np.zeros((len(rows), *durations.shape[1:]))
        took = pause.seconds * np.maximum(0.3, 1 + 0.05 * self._random.standard_normal(len(rows)))
        extra[:, :, COLUMN[pause.phase]] = took[:, None]
        extra_steps = np.zeros(len(rows), dtype=np.int64)
        if pause.phase != "evaluation":
            # The step around it moves from the row before to this one.
            one = durations[rows] / np.maximum(steps[rows], 1)[:, None, None]
            single = steps[rows] <= 1
            extra += one
            extra_steps += 1
            durations[rows] -= one
            steps = steps.copy()
            steps[rows] -= 1
            durations[rows[single]] = 0.0
        return (
            np.insert(durations, rows + 1, extra, axis=0),
            np.insert(steps, rows + 1, extra_steps),
            np.insert(lengthened, rows + 1, lengthened[rows]),
        )

    @staticmethod
    def _cut(durations: Floats, steps: Integers, length: float) -> tuple[Floats, Integers]:
        """End exactly with the segment: the last row is as much of a step as fits, and none is done in it."""
        ends = np.cumsum(durations[:, 0].sum(axis=1))
        last = int(np.searchsorted(ends, length))
        durations, steps = durations[: last + 1].copy(), steps[: last + 1].copy()
        before = float(ends[last - 1]) if last else 0.0
        took = float(durations[last, 0].sum())
        if took > 0:
            durations[last] *= (length - before) / took
        steps[last] = 0
        return durations, steps
