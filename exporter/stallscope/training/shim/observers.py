"""Observers of a run's reports. They are imported once a step has ended, or an exporter on this node listens.

What they need is imported when it has something to do: stacks and notices of signals need an exporter, the lines of
code a loop, and stored reports a summary.
"""

from __future__ import annotations

import os

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.observer import Observer
from stallscope.training.shim.tolerance import switched_off
from stallscope.training.shim.transport import Datagrams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.training.shim.bursts import Burst
    from stallscope.training.shim.hot_lines import HotLines
    from stallscope.training.shim.session import Session
    from stallscope.training.shim.timeline import Timeline
    from stallscope.training.shim.transport import Sender


def follow(session: Session, sender: Sender, uses_gpu: Callable[[], bool]) -> None:
    """Let all observers that the environment permits follow a session.

    Args:
        session: the session.
        sender: sends its reports.
        uses_gpu: returns whether the session computes on GPUs, as far as known.
    """
    lines = None
    if not switched_off("STALLSCOPE_STACKS"):
        lines = Lines(session, uses_gpu)
        session.observe(lines)
    if os.environ.get("STALLSCOPE_SUMMARY_DIR"):
        with standard_library():
            from stallscope.training.shim.stored_reports import stored_reports
            from stallscope.training.shim.storing import Storage

        if (stored := stored_reports(os.environ, session.identifier)) is not None:
            session.observe(Storage(session, stored))
    if isinstance(sender, Datagrams):
        session.observe(Stacks(session, sender, lines))
        session.observe(Notices(session, sender))


class Lines(Observer):
    """The lines of the program in which it loses time, from the second report of the loop on."""

    task = "finding lines of code"

    def __init__(
        self, session: Session, uses_gpu: Callable[[], bool], burst: Callable[[Timeline], Burst] | None = None
    ) -> None:
        self._session = session
        self._uses_gpu = uses_gpu
        self._burst = burst
        self._since: tuple[float, dict[str, tuple[float, float]]] | None = None

    def hot_lines(self) -> HotLines:
        """Return the lines; imported at the first call."""
        found = self._session.hot_lines
        if found is None:
            with standard_library():
                from stallscope.training.shim.hot_lines import HotLines

            found = self._session.hot_lines = HotLines(self._session.timeline, self._uses_gpu, self._burst, self._since)
        return found

    def before_report(self, now: float, last: bool) -> None:
        """Start or end a burst of samples if it is due."""
        timeline = self._session.timeline
        if self._session.hot_lines is None and (last or not timeline.looping):
            return
        timeline.book(now)
        if self._since is None:
            phases = timeline.phases.items()
            self._since = now, {name: (phase.seconds, phase.gpu_seconds or 0.0) for name, phase in phases}
        else:
            self.hot_lines().refresh(now, last=last)

    def close(self) -> None:
        """End the active burst."""
        if self._session.hot_lines is not None:
            self._session.hot_lines.close()
            self._session.hot_lines = None


class Stacks(Observer):
    """The stack of a rank at a standstill, for an exporter behind a UNIX socket."""

    task = "preparing for a standstill"

    def __init__(self, session: Session, sender: Datagrams, lines: Lines | None) -> None:
        self._session = session
        self._sender = sender
        self._lines = lines
        self._attach: Callable[..., int] | None = None
        self._release: Callable[[str], None] | None = None

    def before_sending(self, _payload: bytes, last: bool) -> None:
        """Set the timers if they are due, and send the descriptor of the stacks with the report."""
        session, sender = self._session, self._sender
        if last or not sender.passes:
            return
        if self._attach is None:
            with standard_library():
                from stallscope.training.shim import stacks

            self._attach, self._release = stacks.attach, stacks.release
        lines = None if self._lines is None else self._lines.hot_lines
        attached = self._attach(session.identifier, session.timeline.activity, session.name, session.rank, lines)
        sender.passed = max(sender.passed, attached)

    def close(self) -> None:
        """Stop the timers."""
        if self._release is not None:
            self._release(self._session.identifier)


class Notices(Observer):
    """The exporter's notice of a signal that ends this process."""

    task = "preparing for SIGTERM"

    def __init__(self, session: Session, sender: Datagrams) -> None:
        self._session = session
        self._sender = sender
        self._announce: Callable[..., None] | None = None
        self._withdraw: Callable[[str], None] | None = None

    def accepted(self) -> None:
        """Prepare the notice: there is an exporter to receive it."""
        if self._announce is None:
            with standard_library():
                from stallscope.training.shim import termination

            self._announce, self._withdraw = termination.announce, termination.withdraw
        self._announce(self._session.identifier, *self._sender.route)

    def resting(self) -> None:
        """Send no notice while another run is under way."""
        self.close()

    def close(self) -> None:
        """Send no notice from now on."""
        if self._withdraw is not None:
            self._withdraw(self._session.identifier)
