"""A run of a simulated rank: the shim on a clock that is not the machine's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stallscope.training.shim.observers import Lines
from stallscope.training.shim.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.training.shim.bursts import Burst
    from stallscope.training.shim.sources import Clock, Probe
    from stallscope.training.shim.timeline import Timeline


class SimulatedRun(Run):
    """A run that measures by a clock of its own, and not this process.

        run = SimulatedRun("job", rank=3, world_size=8, gpus=[{"gpu": "3", "uuid": "GPU-…"}],
                           info={"hostname": "node-1"}, clock=clock, sender=intake.take, process=probe, pid=70003)

    It does not end with the process: the owner of the clock calls `finish()`, or drops the run to simulate a process
    that was killed. It reports the process metrics of its probe alone.
    """

    is_scripted = True

    def __init__(
        self,
        name: str | None = None,
        *,
        clock: Clock,
        process: Probe | None = None,
        pid: int | None = None,
        **settings: Any,
    ) -> None:
        """Start a run; its first report leaves at once.

        Args:
            name: the job's name.
            clock: measures the run.
            process: source of the process metrics; none by default.
            pid: number of the simulated process; that of this process by default.
            settings: keywords of `Run`.
        """
        self._clock = clock
        self._probe = process
        self._pid = os.getpid() if pid is None else pid
        super().__init__(name, **settings)

    def sample(self, burst: Callable[[Timeline], Burst]) -> None:
        """Report lines of code, by bursts of samples that this function creates."""
        self.observe(Lines(self, lambda: False, burst))

    def _succeed(self) -> None:
        """Leave runs of the same name and rank as they are."""

    def _observe(self) -> None:
        """Follow nothing: stacks, workers and signals are those of this process."""

    def _register(self) -> None:
        """Do not end with the process; in a forked child, the next report silences the run."""

    def _follow_environment(self) -> None:
        """Ignore the environment of this process."""

    def _sent_again(self, _payload: bytes, cause: str | None) -> str | None:
        """Do not wait: the clock may stand still."""
        return cause
