"""GPUs that follow real ranks: training on CPUs, with a GPU that does what its phases would make it do.

A rank that claims simulated GPU 3 (`gpus=[{"gpu": "3", "uuid": ""}]`) drives it by what it reports: kernels run during
forward, backward, communication, optimizer and evaluation, and in every other phase the GPU idles; power, clocks,
memory traffic and the units' activity follow. Reports contain how long each phase took since the last report, not when,
so a GPU plays them two seconds late: the steps of a report one like the other, then what happened beside them, such as
a checkpoint. Where neither forward nor backward is measured, the GPU computes in what is left of a step. From a rank of
without reports a GPU has no work, and idles; where a phase was only longer than those two seconds, that idle
time is taken from the phases in which the GPU would have idled anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from stallscope.protocol.report import Report
from stallscope.sampling.clock import Clock
from stallscope.simulation.gpu import SimulatedGpu
from stallscope.simulation.node import FREE_MEMORY_SHARE, Node, uuid
from stallscope.simulation.scenarios import Scenario
from stallscope.simulation.workload import EFFECTS, IDLE, PhaseEffect

DELAY_SECONDS = 2.0
"""How late a GPU plays what was reported: four reports of a loop that keeps their shortest interval."""
_IDLE_SLICE_SECONDS = 0.25
_MOST_SLICES = 8
"""Resolution of steps within a report: finer than the driver's samples."""
_EFFECTS = {**EFFECTS, "evaluation": EFFECTS["forward"]}
_MEASURED = {"forward", "backward"}

_Stretch = tuple[PhaseEffect, float]


class CoupledNode(Node):
    """A node whose GPUs work for the ranks that claim them; of several on one GPU, for the oldest."""

    def __init__(
        self, scenario: Scenario, clock: Clock, reports: Callable[[], Iterable[Report]], *, seed: int, gpus: int
    ) -> None:
        """Set the node up, at rest.

        Args:
            scenario: what the job holds of a GPU's memory.
            clock: what time it is.
            reports: the newest report of each rank that lives.
            seed: the same seed gives the same node.
            gpus: GPUs of the node.
        """
        super().__init__(scenario, clock, seed=seed, gpus=gpus)
        self._reports = reports
        self._claims: dict[int, list[Report]] = {}
        self._players = [_Player(gpu) for gpu in self._gpus]

    def memory_share(self, gpu: int) -> float:
        """The scenario's job, if it has one."""
        return super().memory_share(gpu) if self._claims.get(gpu) else FREE_MEMORY_SHARE

    def pids(self, gpu: int) -> tuple[int, ...]:
        """The processes of the ranks that claim the GPU: real ones."""
        return tuple(report.pid for report in self._claims.get(gpu, ()))

    def _advance(self, now: float) -> None:
        claims: dict[int, list[Report]] = {}
        for report in sorted(self._reports(), key=lambda report: (report.start, report.rank)):
            for gpu in self._claimed(report):
                claims.setdefault(gpu, []).append(report)
        self._claims = claims
        for gpu, player in enumerate(self._players):
            if gpu in claims:
                player.hear(claims[gpu][0], claims[gpu][0].sent - self.epoch)
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
        self._end = 0.0  # up to when the GPU has its work
        self._waiting: deque[_Stretch] = deque()
        self._heard: Report | None = None
        self._owed = 0.0  # seconds that were idle for want of a report

    def hear(self, report: Report, sent: float) -> None:
        """Take in the newest report, sent at that moment of the simulation."""
        before = self._heard
        if before is None or before.session != report.session:
            # What came before the first report is not known.
            self._waiting.append((IDLE, max(sent + DELAY_SECONDS - self._end, 0.0)))
            self._owed = 0.0
        elif before.sequence < report.sequence:
            spans = _spans(before, report)
            for idle_only in (True, False):
                spans = [self._paid_off(span, idle_only=idle_only) for span in spans]
            self._waiting.extend(spans)
        self._heard = report

    def play(self, now: float) -> None:
        """Let the GPU work up to the present, or a little further."""
        while self._end <= now:
            if self._waiting:
                effect, seconds = self._waiting.popleft()
            else:
                effect, seconds = IDLE, _IDLE_SLICE_SECONDS
                self._owed += seconds
            if seconds > 0.0:
                self._gpu.work(effect, seconds, self._gpu.clock_ratio())
                self._end += seconds

    def _paid_off(self, span: _Stretch, *, idle_only: bool) -> _Stretch:
        effect, seconds = span
        if idle_only and effect is not IDLE:
            return span
        paid = min(seconds, self._owed)
        self._owed -= paid
        return effect, seconds - paid


def _spans(before: Report, after: Report) -> list[_Stretch]:
    """The GPU's work between two reports of one session."""
    passed = {
        name: phase.seconds - (before.phases[name].seconds if name in before.phases else 0.0)
        for name, phase in after.phases.items()
    }
    # Where no phase of the GPU's is measured, its work is what is left of the steps.
    computes = {} if _MEASURED & after.phases.keys() else {"other": EFFECTS["forward"]}
    slices = min(max(_steps(after) - _steps(before), 1), _MOST_SLICES)
    step: list[_Stretch] = []
    beside: list[_Stretch] = []
    for name in (*EFFECTS, *passed.keys() - EFFECTS.keys()):
        seconds = passed.get(name, 0.0)
        if seconds <= 0.0:
            continue
        effect = computes.get(name) or _EFFECTS.get(name, IDLE)
        # What mostly was one long occurrence happened beside the steps, and not a little in each.
        if name in EFFECTS or 2.0 * after.phases[name].max <= seconds:
            step.append((effect, seconds / slices))
        else:
            beside.append((effect, seconds))
    return step * slices + beside


def _steps(report: Report) -> int:
    return report.step_seconds.count if report.step_seconds is not None else 0
