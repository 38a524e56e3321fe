from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.collectors.base import NotPresent
from stallscope.node.collectors.disk import Disk
from tests.collectors.recorded import copy_of, edit, source_at, values


def devices(root: str | Path) -> set[str]:
    return {key[1] for key in values(source_at(Disk, root))}


def test_every_family_is_read_for_every_physical_disk() -> None:
    assert values(source_at(Disk, "workstation")) == {
        ("disk_read_bytes_total", "nvme0n1"): 41234567 * 512,
        ("disk_written_bytes_total", "nvme0n1"): 61234568 * 512,
        ("disk_busy_seconds_total", "nvme0n1"): 345.678,
        ("disk_read_bytes_total", "sda"): 187654 * 512,
        ("disk_written_bytes_total", "sda"): 0,
        ("disk_busy_seconds_total", "sda"): 6.789,
    }


def test_partitions_and_devices_on_top_of_disks_are_left_out() -> None:
    assert devices("workstation") == {"nvme0n1", "sda"}  # and not loop0, dm-0, zram0, sda1, nvme0n1p1


def test_the_hidden_paths_below_a_multipath_disk_are_left_out() -> None:
    assert devices("gpu_server") == {"nvme0n1", "nvme1n1", "sda"}  # and not nvme0c0n1, md127


def test_a_slash_in_a_name_is_found_in_sysfs_as_the_kernel_writes_it_there() -> None:
    assert devices("old_kernel") == {"cciss/c0d0"}


def test_a_disk_that_comes_and_goes_is_noticed(tmp_path: Path) -> None:
    root = copy_of("old_kernel", tmp_path)
    source = source_at(Disk, root)
    values(source)
    (root / "sys/block/sdb/device").mkdir(parents=True)
    with (root / "proc/diskstats").open("a") as file:
        file.write("   8      16 sdb 1 0 8 1 1 0 16 1 0 1000 2\n")
    assert values(source)["disk_busy_seconds_total", "sdb"] == 1.0
    lines = (root / "proc/diskstats").read_text().splitlines()
    (root / "proc/diskstats").write_text("\n".join(lines[:-1]) + "\n")
    assert {key[1] for key in values(source)} == {"cciss/c0d0"}


def test_counters_follow_the_kernel(tmp_path: Path) -> None:
    root = copy_of("old_kernel", tmp_path)
    source = source_at(Disk, root)
    before = values(source)
    edit(
        root / "proc/diskstats",
        "1000 10 80000 5000 2000 20 160000 9000 0 7000",
        "1001 10 80008 5001 2000 20 160000 9000 1 7500",
    )
    after = values(source)
    assert after["disk_read_bytes_total", "cciss/c0d0"] == 80008 * 512
    assert after["disk_busy_seconds_total", "cciss/c0d0"] == 7.5
    assert after["disk_written_bytes_total", "cciss/c0d0"] == before["disk_written_bytes_total", "cciss/c0d0"]


def test_a_machine_without_disks_has_no_series_and_no_failure(tmp_path: Path) -> None:
    with pytest.raises(NotPresent):
        source_at(Disk, "container").read()
    root = copy_of("container", tmp_path)
    (root / "proc/diskstats").unlink()
    with pytest.raises(NotPresent):
        source_at(Disk, root).read()


@pytest.mark.parametrize(
    ("line", "nonsense"),
    [
        ("   8       0 sda 2345 12 187654 5678", "   8       0 sda 2345 12 lots 5678"),
        ("   8       0 sda 2345 12 187654 5678 0 0 0 0 1 6789 5678 0 0 0 0 0 0", "   8       0 sda 2345 12 187654"),
        ("   8       0 sda 2345", "   8\n   8       0 sda 2345"),
    ],
)
def test_nonsense_is_refused_with_file_and_line(tmp_path: Path, line: str, nonsense: str) -> None:
    root = copy_of("workstation", tmp_path)
    edit(root / "proc/diskstats", line, nonsense)
    with pytest.raises(ValueError, match=r"proc/diskstats: expected .*: '   8"):
        values(source_at(Disk, root))


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    whole = (root / "proc/diskstats").read_text()
    (root / "proc/diskstats").write_text(whole[: whole.index("nvme0n1") + 20])
    with pytest.raises(ValueError, match="middle of a line: ' 259       0 nvme0n1 512"):
        values(source_at(Disk, root))
