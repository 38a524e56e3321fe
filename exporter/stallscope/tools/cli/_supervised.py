"""Run the program in a child process: to judge its exit status, or because process 1 of a container ignores signals."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress

_PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT")
)


def supervise() -> int | None:
    """Fork. Return None in the child; in the parent the status of the ended child, as from `waitpid`.

    Signals that a process sends to the parent are passed on. Those of the terminal reach the child by themselves. Other
    children, which process 1 of a container inherits, are waited for, too.
    """
    signals = {signal.SIGCHLD, *_PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo == signal.SIGCHLD:
            ended = -1
            while ended and ended != child:  # one signal may stand for several children
                ended, status = os.waitpid(-1, os.WNOHANG)
            if ended:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return status
        elif received.si_code <= 0:  # sent by a process
            with suppress(ProcessLookupError):
                os.kill(child, received.si_signo)


def end_as(status: int) -> int:
    """Return the exit status of the child, or end this process by the signal that ended the child."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has written its core
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    return 128 + number  # process 1 of a container survives its own signals
