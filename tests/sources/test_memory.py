from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallscope.sources.memory import Memory
from tests.sources.recorded import copy_of, edit, source_at, values

PAGE = os.sysconf("SC_PAGE_SIZE")


def test_every_family_is_read() -> None:
    assert values(source_at(Memory, "workstation")) == {
        ("memory_total_bytes",): 32654320 * 1024,
        ("memory_available_bytes",): 21456789 * 1024,
        ("page_cache_bytes",): (16234567 - 734567) * 1024,  # without shared memory
        ("swap_in_bytes_total",): 25 * PAGE,
        ("swap_out_bytes_total",): 1750 * PAGE,
        ("major_page_faults_total",): 12345,
        ("oom_kills_total",): 2,
    }


def test_what_an_old_kernel_does_not_tell_is_absent() -> None:
    read = values(source_at(Memory, "old_kernel"))
    assert ("memory_total_bytes",) in read
    assert ("memory_available_bytes",) not in read
    assert ("oom_kills_total",) not in read
    assert read["major_page_faults_total",] == 600


def test_page_cache_never_falls_below_zero() -> None:
    assert values(source_at(Memory, "old_kernel"))["page_cache_bytes",] == 0


def test_a_missing_vmstat_takes_only_its_own_series_along(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc/vmstat").unlink()
    assert set(values(source_at(Memory, root))) == {
        ("memory_total_bytes",),
        ("memory_available_bytes",),
        ("page_cache_bytes",),
    }


def test_a_later_reading_shows_the_present(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    source = source_at(Memory, root)
    before = values(source)
    edit(root / "proc/vmstat", "oom_kill 2", "oom_kill 3")
    assert values(source) == {**before, ("oom_kills_total",): 3}


@pytest.mark.parametrize(
    ("file", "line", "nonsense"),
    [
        ("meminfo", " 21456789 kB", " plenty kB"),
        ("meminfo", " 21456789 kB", ""),
        ("vmstat", "pgmajfault 12345", "pgmajfault 12e45"),
    ],
)
def test_nonsense_is_refused_with_file_and_line(tmp_path: Path, file: str, line: str, nonsense: str) -> None:
    root = copy_of("workstation", tmp_path)
    edit(root / "proc" / file, line, nonsense)
    with pytest.raises(ValueError, match=f"proc/{file}: expected a name and a whole number: '.*{nonsense}'"):
        values(source_at(Memory, root))


def test_nonsense_in_a_line_that_nobody_needs_does_no_harm(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    edit(root / "proc/vmstat", "numa_hit 9123", "numa_hit ?")
    assert len(values(source_at(Memory, root))) == 7


@pytest.mark.parametrize(("content", "problem"), [("", "expected a line MemTotal"), ("MemTotal:  3265", "middle of a")])
def test_a_file_that_breaks_off_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc/meminfo").write_text(content)
    with pytest.raises(ValueError, match=f"proc/meminfo: .*{problem}"):
        values(source_at(Memory, root))


def test_a_wrong_root_is_a_failure_and_not_an_absence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="proc/meminfo"):
        values(source_at(Memory, tmp_path))
