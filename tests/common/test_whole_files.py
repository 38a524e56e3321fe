"""Files that are whole, or as they were before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallscope.common.whole_files import reason, whole_file, whole_files


def test_a_file_takes_its_place_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [OSError("disk"), KeyboardInterrupt()])
def test_one_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(type(failure)):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_several_all_take_their_places_or_none(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_text("old")

    def write() -> None:
        with whole_files(paths) as (first, second):
            first.write(b"new")
            second.write(b"new" * (1 // 0))

    with pytest.raises(ZeroDivisionError):
        write()
    assert paths[0].read_text() == "old"
    assert not paths[1].exists()
    with whole_files(paths) as files:
        for file in files:
            file.write(b"new")
    assert [path.read_text() for path in paths] == ["new", "new"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/report")
    with whole_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "report").read_text() == "new"


def test_it_is_readable_for_whom_the_mask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "report"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o640


def test_why_it_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "report"
    with pytest.raises(FileNotFoundError) as failed, whole_file(path):
        pass
    assert reason(failed.value, path) == f"{path} can't be written: No such file or directory"
    assert reason(OSError(28, "No space left on device"), path) == f"{path} can't be written: No space left on device"
