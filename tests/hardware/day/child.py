"""Programs that the day starts: in a process group of their own, and ended in any case."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallscope.lab.stack.component import Component
from tests.hardware.day import PATHS
from tests.hardware.day.machine import StepError

_POLL_SECONDS = 0.05


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of all children: the tree's modules, and none of the user's own Stallscope settings."""
    inherited = {name: "" for name in os.environ if name.startswith("STALLSCOPE_")}
    paths = (*PATHS, *filter(None, [os.environ.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **(more or {})}


class Child:
    """A Python program of the day. Ctrl-C reaches only the day, which ends its children."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        """Start `python` with these arguments."""
        self.name = name
        self.log = log
        self.status: int | None = None
        """Exit status once it has ended; negative for a signal."""
        self._component = Component(name, [sys.executable, *arguments], log, environment(variables))
        self._component.start()
        process = self._component._process
        assert process is not None
        self._process = process
        self.pid = process.pid

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, at most this long; return True if it has."""
        deadline = time.monotonic() + seconds
        while self._component.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        self._reap()
        return True

    def end(self, number: int = signal.SIGTERM, seconds: float = 5.0) -> None:
        """Send a signal to the program, wait, and kill it with its children where that is not enough."""
        if self.status is None:
            if self._component.running:
                os.kill(self.pid, number)
            if not self.wait(seconds):
                self._component.signal(signal.SIGKILL)
                self._reap()

    def cpu_seconds(self) -> float | None:
        """Return the CPU time that it has used; None once it has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def last_line(self) -> str:
        """Return the last line of its output."""
        return next(iter(self._component.log_tail(1).splitlines()), "no output")

    def failure(self, advice: str) -> StepError:
        """Return the error of a program that failed."""
        how = f"ended with status {self.status}" if self.status is not None else "did not end in time"
        return StepError(f"{self.name}: {how}: {self.last_line()}; {advice}")

    def _reap(self) -> None:
        if self.status is None:
            if not self._component.running:
                # Children that it left behind, such as loader workers, end too.
                self._component.signal(signal.SIGKILL)
            self._component.reap()
            self.status = self._process.returncode


def run(name: str, arguments: Sequence[str], log: Path, variables: Mapping[str, str], seconds: float) -> Child:
    """Run a program to its end.

    Raises:
        StepError: it did not end in time.
    """
    child = Child(name, arguments, log, variables)
    try:
        if not child.wait(seconds):
            raise StepError(
                f"{name}: did not end within {seconds:.0f} s: {child.last_line()}; see if the driver responds "
                "(nvidia-smi)"
            )
    finally:
        child.end(signal.SIGKILL)
    return child
