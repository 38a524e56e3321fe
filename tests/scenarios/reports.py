"""Reports of a node's ranks: the real shim, called as a training loop calls it, and the exporter's real intake."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.reading import Distribution, Sample
from tests.scenarios.disturbance import Floats
from tests.scenarios.model import COLUMN, Segment
from tests.scenarios.sheet import Mask
from tests.scenarios.story import Run, Work
from tests.scenarios.world import Claim, World

_EPOCH = 1_700_000_000.0
"""Unix time of second 0 in reports, which have no negative times."""
_REPORT_SECONDS = 5.0
"""Between two reports of a rank, at least: ten times as long as by default, which costs less and flatters no rule."""
_EXACT = 1e-6
"""Seconds by which sums of phases may miss the end of a segment."""
_USER = 1000
_LOSS_STEPS = 10
"""Steps between two losses that the program reports."""
_ON_DEVICE = ("host_copy", "forward", "backward", "communication", "optimizer")
_PHASE_SECONDS = "stallscope_training_phase_seconds_total"
Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""A series' name and labels."""


class Time:
    """A clock that its owner sets."""

    def __init__(self, now: float, skew: float) -> None:
        self.now = now
        self._skew = skew

    def monotonic(self) -> float:
        """Seconds of the story."""
        return self.now

    def time(self) -> float:
        """The node's clock."""
        return _EPOCH + self._skew + self.now


@dataclass
class Reports:
    """One rank on the pages of its exporter."""

    claim: Claim
    sent: Floats
    """When the newest report was made, by scrape."""
    begun: Floats
    """When the session of that report began, by scrape."""
    series: dict[Key, Floats] = field(default_factory=dict)
    """Values by scrape, NaN where there is none."""

    @property
    def present(self) -> Mask:
        """Where the rank is on the page."""
        known = self.series.get(("stallscope_training_start_timestamp_seconds", self._labels))
        return np.zeros(len(self.sent), dtype=bool) if known is None else ~np.isnan(known)

    def phase_seconds(self, phase: str) -> Floats:
        """Seconds of a phase by scrape, 0 where there were none."""
        found = self.series.get((_PHASE_SECONDS, (*self._labels, ("phase", phase))))
        return np.zeros(len(self.sent)) if found is None else np.nan_to_num(found)

    def set(self, key: Key, place: int, value: float) -> None:
        """Put a value on a page."""
        if key not in self.series:
            self.series[key] = np.full(len(self.sent), np.nan)
        self.series[key][place] = value

    @property
    def _labels(self) -> Labels:
        return ("run", self.claim.run.name), ("rank", str(self.claim.rank))


def reports_of(world: World, claims: Sequence[Claim], times: Floats, skew: float) -> list[Reports]:
    """Let the ranks of a node train from their start to the last scrape.

    Args:
        world: the story.
        claims: the ranks that report to the node's exporter.
        times: second of each scrape.
        skew: seconds by which the node's clock is ahead.
    """
    found = {(claim.run.name, str(claim.rank)): Reports(claim, *np.full((2, len(times)), np.nan)) for claim in claims}
    with tempfile.TemporaryDirectory() as root:
        clock = Time(float(times[0]), skew)
        registry = RunRegistry(clock=clock, root=Path(root))
        node = _Node(world, registry, clock, Path(root) / "proc", skew)
        ranks = [_Rank(node, claim, number) for number, claim in enumerate(claims)]
        for place, now in enumerate(times.tolist()):
            for rank, reports in zip(ranks, found.values(), strict=True):
                rank.advance(now)
                reports.sent[place], reports.begun[place] = rank.sent, rank.begun
            clock.now = now
            registry.check_processes()
            for sample in registry.collect():
                if sample.family.labels[:2] == ("run", "rank"):
                    for key, value in _values(sample):
                        found[sample.labels[0], sample.labels[1]].set(key, place, value)
    return list(found.values())


def _values(sample: Sample) -> Iterator[tuple[Key, float]]:
    """The lines of a sample on a page."""
    family, values, found = sample
    labels = tuple(zip(family.all_labels, values, strict=False))
    if not isinstance(found, Distribution):
        shift = _EPOCH if family.name.endswith("_timestamp_seconds") else 0.0
        yield (family.name, labels), found - shift
        return
    bounds = (*map(str, map(float, family.buckets)), "+Inf")
    for bound, below in zip(bounds, accumulate(found.counts), strict=True):
        yield (f"{family.name}_bucket", (*labels, ("le", bound))), below
    yield (f"{family.name}_sum", labels), found.total
    yield (f"{family.name}_count", labels), found.count


