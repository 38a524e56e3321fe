"""What tells whether a file has changed since it was read."""

from __future__ import annotations

from pathlib import Path

Mark = tuple[int, int, int] | None


def mark(file: Path) -> Mark:
    """What changes with a file's content, its permissions, and what a link leads to; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns, status.st_size
