"""Wait for a duration or a stop signal, whichever comes first."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_FAULT = signal.SIGUSR1
"""Sent by `stallscope up --end`."""


class StopRequest:
    """Ctrl-C, SIGTERM, or a closed terminal; handled only while the launcher waits, so that no step is interrupted."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        """Set the stop signals and the signal that ends a fault; they must be blocked."""
        self.requested = False
        self.ends_fault = False
        """True once `stallscope up --end` has requested the end of the simulated fault."""
        self._signals = signals

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds` seconds or until a signal arrives; return True if a stop was requested."""
        if not self.requested:
            received = signal.sigtimedwait(self._signals, seconds)
            if received is not None and received.si_signo == END_FAULT:
                self.ends_fault = True
            else:
                self.requested = received is not None
        return self.requested


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Receive stop signals through a `StopRequest` instead of handlers, in the main thread."""
    # Ignored signals stay ignored: nohup, and background jobs of a shell.
    signals = [*(each for each in _STOP if signal.getsignal(each) != signal.SIG_IGN), END_FAULT]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield StopRequest(signals)
    finally:
        # Discard a second Ctrl-C that arrived during the stop.
        while signal.sigtimedwait(signals, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
