"""Wait for time to pass or for a wish to stop, whichever comes first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_STOP = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class StopRequest:
    """Ctrl-C, SIGTERM, or the terminal's end; taken up only where the launcher waits, so that nothing is cut in two."""

    def __init__(self) -> None:
        self.requested = False

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until a stop is asked for; return whether it was."""
        if not self.requested:
            self.requested = signal.sigtimedwait(_STOP, seconds) is not None
        return self.requested


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Take stop signals through a `StopRequest` instead of handlers, in the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    try:
        yield StopRequest()
    finally:
        # A second Ctrl-C while everything was being stopped has had its wish.
        while signal.sigtimedwait(_STOP, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
