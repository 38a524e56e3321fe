"""Files in folders that several users may write to: created without following links, read only from trusted owners.

Trusted are root and the user of this process. Training shares this file; it needs the standard library alone.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress


def create(path: str | os.PathLike[str], mode: int) -> int:
    """Create a file in place of whatever has its name, and return the descriptor to write to.

    Raises:
        OSError: it can't be created.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - pathlib takes longer to import than all of the shim
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_own(path: str | os.PathLike[str]) -> int:
    """Open a file that this process or root has written, and return the descriptor to read from.

    Raises:
        OSError: it can't be read, is a link or not a regular file, or others may have written it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    problem = owner_problem(status)
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif not problem and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "other users may write it"
    if problem:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, problem)
    return descriptor


def owner_problem(status: os.stat_result) -> str:
    """Return why the owner of a file or folder is not trusted; empty for root and this user."""
    if status.st_uid in (0, os.geteuid()):
        return ""
    return f"it belongs to user {status.st_uid}, expected root or user {os.geteuid()}"


def folder_problem(status: os.stat_result) -> str:
    """Return why files in a folder may be replaced by others; empty where only their owners may do so."""
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "every user may replace files in it"
    return owner_problem(status)


def secret_problem(status: os.stat_result) -> str:
    """Return why a file keeps no secret; empty where only its owner, and a group without writing, may read it."""
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        return f"its mode is {stat.S_IMODE(status.st_mode):04o}, expected at most 0640"
    return owner_problem(status)


def request_problem(file: os.stat_result, folder: os.stat_result) -> str:
    """Return why a request may be that of an unauthorized user; empty where it can't.

    The owner of its folder is trusted as well.
    """
    if not stat.S_ISREG(file.st_mode):
        return "it is not a regular file"
    if file.st_uid not in (0, os.geteuid(), folder.st_uid):
        return f"it belongs to user {file.st_uid}; expected root, this user or the folder's owner"
    if file.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others than its owner may write it"
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        return "everybody may write its folder"
    return ""
