"""Addresses of the stacks that `stallscope up` runs for this user, so that other commands find them without flags.

A stack stores its addresses in a file of its own and holds a lock on it. A file without a lock is from a stack that was
killed, and is ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from stallscope.common.file_trust import create, open_own, owner_problem

_MAX_BYTES = 4096


class LocalStack(NamedTuple):
    """The URLs of a running stack, its launcher and what it simulates."""

    exporter: str
    prometheus: str
    pid: int = 0
    """Process of the launcher; 0 if unknown."""
    fault: str = ""
    """Name of the scenario, if it has a fault that can be ended."""


def runtime_folder() -> Path:
    """Return the folder of the files; it may not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "stallscope" if runtime else Path(tempfile.gettempdir()) / f"stallscope-{os.geteuid()}"


@contextmanager
def announced(stack: LocalStack) -> Iterator[None]:
    """Let other commands find the stack for the duration of the block.

    Raises:
        OSError: the file cannot be written, or other users could have written it.
    """
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if problem := owner_problem(folder.lstat()):
        raise PermissionError(None, problem, str(folder))
    place = folder / f"up-{time.time_ns()}-{os.getpid()}.json"
    draft = place.with_suffix(".part")
    # Renamed once it is locked: a reader takes an unlocked file for one that was left behind.
    descriptor = create(draft, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps(stack._asdict()).encode())
        draft.rename(place)
        _remove_left_behind(folder)
        yield
    finally:
        for file in (draft, place):
            file.unlink(missing_ok=True)
        os.close(descriptor)


def newest_stack() -> LocalStack | None:
    """Return the running stack that was started last; None if no stack is running."""
    with suppress(OSError):
        for file in sorted(runtime_folder().glob("up-*.json"), reverse=True):
            if (found := _read(file)) is not None:
                return found
    return None


def _read(file: Path) -> LocalStack | None:
    try:
        descriptor = open_own(file)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # locked: the stack is running
        with suppress(OSError, ValueError, TypeError):
            return LocalStack(**json.loads(os.read(descriptor, _MAX_BYTES)))
    finally:
        os.close(descriptor)
    return None


def _remove_left_behind(folder: Path) -> None:
    for file in folder.glob("up-*.json"):
        if _read(file) is None:
            with suppress(OSError):
                file.unlink()
