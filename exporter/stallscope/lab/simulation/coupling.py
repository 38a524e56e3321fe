"""Simulated GPUs that follow real ranks: the training runs on CPUs, and its reported phases drive the GPUs.

A rank that claims simulated GPU 3 (`gpus=[{"gpu": "3", "uuid": ""}]`) drives it with its reports: kernels run during
forward, backward, communication, optimizer and evaluation, and the GPU is idle in every other phase; power, clocks,
memory traffic and the units' activity follow. A report has the duration of each phase since the last report, not its
time. So a GPU replays a report two seconds late: first equal steps, then the time between steps, such as a checkpoint.
If neither forward nor backward is measured, the GPU computes during the unmeasured part of a step. Without reports a
GPU is idle. If the reason was only a phase longer than two seconds, this idle time is subtracted from later phases,
from idle ones first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from stallscope.lab.simulation.gpu import SimulatedGpu
from stallscope.lab.simulation.node import FREE_MEMORY_SHARE, Node, uuid
from stallscope.lab.simulation.scenarios import Scenario
from stallscope.lab.simulation.workload import EFFECTS, IDLE, PhaseEffect
from stallscope.node.sampling.clock import Clock
from stallscope.training.protocol.report import Report

DELAY_SECONDS = 2.0
"""Delay with which a GPU replays a report: four reports of a loop with the shortest interval."""
_IDLE_SLICE_SECONDS = 0.25
_MOST_SLICES = 8
"""Resolution of steps within a report: finer than the driver's samples."""
_EFFECTS = {**EFFECTS, "evaluation": EFFECTS["forward"]}
_MEASURED = {"forward", "backward"}

_Span = tuple[PhaseEffect, float]
"""Work of a GPU, and its seconds."""


class CoupledNode(Node):
    """A node whose GPUs work for the ranks that claim them; if several ranks claim a GPU, for the oldest."""

    def __init__(
        self, scenario: Scenario, clock: Clock, reports: Callable[[], Iterable[Report]], *, seed: int, gpus: int
    ) -> None:
        """Set up the node, with idle GPUs.

        Args:
            scenario: provides the GPU memory that the job uses.
            clock: the clock that the GPUs follow.
            reports: returns the newest report of each live rank.
            seed: the same seed gives the same node.
            gpus: GPUs of the node.
        """
        super().__init__(scenario, clock, seed=seed, gpus=gpus)
        self._reports = reports
        self._claims: dict[int, list[Report]] = {}
        self._players = [_Player(gpu) for gpu in self._gpus]

    def memory_share(self, gpu: int) -> float:
        """Return the memory share of the scenario's job if a rank claims the GPU, else that of a free GPU."""
        return super().memory_share(gpu) if self._claims.get(gpu) else FREE_MEMORY_SHARE

    def pids(self, gpu: int) -> tuple[int, ...]:
        """Return the real processes of the ranks that claim the GPU."""
        return tuple(report.pid for report in self._claims.get(gpu, ()))

    def _advance(self, now: float) -> None:
        claims: dict[int, list[Report]] = {}
        for report in sorted(self._reports(), key=lambda report: (report.start, report.rank)):
            for gpu in self._claimed(report):
                claims.setdefault(gpu, []).append(report)
        self._claims = claims
        for gpu, player in enumerate(self._players):
            if gpu in claims:
                player.receive(claims[gpu][0], claims[gpu][0].sent - self.epoch)
            player.play(now)

    def _claimed(self, report: Report) -> Iterator[int]:
        for claim in report.gpus:
            for gpu in range(self.gpu_count):
                if claim.uuid == uuid(self.seed, gpu) if claim.uuid else claim.gpu == str(gpu):
                    yield gpu


class _Player:
    """Gives one GPU the work that a rank reports."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._end = 0.0  # time up to which the GPU has work
        self._waiting: deque[_Span] = deque()
        self._newest: Report | None = None
        self._idle_ahead = 0.0  # idle seconds that were played because no report had arrived

    def receive(self, report: Report, sent: float) -> None:
        """Add the work in the newest report, which was sent at this time of the simulation."""
        before = self._newest
        if before is None or before.session != report.session:
            # The time before the first report is unknown.
            self._waiting.append((IDLE, max(sent + DELAY_SECONDS - self._end, 0.0)))
            self._idle_ahead = 0.0
        elif before.sequence < report.sequence:
            spans = _spans(before, report)
            for idle_only in (True, False):
                spans = [self._shortened(span, idle_only=idle_only) for span in spans]
            self._waiting.extend(spans)
        self._newest = report

    def play(self, now: float) -> None:
        """Let the GPU work up to `now`, or a little further."""
        while self._end <= now:
            if self._waiting:
                effect, seconds = self._waiting.popleft()
            else:
                effect, seconds = IDLE, _IDLE_SLICE_SECONDS
                self._idle_ahead += seconds
            if seconds > 0.0:
                self._gpu.work(effect, seconds, self._gpu.clock_ratio())
                self._end += seconds

    def _shortened(self, span: _Span, *, idle_only: bool) -> _Span:
        """Subtract idle time that was already played."""
        effect, seconds = span
        if idle_only and effect is not IDLE:
            return span
        played = min(seconds, self._idle_ahead)
        self._idle_ahead -= played
        return effect, seconds - played


def _spans(before: Report, after: Report) -> list[_Span]:
    """Return the GPU's work between two reports of one session."""
    passed = {
        name: phase.seconds - (before.phases[name].seconds if name in before.phases else 0.0)
        for name, phase in after.phases.items()
    }
    # If no phase of the GPU is measured, the GPU works during the unmeasured part of the steps.
    computes = {} if _MEASURED & after.phases.keys() else {"other": EFFECTS["forward"]}
    slices = min(max(_steps(after) - _steps(before), 1), _MOST_SLICES)
    step: list[_Span] = []
    between_steps: list[_Span] = []
    for name in (*EFFECTS, *passed.keys() - EFFECTS.keys()):
        seconds = passed.get(name, 0.0)
        if seconds <= 0.0:
            continue
        effect = computes.get(name) or _EFFECTS.get(name, IDLE)
        # A phase with one long occurrence was between two steps, not a part of each step.
        if name in EFFECTS or 2.0 * after.phases[name].max <= seconds:
            step.append((effect, seconds / slices))
        else:
            between_steps.append((effect, seconds))
    return step * slices + between_steps


def _steps(report: Report) -> int:
    return report.step_seconds.count if report.step_seconds is not None else 0