class _Node(NamedTuple):
    world: World
    registry: RunRegistry
    clock: Time
    """Of the registry."""
    processes: Path
    """A folder as /proc."""
    skew: float


class _Rank:
    """One rank's process, or those of all its sessions."""

    def __init__(self, node: _Node, claim: Claim, number: int) -> None:
        self._node, self._world = node, node.world
        self._claim, self._course, self._of_run = claim, claim.course, claim.run
        self._pid = 1000 + number
        self._process = node.processes / str(self._pid)
        self._process.mkdir(parents=True)
        self._clock = Time(claim.course.start, node.skew)
        self._now = self._until = -np.inf
        until = claim.run.reports_until
        self._reports_until = np.inf if until is None else until * 60
        self._waiting: tuple[float, bytes] | None = None
        self.sent = self.begun = np.nan
        self._session: SimulatedRun | None = None
        self._script = self._life()

    def advance(self, now: float) -> None:
        """Train until this second, and let the newest report arrive."""
        self._now = now + _EXACT
        if self._until <= now:
            self._until = next(self._script, np.inf)
        if self._session is not None and self._session.timeline.activity == "evaluation":
            self._clock.now = now
            self._session.step()  # of the evaluation's own loop
        self._arrive()

    def _pass(self, seconds: float) -> Iterator[float]:
        """Let time pass in the rank; yield where it reaches beyond the next scrape."""
        until = self._clock.now + seconds
        if until > self._now:
            yield until
        self._clock.now = until

    def _take(self, payload: bytes) -> str | None:
        if self._clock.now > self._reports_until:
            return "unreachable"
        self._waiting = (self._clock.now, payload)
        return None

    def _arrive(self) -> None:
        """Reports between two scrapes are not parsed, except the last of a session: each has all that was counted."""
        if self._waiting is not None:
            self.sent, payload = self._waiting
            self._node.clock.now = self.sent
            self._node.registry.accept(payload, "unix", self._pid, uid=_USER)
            self._waiting = None

    def _life(self) -> Iterator[float]:
        """Call the shim; yield the second of the next call where that is after the next scrape."""
        if self._clock.now > self._now:
            yield self._clock.now
        course, run, rank = self._course, self._of_run, self._claim.rank
        restarts = {minute * 60 for minute in run.restarts}
        session = self._start()
        for number, segment in enumerate(course.segments):
            self._clock.now = segment.start
            if segment.start in restarts:
                self._end_process()
                session = self._start()
            rows = course.segment_of_row == number
            if segment.kind == "initialization":
                yield from self._pass(segment.end - segment.start)
            elif segment.kind == "restore":
                with session.phase("restore"):
                    yield from self._pass(segment.end - segment.start)
            elif segment.kind == "hang":
                if rank in run.killed:
                    self._end_process()
                    return
                hanging = session.phase("backward" if segment.works[rank].hangs == "spin" else "data_wait")
                hanging.__enter__()
                yield from self._pass(segment.end - segment.start)
                if segment.end in restarts or segment.end >= course.end:
                    continue
                hanging.__exit__()
            else:
                yield from self._training(session, segment, rows)
        if run.end is not None:
            session.finish(run.outcome)

    def _training(self, session: SimulatedRun, segment: Segment, rows: Mask) -> Iterator[float]:
        course, clock = self._course, self._clock
        parts = self._parts(rows)
        names = [name for name, _ in parts]
        phases = [nullcontext() if name == "other" else session.phase(name) for name in names]
        pace = self._world.disturbance.pace[self._claim.number]
        program = _Program(session, self._of_run, segment.works[self._claim.rank], pace, names)
        spent = zip(*(each.tolist() for _, each in parts), strict=True)
        for steps, longer, row in zip(
            course.steps[rows].tolist(), course.lengthened[rows].tolist(), spent, strict=True
        ):
            seconds = [each / max(steps, 1) for each in row]
            for _ in range(max(steps, 1)):
                for phase, each in zip(phases, seconds, strict=True):
                    if each:
                        until = clock.now + each
                        with phase:
                            if until > self._now:
                                yield until
                            clock.now = until
                if steps:
                    program.end_step(seconds, longer)

    def _parts(self, rows: Mask) -> list[tuple[str, Floats]]:
        """Return the phases that the rank measures, in the order of a step."""
        run = self._of_run
        durations = self._course.durations[rows, self._claim.rank, :]

        def spent(*names: str) -> Floats:
            found: Floats = durations[:, [COLUMN[name] for name in names]].sum(axis=1)
            return found

        if not run.phases:
            inside = [name for name in COLUMN if name != "evaluation"]
            found = [("other", spent(*inside)), ("evaluation", spent("evaluation"))]
        else:
            hook = run.measures_communication
            found = [
                ("data_wait", spent("data_wait")),
                ("host_copy", spent("host_copy")),
                ("forward", spent("forward", "slow")),
                ("backward", spent("backward") if hook else spent("backward", "sync", "communication")),
                ("communication", spent("sync", "communication") if hook else 0.0 * spent("sync")),
                *((name, spent(name)) for name in ("optimizer", "logging", "checkpoint", "rollout", "other")),
                ("evaluation", spent("evaluation")),
            ]
        return [(name, each) for name, each in found if each.any()]

    def _start(self) -> SimulatedRun:
        """Start a session in a process of its own."""
        run, world = self._of_run, self._world
        self._arrive()
        self.begun = self._clock.now
        fields = ["S", *["0"] * 18, str(int(100 * (self.begun + 10_000)))]
        (self._process / "stat").write_text(f"{self._pid} (python) {' '.join(fields)}")
        node, _ = world.gpus[run.ranks[self._claim.rank][0]]
        held = [rank for rank, gpus in enumerate(run.ranks) if world.gpus[gpus[0]][0] == node]
        stage = run.stages[self._claim.rank] if run.stages else None
        session = SimulatedRun(
            run.name,
            rank=self._claim.rank,
            local_rank=held.index(self._claim.rank),
            world_size=run.world_size or len(run.ranks),
            gpus=[{"gpu": str(world.index(gpu)), "uuid": world.uuid(gpu)} for gpu in run.ranks[self._claim.rank]],
            precision=run.precision,
            info={
                "framework": run.framework,
                "hostname": f"node{node}",
                "namespace": run.namespace,
                "pod": f"{run.name}-{self._claim.rank}" if run.pods else "",
                "slurm_job": run.slurm_job,
                "user": run.user,
                "git_commit": "33be154",
                "job_class": run.job_class,
                "pipeline_stage": "" if stage is None else str(stage),
            },
            interval=_REPORT_SECONDS,
            clock=self._clock,
            sender=self._take,
            pid=self._pid,
        )
        session.report(learning_rate=3e-4)
        pace = world.disturbance.pace[self._claim.number]
        for name, value in run.values.items():
            session.value(name, value / (pace if name.endswith("_per_second") else 1.0))
        self._session = session
        return session

    def _end_process(self) -> None:
        self._session = None
        self._arrive()
        (self._process / "stat").unlink()


