"""Reads the kernel's small text files, for the collectors.

Files are opened for each reading, because a device behind one may disappear and return.
"""

from __future__ import annotations

import errno
import os

_CHUNK = 65536
_NO_ANSWER = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EOPNOTSUPP))
"""Errors that mean no file, or no value in it."""
_SHOWN = 80
"""Characters of an offending line that a message repeats."""


def read_text(path: str) -> str:
    """Return the whole file.

    Raises:
        OSError: it can't be read.
        ValueError: it breaks off in the middle of a line, which no file of the kernel does.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # The kernel may hand over a file in pieces of a page; only an empty piece is the end.
        content = piece = os.read(descriptor, _CHUNK)
        while piece:
            piece = os.read(descriptor, _CHUNK)
            content += piece
    finally:
        os.close(descriptor)
    text = content.decode(errors="replace")
    last = text.rpartition("\n")[2]
    if last:
        raise malformed(path, last, "the file ends in the middle of a line")
    return text


def read_if_answered(path: str) -> str | None:
    """Return the whole file, or None if it does not exist or has no value.

    Raises:
        OSError: it can't be read for another reason, such as missing rights.
        ValueError: see `read_text`.
    """
    try:
        return read_text(path)
    except OSError as problem:
        if problem.errno in _NO_ANSWER:
            return None
        raise


def exists(path: str) -> bool:
    """Return True if the path, or its link's target, exists."""
    return os.path.exists(path)  # noqa: PTH110 - making a Path costs several times the look itself


def entries(folder: str) -> list[str]:
    """Return the sorted names in a folder; none without such a folder."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - as above
    except (FileNotFoundError, NotADirectoryError):
        return []


def malformed(path: str, line: str, problem: str) -> ValueError:
    """Return the error for a line that is not as the kernel writes it."""
    shown = line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
    return ValueError(f"{path}: {problem}: {shown!r}")
