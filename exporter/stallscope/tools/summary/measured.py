"""Where the time of a run went, from the stored reports of its ranks on this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import NamedTuple

from stallscope.common.percentiles import buckets_of, relative_error
from stallscope.model.catalogue.metrics import NOT_OF_THE_LOOP
from stallscope.model.view.phase_shares import REMAINDER, WORK
from stallscope.training.protocol.report import Report, ReportError, StepSeconds, parse
from stallscope.training.shim.slow_steps import FEWEST
from stallscope.training.shim.stored_reports import NEWEST, WARMED_UP, is_alive
from stallscope.training.shim.timeline import STEP_BUCKETS

DATA_WAIT = "data_wait"
COMMUNICATION = "communication"
_NO_STEPS = StepSeconds((), 0.0, 0)
_STATES = ("failed", "lost", "terminated", "running", "starting", "finished")
"""States of a rank; a run has the first that one of its ranks has."""


@dataclass(frozen=True)
class RankTime:
    """The time of one rank, without its first steps, which are slow by nature."""

    report: Report
    """The newest report."""
    before: Report | None
    """The report from after the first steps; None if too few steps follow it."""

    @property
    def state(self) -> str:
        """State of the newest report; `lost` if the process is gone without a last report."""
        state = self.report.state
        if state in ("running", "starting") and not is_alive(self.report.pid):
            return "lost"
        return state

    @cached_property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, without initialization and pauses."""
        before = {} if self.before is None else self.before.phases
        times = {
            name: phase.seconds - (before[name].seconds if name in before else 0.0)
            for name, phase in self.report.phases.items()
            if name not in NOT_OF_THE_LOOP
        }
        return {name: max(0.0, seconds) for name, seconds in times.items()}

    @property
    def gpu_wait(self) -> float | None:
        """Seconds without work for the GPU during the wait for data; None if they are not measured."""
        return _gpu_wait(self.report, self.before)

    @property
    def seconds(self) -> float:
        """Seconds of all phases."""
        return sum(self.phases.values())

    @property
    def steps(self) -> int:
        """Number of steps with a known duration."""
        return _steps(self.report).count - (_steps(self.before).count if self.before else 0)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of these steps by length: one more than the edges."""
        now, before = (_steps(each).counts if each else () for each in (self.report, self.before))
        counts = now or (0,) * (len(STEP_BUCKETS) + 1)
        return tuple(number - (before[place] if before else 0) for place, number in enumerate(counts))

    @property
    def step_seconds(self) -> float:
        """Seconds of these steps."""
        return _steps(self.report).sum - (_steps(self.before).sum if self.before else 0.0)

    def increase(self, counter: str) -> float | None:
        """Return the increase of a counter over the measured time; None if it is not reported."""
        if counter not in self.report.counters:
            return None
        before = {} if self.before is None else self.before.counters
        return self.report.counters[counter] - before.get(counter, 0.0)


class LineOfCode(NamedTuple):
    """A line of the program in which a phase spends its time, as far as stacks were sampled."""

    location: str
    function: str
    share: float
    """Share of the sampled time of the phase."""


@dataclass(frozen=True)
class RunTime:
    """A run with its ranks on this node."""

    name: str
    ranks: tuple[RankTime, ...]
    """By number."""

    @property
    def first(self) -> Report:
        """The newest report of the first rank."""
        return self.ranks[0].report

    @property
    def state(self) -> str:
        """The worst state of its ranks."""
        states = {rank.state for rank in self.ranks}
        return next(state for state in _STATES if state in states)

    @property
    def failure(self) -> str:
        """Type of the exception that ended a rank; empty if there was none."""
        return next((rank.report.failure for rank in self.ranks if rank.report.failure), "")

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        reported = self.first.info.get("world_size", "")
        return max(len(self.ranks), int(reported) if reported.isdecimal() and len(reported) < 8 else 0)

    @property
    def seconds(self) -> float:
        """Wall time from the first start to the last report."""
        return max(each.report.sent for each in self.ranks) - min(each.report.start for each in self.ranks)

    @property
    def initialization(self) -> float:
        """Seconds before the first step, on the slowest rank."""
        found = (rank.report.phases.get("initialization") for rank in self.ranks)
        return max((phase.seconds for phase in found if phase is not None), default=0.0)

    @property
    def all_steps(self) -> int:
        """Steps of the rank with the most, the first ones included."""
        return max(round(rank.report.gauges.get("step", _steps(rank.report).count)) for rank in self.ranks)

    @property
    def steps(self) -> int:
        """Measured steps of the rank with the fewest."""
        return min(rank.steps for rank in self.ranks)

    @property
    def is_short(self) -> bool:
        """True if too few steps follow the first ones, so that the shares include these."""
        return any(rank.before is None for rank in self.ranks)

    @property
    def step(self) -> float | None:
        """Mean seconds of a step; None without steps."""
        steps = sum(rank.steps for rank in self.ranks)
        return sum(rank.step_seconds for rank in self.ranks) / steps if steps > 0 else None

    @property
    def step_uncertainty(self) -> float | None:
        """Relative standard error of the mean step, at most, by the lengths that were counted; None if unknown."""
        if self.step is None:
            return None
        cumulative: dict[float, float] = dict.fromkeys((*STEP_BUCKETS, inf), 0.0)
        for rank in self.ranks:
            total = 0
            for edge, number in zip(cumulative, rank.lengths, strict=True):
                total += number
                cumulative[edge] += total
        return relative_error(buckets_of(cumulative), self.step)

    @property
    def samples_per_second(self) -> float | None:
        """Samples of all ranks here per second of the loop; None if they are not reported."""
        return self._per_second("samples")

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all ranks here per second of the loop; None if they are not reported."""
        return self._per_second("tokens")

    @cached_property
    def shares(self) -> dict[str, float]:
        """Share of the loop's time by phase, the greatest first; empty without time."""
        total = sum(rank.seconds for rank in self.ranks)
        seconds: dict[str, float] = {}
        for rank in self.ranks:
            for name, amount in rank.phases.items():
                seconds[name] = seconds.get(name, 0.0) + amount
        ordered = sorted(seconds, key=lambda name: -seconds[name])
        return {name: seconds[name] / total for name in ordered} if total > 0 else {}

    @property
    def separates_work(self) -> bool:
        """True if the forward pass is measured; that of a model that is no module is in the remainder of a step."""
        return WORK[0] in self.shares

    @cached_property
    def losses(self) -> dict[str, float]:
        """Share of the loop's time by phase that is not work, the greatest first.

        A wait for data that the GPU was measured to compute through is not lost. Communication is that of the rank with
        the least: what others have in addition is `delay`.
        """
        lost = {name: share for name, share in self.shares.items() if name not in (*WORK, REMAINDER)}
        if DATA_WAIT in lost and self.idle_while_waiting is not None:
            lost[DATA_WAIT] = min(lost[DATA_WAIT], self.idle_while_waiting)
        if COMMUNICATION in lost:
            lost[COMMUNICATION] -= self.delay
        return dict(sorted(lost.items(), key=lambda item: -item[1]))

    @property
    def lost(self) -> float | None:
        """Share of the loop's time that is not work; None without time."""
        return sum(self.losses.values()) + self.delay if self.shares else None

    @property
    def delay(self) -> float:
        """Share of the loop's time in which ranks wait in collectives for the slowest rank of this node."""
        shares = self.by_rank(COMMUNICATION)
        return max(0.0, self.shares.get(COMMUNICATION, 0.0) - min(shares.values(), default=0.0))

    @property
    def slowest(self) -> RankTime:
        """The rank with the least communication, for which the others wait."""
        shares = self.by_rank(COMMUNICATION)
        return min(self.ranks, key=lambda rank: shares.get(rank.report.rank, 1.0))

    @property
    def idle_while_waiting(self) -> float | None:
        """Share of the loop's time in which the GPU had no work during the wait for data; None if not measured."""
        waits = [rank.gpu_wait for rank in self.ranks]
        known = [wait for wait in waits if wait is not None]
        total = sum(rank.seconds for rank in self.ranks)
        return sum(known) / total if len(known) == len(waits) and total > 0 else None

    def by_rank(self, phase: str) -> dict[int, float]:
        """Return the share of a phase in each rank's time."""
        return {rank.report.rank: rank.phases.get(phase, 0.0) / rank.seconds for rank in self.ranks if rank.seconds > 0}

    def line_of(self, phase: str) -> LineOfCode | None:
        """Return the line in which a phase spends most of its time; None if no stacks of this phase were sampled."""
        spent: dict[tuple[str, str], float] = {}
        for rank in self.ranks:
            for location, function, seconds in rank.report.code.get(phase, ()):
                spent[location, function] = spent.get((location, function), 0.0) + seconds
        sampled = sum(spent.values())
        if sampled <= 0:
            return None
        line = max(spent, key=lambda each: spent[each])
        return LineOfCode(*line, spent[line] / sampled)

    def _per_second(self, counter: str) -> float | None:
        increases = [rank.increase(counter) for rank in self.ranks]
        known = [increase for increase in increases if increase]
        seconds = max(rank.seconds for rank in self.ranks)
        return sum(known) / seconds if len(known) == len(increases) and seconds > 0 else None


