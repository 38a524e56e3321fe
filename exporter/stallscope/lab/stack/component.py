"""One program of the stack. It runs in its own process group, logs to a file, and ends with the launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05
_TAIL_BYTES = 16_384
_PR_SET_PDEATHSIG = 1


class Component:
    """A program that runs as long as the stack does."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None):
        """Describe the program; nothing runs yet.

        Args:
            name: display name.
            command: the program's path and its arguments.
            log: file for the program's output.
            environment: variables in addition to the launcher's own.
        """
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program."""
        libc = ctypes.CDLL(None)
        launcher = os.getpid()

        def bind_to_launcher() -> None:
            # The kernel ends the child with its parent, so that `kill -9` of the launcher leaves nothing behind.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGKILL)
            # The launcher blocks signals to wait for them, and a child inherits the mask.
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal must reach only the launcher
                preexec_fn=bind_to_launcher,  # safe, as the launcher has one thread
            )

    @property
    def ended(self) -> str | None:
        """How the program ended, for messages; None while it runs or before it was started."""
        if self._process is None:
            return None
        # Not reaped yet: while the zombie keeps its PID, a signal to it cannot hit another process.
        result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        if result.si_code == os.CLD_EXITED:
            return f"ended with status {result.si_status}"
        return f"was ended by {signal.Signals(result.si_status).name}"

    @property
    def running(self) -> bool:
        """True if the program was started and has not ended."""
        return self._process is not None and self.ended is None

    def log_tail(self, lines: int = 8) -> str:
        """Return the last lines of the program's output."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children; only between `start` and `reap`."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def reap(self) -> None:
        """Wait until the program has ended, after a signal, and forget it."""
        if self._process is not None:
            self._process.wait()
            self._process = None


def stop_all(components: Sequence[Component], seconds: float = _STOP_SECONDS) -> None:
    """Send SIGTERM to all, last started first, and SIGKILL after `seconds` seconds."""
    for component in reversed(components):
        if component.running:
            component.signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(component.running for component in components):
        time.sleep(_POLL_SECONDS)
    for component in components:
        # The whole group, even if the program itself has ended: its children must end too.
        component.signal(signal.SIGKILL)
        component.reap()
