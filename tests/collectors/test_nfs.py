from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.collectors.base import NotPresent
from stallscope.node.collectors.nfs import Nfs
from tests.collectors.recorded import copy_of, edit, source_at, values

FILE = "proc/self/mountstats"


def test_every_family_is_read_of_a_version_4_mount() -> None:
    read = values(source_at(Nfs, "gpu_server"))
    assert read["nfs_read_bytes_total", "/mnt/data"] == 1210214218  # from the server, not from the page cache
    assert read["nfs_operations_total", "/mnt/data"] == 1 + 1298 + 10 + 500
    assert read["nfs_operation_wait_seconds_total", "/mnt/data"] == pytest.approx(
        (0 + 1 + 6 + 79386 + 2 + 48 + 4 + 1553) / 1000
    )


def test_statistics_of_old_kernels_lack_the_count_of_errors() -> None:
    assert values(source_at(Nfs, "old_kernel")) == {
        ("nfs_read_bytes_total", "/data"): 5242880,
        ("nfs_operations_total", "/data"): 5,
        ("nfs_operation_wait_seconds_total", "/data"): pytest.approx(0.1),
    }


def test_of_two_mounts_at_one_place_the_last_counts() -> None:
    read = values(source_at(Nfs, "gpu_server"))
    assert read["nfs_read_bytes_total", "/mnt/home"] == 4194304000
    assert read["nfs_operations_total", "/mnt/home"] == 1 + 2000 + 300


def test_a_queue_time_that_fell_below_zero_in_the_kernel_is_left_out() -> None:
    read = values(source_at(Nfs, "gpu_server"))
    assert read["nfs_operation_wait_seconds_total", "/mnt/home"] == pytest.approx((500 + 30000 + 1500) / 1000)


def test_blanks_in_a_mount_point_are_unescaped() -> None:
    assert values(source_at(Nfs, "gpu_server"))["nfs_operations_total", "/mnt/my sets"] == 1


def test_other_file_systems_and_the_server_s_own_are_left_out() -> None:
    assert {key[1] for key in values(source_at(Nfs, "gpu_server"))} == {"/mnt/data", "/mnt/home", "/mnt/my sets"}
    with pytest.raises(NotPresent):
        source_at(Nfs, "workstation").read()  # it exports (nfsd), but mounts nothing


def test_a_machine_without_the_file_has_no_series_and_no_failure(tmp_path: Path) -> None:
    with pytest.raises(NotPresent):
        source_at(Nfs, tmp_path).read()


def test_counters_follow_the_kernel(tmp_path: Path) -> None:
    root = copy_of("old_kernel", tmp_path)
    source = source_at(Nfs, root)
    values(source)
    edit(root / FILE, "READ: 5 5 0 640 5243520 10 90 101", "READ: 7 7 0 896 7340928 15 185 203")
    edit(root / FILE, "0 0 0 0 5242880", "0 0 0 0 7340032")
    assert values(source) == {
        ("nfs_read_bytes_total", "/data"): 7340032,
        ("nfs_operations_total", "/data"): 7,
        ("nfs_operation_wait_seconds_total", "/data"): pytest.approx(0.2),
    }


def test_a_mount_that_goes_takes_its_series_along(tmp_path: Path) -> None:
    root = copy_of("old_kernel", tmp_path)
    source = source_at(Nfs, root)
    values(source)
    (root / FILE).write_text("device rootfs mounted on / with fstype rootfs\n")
    with pytest.raises(NotPresent):
        source.read()


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("READ: 5 5 0 640 5243520 10 90 101", "READ: 5 5 0 640 5243520 ten 90 101", "READ: 5 5 0 640 5243520 ten"),
        ("READ: 5 5 0 640 5243520 10 90 101", "READ: 5 5 0", "READ: 5 5 0'"),
        ("0 0 0 0 5242880 0 1280 0", "0 0 0 0", "bytes:\\\\t0 0 0 0'"),
        ("\tbytes:\t0 0 0 0 5242880 0 1280 0\n", "", "device nas:/data"),
        ("statvers=1.0", "statvers=2.0", "device nas:/data .* statvers=2.0'"),
    ],
)
def test_nonsense_is_refused_with_file_and_line(tmp_path: Path, before: str, after: str, shown: str) -> None:
    root = copy_of("old_kernel", tmp_path)
    edit(root / FILE, before, after)
    with pytest.raises(ValueError, match=f"mountstats: expected .*: [\"']{shown}"):
        values(source_at(Nfs, root))


@pytest.mark.parametrize("last", ["per-op statistics", "RPC iostats version: 1.0", "device nas:/data mounted on /data"])
def test_a_file_that_breaks_off_is_refused_wherever_it_does(tmp_path: Path, last: str) -> None:
    root = copy_of("old_kernel", tmp_path)
    lines = (root / FILE).read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if last in line)
    (root / FILE).write_text("\n".join(lines[: end + 1]) + "\n")
    with pytest.raises(ValueError, match="mountstats: expected a line of bytes and per-op statistics"):
        values(source_at(Nfs, root))
    (root / FILE).write_text("\n".join(lines[: end + 1]))
    with pytest.raises(ValueError, match="mountstats: the file ends in the middle"):
        values(source_at(Nfs, root))
