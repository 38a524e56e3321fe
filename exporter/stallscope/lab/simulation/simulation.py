"""A whole simulated node: GPUs, the ranks of a training job, and optionally its host."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from stallscope.lab.simulation.coupling import CoupledNode
from stallscope.lab.simulation.driver import SimulatedDriver
from stallscope.lab.simulation.host import SimulatedHost
from stallscope.lab.simulation.node import Node
from stallscope.lab.simulation.ranks import Deliver, DeliverWithFile, Ranks
from stallscope.lab.simulation.scenarios import Scenario, scenario
from stallscope.node.sampling.clock import Clock, ScriptedClock
from stallscope.training.protocol.report import Report

_logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_HOST_TICK_SECONDS = 1.0
_SLICE_SECONDS = 60.0


class Simulation:
    """One scenario on one clock.

    In the live exporter (`--simulation.scenario=NAME`, and `--simulation.host=true` for the host as well):

        simulation = Simulation.named(name, clock=SystemClock(), deliver=take_report, host_tree=folder_or_none)
        environment = Environment(
            driver=simulation.driver, root=folder_or_default, statvfs=simulation.statvfs, clock=...
        )
        simulation.start()      # one background thread drives ranks and host along the clock
        ...
        simulation.stop()

    In tests, with a `ScriptedClock` and no thread: `simulation.advance(3600)`.

    With `host_tree`, an empty folder that the caller owns, host counters follow the scenario and the exporter's `root`
    is to be that folder; without it the host stays real, and only GPUs and ranks are simulated.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        clock: Clock,
        deliver: Deliver | None = None,
        deliver_with_file: DeliverWithFile | None = None,
        seed: int = 1,
        gpus: int = 8,
        host_tree: Path | None = None,
        report_interval: float = 1.0,
        reports: Callable[[], Iterable[Report]] | None = None,
    ) -> None:
        """Create the node; it is idle.

        Args:
            scenario: what happens.
            clock: clock of the node.
            deliver: takes each report of a rank, such as the intake's own entrance; None for GPUs alone.
            deliver_with_file: takes a report with the file of the rank's stacks; None for ranks without stacks.
            seed: the same seed gives the same node, job and readings.
            gpus: GPUs of the node, and ranks of its job.
            host_tree: where to write the simulated `proc` and `sys`.
            report_interval: fewest seconds between two reports of a rank.
            reports: the newest report of each real rank that lives; what the GPUs of a coupled scenario follow.

        Raises:
            ValueError: there are fewer GPUs than the scenario's fault needs, or it is coupled and can't be.
        """
        if not gpus > max(scenario.faulty_gpus, default=0):
            raise ValueError(f"{scenario.name} needs more than {max(scenario.faulty_gpus, default=0)} GPUs, got {gpus}")
        self.scenario = scenario
        self._clock = clock
        if scenario.coupled and (reports is None or host_tree is not None):
            raise ValueError(f"{scenario.name} needs the reports of real ranks and the real host that they run on")
        self._node = (
            CoupledNode(scenario, clock, reports, seed=seed, gpus=gpus)
            if scenario.coupled and reports is not None
            else Node(scenario, clock, seed=seed, gpus=gpus)
        )
        self._ranks: Ranks | None = None
        if deliver is not None and scenario.instrumented:
            self._ranks = Ranks(self._node, deliver, interval=report_interval, deliver_with_file=deliver_with_file)
        self._host = SimulatedHost(host_tree, self._node) if host_tree is not None else None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def named(
        cls,
        name: str,
        *,
        clock: Clock,
        deliver: Deliver | None = None,
        deliver_with_file: DeliverWithFile | None = None,
        seed: int | None = None,
        gpus: int = 8,
        host_tree: Path | None = None,
        report_interval: float = 1.0,
        onset: float | None = None,
        reports: Callable[[], Iterable[Report]] | None = None,
    ) -> Simulation:
        """Set up a scenario by its name, with the fault `onset` seconds after the start where that is given.

        Raises:
            ValueError: the scenario is unknown (with the nearest name), or an argument is invalid.
        """
        story = scenario(name, onset=onset)
        return cls(
            story,
            clock=clock,
            deliver=deliver,
            deliver_with_file=deliver_with_file,
            seed=story.seed if seed is None else seed,
            gpus=gpus,
            host_tree=host_tree,
            report_interval=report_interval,
            reports=reports,
        )

    @property
    def statvfs(self) -> Callable[[str], os.statvfs_result]:
        """Queries a file system of the simulated host, or of the real one, for `Environment.statvfs`."""
        return os.statvfs if self._host is None else self._host.statvfs

    def driver(self) -> SimulatedDriver:
        """Connect to the simulated GPUs, for `Environment.driver`."""
        return SimulatedDriver(self._node)

    def advance(self, seconds: float) -> None:
        """Advance a scripted clock, and run the node up to its time.

        Raises:
            TypeError: the clock is not scripted.
        """
        if not isinstance(self._clock, ScriptedClock):
            raise TypeError("only a simulation on a ScriptedClock can be advanced; start() follows a real clock")
        remaining = seconds
        while True:  # in slices, so that hours at once take no more memory than minutes
            part = min(remaining, _SLICE_SECONDS)
            self._clock.advance(part)
            self._catch_up()
            remaining -= part
            if remaining <= 0:
                break
        if self._host is not None:
            self._host.write()

    def start(self) -> None:
        """Follow the clock on a thread of its own."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._follow, name="simulation", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, wait for it, and end calls that hang."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.release()

    def hang(self, gpu: int) -> None:
        """Block every driver call of this GPU until `release`, like a driver that hangs."""
        self._node.answering[gpu].clear()

    def release(self) -> None:
        """Continue blocked driver calls."""
        for event in self._node.answering:
            event.set()

    def _follow(self) -> None:
        host_due = 0.0
        while not self._stopping.wait(_TICK_SECONDS):
            self._catch_up()
            if self._host is not None and self._node.now() >= host_due:
                host_due = self._node.now() + _HOST_TICK_SECONDS
                try:
                    self._host.write()
                except OSError as problem:
                    _logger.warning("the simulated host's files can't be written: %s", problem)

    def _catch_up(self) -> None:
        self._node.advance()
        if self._ranks is not None:
            self._ranks.advance(self._node.now())
