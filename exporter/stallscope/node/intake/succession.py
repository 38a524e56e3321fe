"""Decides whether a report may follow the rank that holds its place, and what stays of that rank.

A newer report of the same session continues its cumulative numbers. A different session

- is the rank's next session, a restart, if the held session has ended or its process is gone, whatever their clocks
  say; or, if its process is not visible, if the new session started later.
- replaces the held session, without counting as a restart, if both processes are seen alive and belong to larger runs:
  only the session that started later counts, on every exporter alike.
- replaces the held session until that one reports again, if neither process is visible, as in two containers that
  report through UDP or HTTP (see `ownership`).

A replaced session is refused as `superseded` while the name is held, or until its successor has ended and its own
process is seen alive. Therefore the series of one name neither alternate between two runs nor mix them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallscope.node.intake.held import Held
from stallscope.node.intake.liveness import both_alive
from stallscope.node.intake.processes import Process, Processes
from stallscope.node.intake.quotas import Sender
from stallscope.training.protocol.report import CodeLine, Phase, Report, ReportError

_MAX_FORMER = 8
"""Former sessions of a rank to remember."""

_logger = logging.getLogger(__name__)


class Succession(NamedTuple):
    """Values that a new session of a rank takes over from the held one."""

    restarts: int
    former: tuple[str, ...]
    """Sessions that it replaced, directly or indirectly, oldest first."""
    forgotten: tuple[str, ...]
    """Sessions that are too old to be remembered."""


def succession(held: Held, report: Report, process: Process | None, sender: Sender, processes: Processes) -> Succession:
    """Return what a new session takes over from the one that holds its place.

    Args:
        held: the rank.
        report: the new session's report.
        process: its sender's process, if visible.
        sender: its sender's user.
        processes: all processes of this machine.

    Raises:
        ReportError: the session was replaced, or started before the held one.
    """
    restarts = max(report.restarts, _restarts(held, report, process, sender, processes))
    former = (*held.former, held.report.session)
    return Succession(restarts, former[-_MAX_FORMER:], former[:-_MAX_FORMER])


def _restarts(held: Held, report: Report, process: Process | None, sender: Sender, processes: Processes) -> int:
    over = held.ended is not None or (
        held.process is not None and (held.process == process or processes.gone(held.process))
    )
    seen_first = held.uid is None and sender is not None
    returns = process is not None and (over or seen_first) and not processes.gone(process)
    if (report.session in held.former and not returns) or not (over or seen_first or report.start > held.report.start):
        raise ReportError(
            "superseded",
            f"run {report.run!r} rank {report.rank} has a session that started later; "
            "give concurrent runs different names",
        )
    if report.session in held.former:
        return held.restarts
    if not both_alive(held, process, processes):
        return held.restarts + 1
    _logger.warning(
        "run %r rank %d is reported by two live processes; only the one that started later counts: "
        "give concurrent runs different names",
        report.run,
        report.rank,
    )
    return held.restarts


def without_restart(held: Held) -> Held:
    """Return a rank whose replaced session turned out to go on: it was no restart."""
    return held._replace(restarts=max(held.report.restarts, held.restarts - 1))


def monotonic(old: Report, new: Report) -> Report:
    """Return the newer report of a session, with each cumulative number at least that of the older one.

    Clocks that are read at different moments can make a number decrease slightly. Prometheus would treat that as a
    counter reset, so such numbers keep their former value. A lower number of steps is an error.

    Raises:
        ReportError: the number of steps decreased.
    """
    if old.step_seconds is not None:
        before, after = old.step_seconds, new.step_seconds
        if after is None or any(map(int.__lt__, after.counts, before.counts)):
            raise ReportError(
                "bad_field",
                f"step_seconds has {after.count if after else 0} steps after {before.count} in one session; "
                "expected cumulative numbers: start a new session with a new process",
            )
        if after.sum < before.sum:
            new = new._replace(step_seconds=after._replace(sum=before.sum))
    phases = new.phases
    for name, phase in phases.items():
        former = old.phases.get(name)
        if former is not None and (
            phase.seconds < former.seconds
            or phase.occurrences < former.occurrences
            or (phase.gpu_seconds or 0.0) < (former.gpu_seconds or 0.0)
        ):
            phases = {**phases, name: _monotonic_phase(former, phase)}
    return new._replace(
        phases=phases,
        counters=_monotonic_numbers(old.counters, new.counters),
        dropped=_monotonic_numbers(old.dropped, new.dropped),
        code={phase: _monotonic_lines(old.code.get(phase, ()), lines) for phase, lines in new.code.items()},
    )


def _monotonic_phase(old: Phase, new: Phase) -> Phase:
    gpu_seconds = new.gpu_seconds
    if gpu_seconds is not None and old.gpu_seconds is not None:
        gpu_seconds = max(gpu_seconds, old.gpu_seconds)
    return Phase(max(new.seconds, old.seconds), max(new.occurrences, old.occurrences), new.max, gpu_seconds)


def _monotonic_lines(old: Iterable[CodeLine], new: Iterable[CodeLine]) -> tuple[CodeLine, ...]:
    before = {line[:2]: line.seconds for line in old}
    return tuple(line._replace(seconds=max(line.seconds, before.get(line[:2], 0.0))) for line in new)


def _monotonic_numbers(old: Mapping[str, float], new: Mapping[str, float]) -> Mapping[str, float]:
    if all(number >= old.get(key, 0.0) for key, number in new.items()):
        return new
    return {key: max(number, old.get(key, 0.0)) for key, number in new.items()}