class _Program:
    """Reports at the end of each step of one state, besides its phases."""

    def __init__(self, session: SimulatedRun, run: Run, work: Work, pace: float, names: Sequence[str]) -> None:
        self._session, self._work = session, work
        per_sample = {"tokens": work.tokens_per_sample, "flops": work.flops_per_sample}
        amounts = {key: work.batch * pace * each for key, each in per_sample.items() if each}
        self._amounts = amounts if work.buckets else {}
        planned = {} if work.buckets else amounts
        session.plan(work.batch if run.reports_batch else None, planned.get("tokens"), planned.get("flops"), None)
        self._steps, self._spoilt = 0, 0.0
        self._own_work = session.timeline.own_work if run.phases and run.device_events else None
        self._places = {name: place for place, name in enumerate(names) if name in (*_ON_DEVICE, "data_wait")}
        self._on_device = dict.fromkeys(_ON_DEVICE, 0.0)
        if self._own_work is not None:
            self._own_work.on_device = True
            session.watch(self._report_device)

    def end_step(self, seconds: Sequence[float], longer: float) -> None:
        """End a step.

        Args:
            seconds: of its phases.
            longer: length of its sequences against the mean.
        """
        self._steps += 1
        self._spoilt += self._work.losses_not_finite
        if self._spoilt >= 1:
            self._spoilt -= 1
            self._session.report(loss=math.nan)
        elif self._steps % _LOSS_STEPS == 0:
            self._session.report(loss=1.2)
        for key, each in self._amounts.items():
            self._session.reported.work(key, each * longer)
        if self._own_work is not None:
            spent = {name: seconds[place] for name, place in self._places.items()}
            waited = spent.pop("data_wait", 0.0)
            for name, each in spent.items():
                self._on_device[name] += each
            self._own_work.add_forward(spent.get("forward", 0.0), sum(spent.values()), waited=waited)
        self._session.step()

    def _report_device(self) -> None:
        """Report what the device's clock has measured since the last report."""
        for name, each in self._on_device.items():
            if each:
                self._session.gpu_time(name, each)
                self._on_device[name] = 0.0
