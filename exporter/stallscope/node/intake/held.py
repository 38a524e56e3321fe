"""The state of one rank, as the registry holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.node.intake.processes import Process
from stallscope.node.intake.quotas import Key
from stallscope.training.protocol.report import Report


class Held(NamedTuple):
    """State of one rank. Replaced as a whole."""

    report: Report
    arrived: float
    """Unix time of the report's arrival."""
    last_seen: float
    """Monotonic time of the report's arrival."""
    restarts: int = 0
    process: Process | None = None
    """The sender's process, if visible."""
    lost: bool = False
    ended: float | None = None
    """Monotonic time when the rank was first known to be finished, failed, terminated or lost."""
    reported_run: str = ""
    """Name of the run in its reports, if it is held under another name."""
    former: tuple[str, ...] = ()
    """Sessions that this one replaced, directly or indirectly, oldest first."""
    signalled: float | None = None
    """Monotonic time of the notice of SIGTERM or SIGHUP."""
    uid: int | None = None
    """User of the sender, if the kernel reports it."""
    admitted: float = 0.0
    """Monotonic time of the first report."""
    restored: bool = False
    """True until the first report after a restart of the exporter: the counters in the state file may be below scraped
    ones."""

    @property
    def key(self) -> Key:
        """Run and rank."""
        return self.report.run, self.report.rank

    @property
    def state(self) -> str:
        """One of RUN_STATES."""
        return "lost" if self.lost else self.report.state


Holdings = Mapping[Key, Held]
"""Every rank by run and rank number."""
