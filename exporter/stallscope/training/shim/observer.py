"""Base class of what follows the reports of a session: stacks, lines of code, stored reports, traces."""

from __future__ import annotations


class Observer:
    """Follows the reports of one session. Each method is called in the thread of the loop, and does nothing here.

    An observer that raises is closed, and follows no further report.
    """

    task = "observing a run"
    """Task that fails if a method raises, for the warning."""

    def before_report(self, now: float, last: bool) -> None:
        """Update what the report contains, before it is written.

        Args:
            now: by the clock of the timeline.
            last: True for the last report of the session.
        """

    def before_sending(self, payload: bytes, last: bool) -> None:
        """Receive the report as it is about to be sent, and signed if signatures are configured."""

    def accepted(self) -> None:
        """Learn that the report was sent. Not called for the last report."""

    def resting(self) -> None:
        """Learn that the loop is over, and that another run has begun."""

    def close(self) -> None:
        """Release what the observer holds; the session has ended."""
