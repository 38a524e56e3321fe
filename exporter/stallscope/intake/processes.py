"""Whether a process that sent a report is still there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_OVER = -1


class Process(NamedTuple):
    """One life of one process: a pid alone may have gone to another since."""

    pid: int
    start: int
    """Clock ticks after boot; -1 for a process that was over when it was looked for."""


class Processes:
    """Reads `/proc`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"

    def find(self, pid: int) -> Process | None:
        """The process of a pid that the kernel told, or None where it can't be seen from here."""
        try:
            return self._read(pid)
        except (FileNotFoundError, ProcessLookupError):
            # /proc may be mounted so that it hides other users' processes; then the first one is hidden as well.
            return Process(pid, _OVER) if (self._proc / "1").exists() else None
        except (OSError, ValueError, IndexError):
            return None

    def gone(self, process: Process) -> bool:
        """Whether a process that was found once is certainly no more; what can't be read counts as alive."""
        try:
            found = self._read(process.pid)
            return found.start == _OVER or found != process
        except (FileNotFoundError, ProcessLookupError):
            return True
        except (OSError, ValueError, IndexError):
            return False

    def boot_id(self) -> str:
        """The kernel's name for this boot, or the empty string."""
        try:
            return (self._proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def _read(self, pid: int) -> Process:
        with open(self._proc / str(pid) / "stat", "rb") as file:
            # The command's name stands in brackets and may hold brackets and blanks itself.
            fields = file.read().rpartition(b")")[2].split()
        state, start = fields[0], int(fields[19])
        return Process(pid, _OVER if state in (b"Z", b"X") else start)
