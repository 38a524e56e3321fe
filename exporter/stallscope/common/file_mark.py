"""Detect that a file has changed since it was read."""

from __future__ import annotations

from pathlib import Path

Mark = tuple[int, int, int] | None


def mark(file: Path) -> Mark:
    """Return a value that changes with the file's content, permissions or link target; None if the file is missing."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns, status.st_size
