"""A cgroup whose processes are killed where they take more memory than allowed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(limit: int) -> Iterator[Path | None]:
    """Make the cgroup for the block, and yield its folder; processes join by its file `cgroup.procs`.

    Args:
        limit: bytes, page cache included.

    Yields:
        None where the machine does not permit it.
    """
    unified = not (_CGROUPS / "memory").is_dir()
    folder = (_CGROUPS if unified else _CGROUPS / "memory") / f"stallscope-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        yield None
        return
    with suppress(OSError):  # a kernel without swap accounting has no such file
        (folder / "memory.swap.max").write_text("0")
    try:
        yield folder
    finally:
        deadline = time.monotonic() + 60.0
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)  # the last process has been killed, and is about to go
        folder.rmdir()
