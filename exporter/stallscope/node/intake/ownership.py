"""Decides under which name a report's run is held.

A run belongs to the user of its ranks that are seen alive: the uid that the kernel reports for the socket. A run of the
same name by another user is held as `<run>-<uid>`. A report for another user's session is refused as `not_owner`. A
sender without a uid (HTTP, and UDP except as in `local_senders`) can add ranks to a run, but never replaces a rank that
is seen alive. A rank that is seen alive replaces one of such a sender, whichever started first. The sender's run is
held as `<run>-network` if both have a world size of one; otherwise its rank is refused as `not_owner`. A run never gets
a name that belongs to another user.

Two sessions of one rank, each with a world size of one, are runs of their own, as in a sweep:

- `<run>-<pid>`, if both processes are seen alive.
- `<run>-<session>`, if neither process is visible and the replaced session reports again, as in two containers that
  report through UDP or HTTP.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from stallscope.node.intake.held import Held, Holdings
from stallscope.node.intake.liveness import both_alive, seen_alive
from stallscope.node.intake.processes import Process, Processes
from stallscope.node.intake.quotas import Key, Sender
from stallscope.training.protocol.report import Report, ReportError
from stallscope.training.protocol.vocabulary import LAST_STATES, MAX_NAME_LENGTH

_NETWORK = "network"
"""Suffix of a run's name, in place of the uid, for a sender without one."""
_SESSION_LENGTH = 8
"""Characters of a session in the name of a run."""


class Place(NamedTuple):
    """Where a report belongs."""

    report: Report
    """The report, under the name that its run is held by."""
    held: Held | None
    """The rank that holds this place now."""
    process: Process | None
    """The sender's process, if visible."""


class Names:
    """The names that runs are held by."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._own: dict[tuple[str, int, str], str] = {}
        """The name of the run by the run, rank and session of its reports, where the names differ."""

    def of(self, report: Report) -> str:
        """Return the name that the run of an accepted report is held by."""
        return self._own.get((report.run, report.rank, report.session), report.run)

    def remember(self, reported_run: str, report: Report) -> None:
        """Hold the session under the report's name from now on, whatever name its reports state."""
        if report.run != reported_run:
            self._own[(reported_run, report.rank, report.session)] = report.run

    def forget(self, reported_run: str, rank: int, sessions: Iterable[str]) -> None:
        """Forget the names of former sessions."""
        for session in sessions:
            self._own.pop((reported_run, rank, session), None)

    def keep(self, ranks: Collection[Key]) -> None:
        """Forget the names of all other ranks."""
        self._own = {reported: run for reported, run in self._own.items() if (run, reported[1]) in ranks}

    def place(self, ranks: Holdings, report: Report, pid_seen: int | None, sender: Sender) -> Place:
        """Return where a report belongs.

        Args:
            ranks: every rank.
            report: as the sender wrote it.
            pid_seen: pid of the sender, if the kernel reports it.
            sender: the sender's user.

        Raises:
            ReportError: the session, the rank or the name belongs to another user's run.
        """
        report = self._of_sender(ranks, report, sender)
        held = ranks.get((report.run, report.rank))
        if held is not None and held.report.session == report.session and held.process is not None and not held.lost:
            return Place(report, held, held.process)
        process = None if pid_seen is None else self._processes.find(pid_seen)
        if (
            held is not None
            and process is not None
            and held.report.session != report.session
            and report.session not in held.former
            and both_alive(held, process, self._processes)
            and _are_single(held.report, report)
        ):
            report = _renamed(report, str(process.pid))
            self._refuse_foreign(ranks, report, sender)
            held = ranks.get((report.run, report.rank))
        elif held is not None and process is None and _goes_on(held, report, sender):
            report = _renamed(report, report.session[:_SESSION_LENGTH])
            held = ranks.get((report.run, report.rank))
        return Place(report, held, process)

    def _of_sender(self, ranks: Holdings, report: Report, sender: Sender) -> Report:
        """Return the report under a name that does not belong to another user.

        Raises:
            ReportError: the session, the rank or that name belongs to another user's run.
        """
        own_name = self.of(report)
        if own_name != report.run:
            report = report._replace(run=own_name)
        held = ranks.get((report.run, report.rank))
        if held is not None and held.uid == sender:
            return report
        owner = self._owner(ranks, report.run)
        if owner is None or owner.uid in (None, sender) or (sender is None and held is None):
            return report
        if sender is None and held is not None and not seen_alive(held, self._processes):
            return report
        # A session has one sender. Renaming one rank of a larger run would separate it from the others.
        if held is not None and (
            held.report.session == report.session or (sender is None and not _are_single(held.report, report))
        ):
            self._refuse_foreign(ranks, report, sender)
        report = _renamed(report, _NETWORK if sender is None else str(sender))
        self._refuse_foreign(ranks, report, sender)
        return report

    def _refuse_foreign(self, ranks: Holdings, report: Report, sender: Sender) -> None:
        """Check that the run's name does not belong to another user.

        Raises:
            ReportError: it does.
        """
        owner = self._owner(ranks, report.run)
        if owner is not None and owner.uid not in (None, sender):
            raise ReportError(
                "not_owner",
                f"run {report.run!r} rank {report.rank} belongs to a live process of user {owner.uid}; "
                "give concurrent runs different names",
            )

    def _owner(self, ranks: Holdings, name: str) -> Held | None:
        """Return a rank of the run that is seen alive, or None; all such ranks belong to one user."""
        alive = (each for (run, _rank), each in ranks.items() if run == name and seen_alive(each, self._processes))
        return next(alive, None)


def _goes_on(held: Held, report: Report, sender: Sender) -> bool:
    """Return whether a replaced session runs next to its successor: it reports what it did after the other's start.

    A late report, or one that another process sends for it, was written before.
    """
    return (
        report.session in held.former
        and held.ended is None
        and held.process is None
        and held.uid == sender
        and report.state not in LAST_STATES
        and report.sent > held.report.start
        and _are_single(held.report, report)
    )


def _are_single(*reports: Report) -> bool:
    """Return whether each report is that of a run with one rank."""
    return all(report.info.get("world_size", "") in ("", "0", "1") for report in reports)


def _renamed(report: Report, suffix: str) -> Report:
    """Return the report with the run's name `<run>-<suffix>`, shortened to the longest valid name."""
    name = f"-{suffix}"
    return report._replace(run=report.run[: MAX_NAME_LENGTH - len(name)] + name)