def read_runs(folder: Path) -> list[RunTime]:
    """Return the runs whose reports are in a folder, in the order of their starts."""
    ranks: dict[tuple[str, int], RankTime] = {}
    for path in folder.glob(f"*{NEWEST}"):
        newest = _read(path)
        if newest is None:
            continue
        key = newest.run, newest.rank
        if key not in ranks or newest.start > ranks[key].report.start:  # a launcher has restarted the rank
            ranks[key] = _rank_time(newest, _read(path.with_suffix(WARMED_UP)))
    return runs_of(ranks.values())


def runs_of(ranks: Iterable[RankTime]) -> list[RunTime]:
    """Group ranks into runs, in the order of their starts."""
    found: dict[str, list[RankTime]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.report.rank):
        found.setdefault(rank.report.run, []).append(rank)
    runs = [RunTime(name, tuple(each)) for name, each in found.items()]
    return sorted(runs, key=lambda run: min(rank.report.start for rank in run.ranks))


def _rank_time(newest: Report, warmed_up: Report | None) -> RankTime:
    rank = RankTime(newest, warmed_up)
    return rank if warmed_up is not None and rank.steps >= FEWEST else RankTime(newest, None)


def _read(path: Path) -> Report | None:
    """Return the report in the first line of a file; None if a kill has interrupted the writing."""
    try:
        return parse(path.read_bytes().partition(b"\n")[0])
    except (OSError, ReportError):
        return None


def _steps(report: Report) -> StepSeconds:
    return report.step_seconds or _NO_STEPS


def _gpu_wait(report: Report, before: Report | None) -> float | None:
    def seconds(phases: Mapping[str, object]) -> float | None:
        return getattr(phases.get(DATA_WAIT), "gpu_seconds", None)

    now = seconds(report.phases)
    return None if now is None else max(0.0, now - ((seconds(before.phases) if before else None) or 0.0))
