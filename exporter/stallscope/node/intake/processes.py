"""Checks if the process that sent a report still runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_ENDED = -1


class Process(NamedTuple):
    """A process, identified by pid and start time, because the kernel reuses pids."""

    pid: int
    start: int
    """Clock ticks after boot; -1 for a process that had already ended."""


class Processes:
    """Reads `/proc`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"

    def find(self, pid: int) -> Process | None:
        """Return the process of a pid that the kernel reported, or None if it is not visible from here."""
        try:
            return self._read(pid)
        except (FileNotFoundError, ProcessLookupError):
            # With hidepid, /proc hides other users' processes, and then also process 1.
            return Process(pid, _ENDED) if (self._proc / "1").exists() else None
        except (OSError, ValueError, IndexError):
            return None

    def gone(self, process: Process) -> bool:
        """Return True if the process has certainly ended; an unreadable one counts as alive."""
        try:
            found = self._read(process.pid)
            return found.start == _ENDED or found != process
        except (FileNotFoundError, ProcessLookupError):
            return True
        except (OSError, ValueError, IndexError):
            return False

    def boot_id(self) -> str:
        """Return the kernel's identifier of this boot, or the empty string."""
        try:
            return (self._proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def _read(self, pid: int) -> Process:
        with open(self._proc / str(pid) / "stat", "rb") as file:
            # The command name is in parentheses, and may contain parentheses and blanks.
            fields = file.read().rpartition(b")")[2].split()
        state, start = fields[0], int(fields[19])
        return Process(pid, _ENDED if state in (b"Z", b"X") else start)
