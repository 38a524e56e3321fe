"""A kernel cgroup that limits the CPU time of its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000


@contextmanager
def cpu_quota(cores: float) -> Iterator[Path]:
    """Make the cgroup for the block, and yield its folder; processes join by its file `cgroup.procs`.

    Raises:
        OSError: the machine does not let us.
    """
    quota = round(cores * _PERIOD_MICROSECONDS)
    unified = not (_CGROUPS / "cpu").is_dir()
    folder = (_CGROUPS if unified else _CGROUPS / "cpu") / f"stallscope-test-{os.getpid()}"
    folder.mkdir()
    try:
        if unified:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove it as soon as its last process, which has been killed, is gone."""
    deadline = time.monotonic() + 60.0
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.rmdir()
