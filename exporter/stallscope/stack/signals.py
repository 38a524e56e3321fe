"""Wait for time to pass or for a wish to stop, whichever comes first."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Ctrl-C, SIGTERM, or the terminal's end; taken up only where the launcher waits, so that nothing is cut in two."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        """Take the signals that mean a stop; they must be blocked."""
        self.requested = False
        self._signals = signals

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until a stop is asked for; return whether it was."""
        if not self.requested:
            self.requested = signal.sigtimedwait(self._signals, seconds) is not None
        return self.requested


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Take stop signals through a `StopRequest` instead of handlers, in the main thread."""
    # What is ignored stays so: nohup, and a shell's way with jobs in the background.
    signals = [each for each in _STOP if signal.getsignal(each) != signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield StopRequest(signals)
    finally:
        # A second Ctrl-C while everything was being stopped has had its wish.
        while signal.sigtimedwait(signals, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
