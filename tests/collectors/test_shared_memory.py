from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallscope.node.collectors.base import NotPresent
from stallscope.node.collectors.shared_memory import SharedMemory
from tests.collectors.recorded import source_at, values


def test_size_and_use_are_those_of_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    read = values(source_at(SharedMemory, tmp_path))
    status = os.statvfs(tmp_path)
    assert read["shared_memory_total_bytes",] == status.f_blocks * status.f_frsize
    # Others write to the same file system meanwhile.
    assert read["shared_memory_used_bytes",] == pytest.approx(
        (status.f_blocks - status.f_bfree) * status.f_frsize, abs=2**28
    )
    assert len(read) == 2


def test_the_folder_below_the_given_root_is_read() -> None:
    assert len(values(source_at(SharedMemory, "workstation"))) == 2
    with pytest.raises(NotPresent, match="container/dev/shm"):
        source_at(SharedMemory, "container").read()


def test_a_file_system_without_a_limit_of_its_own_is_absent(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/shm").symlink_to("/proc")  # like a tmpfs without a limit, it counts no blocks
    with pytest.raises(NotPresent, match="no limit"):
        source_at(SharedMemory, tmp_path).read()
