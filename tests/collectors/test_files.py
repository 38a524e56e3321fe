from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.collectors.files import entries, exists, malformed, read_if_answered, read_text


def test_a_file_longer_than_one_read_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_text("0123456789abcde\n" * 20_000)
    assert read_text(str(file)) == "0123456789abcde\n" * 20_000


def test_what_the_kernel_hands_over_in_pieces_is_read_whole() -> None:
    # The kernel writes this file page by page; its last line is the only one of its kind.
    text = read_text("/proc/self/smaps")
    assert text.count("VmFlags:") == text.count("\nSize:") > 1


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "odd"
    file.write_bytes(b"caf\xe9 1\n")
    assert read_text(str(file)) == "caf� 1\n"


def test_a_file_that_breaks_off_is_refused_with_what_is_left_of_the_line(tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.write_text("one 1\ntwo")
    with pytest.raises(ValueError, match=r"short: the file ends in the middle of a line: 'two'"):
        read_text(str(file))


def test_a_missing_file_has_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_if_answered(str(tmp_path / "none")) is None
    assert read_if_answered(str(tmp_path / "file/none")) is None


def test_a_file_that_the_kernel_declines_to_fill_has_no_answer() -> None:
    # The loopback interface has the file, and reading it fails with EINVAL.
    assert read_if_answered("/sys/class/net/lo/speed") is None


def test_other_errors_are_failures(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_if_answered(str(tmp_path))


def test_entries_come_in_order_and_a_missing_folder_has_none(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    assert entries(str(tmp_path)) == ["a", "b"]
    assert entries(str(tmp_path / "c")) == []
    assert exists(str(tmp_path / "a"))
    assert not exists(str(tmp_path / "c"))


def test_a_long_line_is_cut_in_a_message() -> None:
    message = str(malformed("file", "x" * 1000, "expected y"))
    assert message.startswith("file: expected y: 'xxx")
    assert len(message) < 120
