"""Decides whether a rank still runs, and in which state it ended.

States come from the shim's reports, except two. A rank is `lost` if its process is known to be gone, or if its process
is not visible and the rank has been silent for the expiry time. A rank is `terminated` when its process sends the
notice of SIGTERM or SIGHUP (see `shim.termination`), and also if its process is gone within ten minutes of that notice:
process 1 of a container ignores SIGTERM, continues to report, and is killed after the grace period. A process that is
not visible counts as gone after a minute of silence in these ten minutes. A newer report replaces both states.
"""

from __future__ import annotations

from stallscope.node.intake.held import Held
from stallscope.node.intake.processes import Process, Processes

_GRACE_PERIOD = 600.0
"""Seconds after the notice of a signal within which the end of a process counts as caused by the signal."""
_SILENT_AFTER_NOTICE = 60.0
"""Seconds without a report after which a process that is not visible, and has sent the notice of a signal, is gone."""


def has_gone(held: Held, processes: Processes, now: float, expiry: float) -> bool:
    """Return True if the process of a rank that has not ended is gone, or counts as gone after its silence."""
    if held.process is not None:
        return processes.gone(held.process)
    patience = min(_SILENT_AFTER_NOTICE, expiry) if _is_signalled(held, held.last_seen) else expiry
    return now - held.last_seen >= patience


def gone(held: Held, now: float) -> Held:
    """Return the rank after its process went: terminated if a signal ended it, otherwise lost."""
    if _is_signalled(held, now if held.process else held.last_seen):
        return _terminated(held, now)
    return held._replace(lost=True, ended=now)


def signalled(held: Held, now: float) -> Held:
    """Return the rank after its process sent the notice of a signal."""
    return _terminated(held._replace(signalled=now), now)


def seen_alive(held: Held, processes: Processes) -> bool:
    """Return True for a rank of this machine that has not ended, even if `/proc` hides its process."""
    if held.ended is not None or held.process is None:
        return held.ended is None and held.uid is not None
    return not processes.gone(held.process)


def both_alive(held: Held, process: Process | None, processes: Processes) -> bool:
    """Return True if the sender of a rank and this process are seen to be two live processes."""
    return (
        held.ended is None
        and held.process is not None
        and process is not None
        and process.pid != held.process.pid
        and not processes.gone(held.process)
        and not processes.gone(process)
    )


def _is_signalled(held: Held, time: float) -> bool:
    """Return whether the process was in the grace period of a signal at that monotonic time."""
    return held.signalled is not None and time - held.signalled <= _GRACE_PERIOD


def _terminated(held: Held, now: float) -> Held:
    return held._replace(report=held.report._replace(state="terminated"), lost=False, ended=now)
