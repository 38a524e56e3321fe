from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stallscope.node.collectors.memory import Memory
from tests.collectors.recorded import copy_of, edit, source_at, values

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


def test_values_that_an_old_kernel_lacks_are_absent() -> None:
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


def test_an_invalid_line_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
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


V2 = "sys/fs/cgroup{}/memory.events"
V1 = "sys/fs/cgroup/memory{}/memory.oom_control"


class Kernel:
    """A tree whose cgroups' counters a test sets."""

    def __init__(self, folder: Path, file: str = V2) -> None:
        self.root = copy_of("workstation", folder)
        self.source = source_at(Memory, self.root)
        self._file = file
        self._total = 2

    def count(self, **kills: int) -> None:
        """Write counters by cgroup; two underscores stand for a slash."""
        for name, count in kills.items():
            path = self.root / self._file.format("/" + name.replace("__", "/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"low 0\nhigh 3\nmax 9\noom 1\noom_kill {count}\noom_group_kill 0\n")

    def killed(self) -> dict[str, object]:
        """Return the kills by cgroup after one more kill on the host."""
        edit(self.root / "proc/vmstat", f"oom_kill {self._total}\n", f"oom_kill {self._total + 1}\n")
        self._total += 1
        return self.shown()

    def shown(self) -> dict[str, object]:
        """Return the kills by cgroup."""
        return {key[1]: value for key, value in values(self.source).items() if key[0] == "cgroup_oom_kills_total"}


def test_kills_are_counted_by_cgroup_from_the_exporters_start(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.count(system=5, system__db=5, pods=7, pods__a=4, pods__b=3)
    assert kernel.shown() == {}
    kernel.count(pods=8, pods__b=4)
    assert kernel.killed() == {"/pods/b": 1}
    kernel.count(pods=9, pods__b=5, system=7, system__db=7)
    assert kernel.killed() == {"/pods/b": 2, "/system/db": 2}
    assert kernel.shown() == {"/pods/b": 2, "/system/db": 2}


def test_cgroups_are_only_read_where_the_host_has_counted_a_kill(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.count(pods=0)
    assert kernel.shown() == {}
    kernel.count(pods=1)
    assert kernel.shown() == {}
    assert kernel.killed() == {"/pods": 1}


def test_a_kill_in_a_cgroup_that_is_gone_is_counted_above_it(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.count(pods=0, pods__job=0, pods__job__container=0)
    assert kernel.shown() == {}
    shutil.rmtree(kernel.root / "sys/fs/cgroup/pods/job/container")
    kernel.count(pods=1, pods__job=1)
    assert kernel.killed() == {"/pods/job": 1}


def test_a_cgroup_made_again_counts_from_zero(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.count(job=4)
    assert kernel.shown() == {}
    kernel.count(job=1)
    assert kernel.killed() == {"/job": 1}


def test_a_first_version_cgroup_counts_its_own_kills_alone(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V1)
    (kernel.root / "sys/fs/cgroup/memory").mkdir(parents=True)
    (kernel.root / "sys/fs/cgroup/memory/memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
    )
    kernel.count(slurm=0, slurm__job_7=0)
    assert kernel.shown() == {}
    kernel.count(slurm=1, slurm__job_7=1)
    assert kernel.killed() == {"/slurm": 1, "/slurm/job_7": 1}


def test_the_cgroups_killed_in_last_are_shown_and_no_more_than_32(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.shown() == {}
    for number in range(40):
        kernel.count(**{f"job{number}": 1})
        shown = kernel.killed()
    assert list(shown) == [f"/job{number}" for number in range(8, 40)]


@pytest.mark.parametrize("content", ["oom 1\n", "oom_kill many\n", "oom_kill 1"])
def test_a_cgroup_without_a_readable_counter_is_left_out(tmp_path: Path, content: str) -> None:
    kernel = Kernel(tmp_path)
    kernel.count(pods=0, other=0)
    assert kernel.shown() == {}
    kernel.count(pods=1)
    (kernel.root / "sys/fs/cgroup/other/memory.events").write_text(content)
    assert kernel.killed() == {"/pods": 1}
