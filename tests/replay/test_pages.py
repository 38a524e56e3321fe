"""The file format of a recording."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.lab.replay.pages import FORMAT, VERSION, Recording, RecordingError, Writer

HEADER = {"start": 1_790_000_000.0, "stallscope": "0.1.0"}
PAGES = [
    '# HELP a text\na{x="1"} 1\na{x="2"} 2.50\nb 0\n',
    'a{x="1"} 1\nb 3\n',
    'a{x="1"} 1\na{x="2"} 2.50\nb 3\n',
]


def written(pages: Iterable[str], header: dict[str, object] | None = None) -> bytes:
    file = io.BytesIO()
    writer = Writer(file, HEADER if header is None else header)
    for second, page in enumerate(pages):
        writer.write(float(second), page)
    writer.close()
    return file.getvalue()


def recording(folder: Path, content: bytes) -> Recording:
    path = folder / "file.pages.gz"
    path.write_bytes(content)
    return Recording(path)


def read(found: Recording) -> list[tuple[float, dict[str, str], str]]:
    return [(page.time, dict(page.samples), page.error) for page in found.pages()]


def test_pages_are_read_as_they_were_written_without_their_comments(tmp_path: Path) -> None:
    found = recording(tmp_path, written(PAGES))
    assert found.header["start"] == HEADER["start"]
    assert read(found) == [
        (0.0, {'a{x="1"}': "1", 'a{x="2"}': "2.50", "b": "0"}, ""),
        (1.0, {'a{x="1"}': "1", "b": "3"}, ""),
        (2.0, {'a{x="1"}': "1", 'a{x="2"}': "2.50", "b": "3"}, ""),
    ]
    assert not found.is_cut


_SERIES = st.sampled_from([f'm{{l="{value}"}}' for value in ("a b", "ü", '\\"', "#", "} 1")] + ["n"])
_PAGE = st.dictionaries(_SERIES, st.floats(allow_nan=True).map(repr), max_size=6)


@given(st.lists(_PAGE, max_size=6))
def test_any_sequence_of_pages_survives(tmp_path_factory: pytest.TempPathFactory, pages: list[dict[str, str]]) -> None:
    texts = ["".join(f"{series} {value}\n" for series, value in page.items()) for page in pages]
    found = recording(tmp_path_factory.mktemp("pages"), written(texts))
    assert [samples for _, samples, _ in read(found)] == pages


def test_an_unchanged_page_adds_a_few_bytes_only() -> None:
    page = "".join(f'm{{gpu="{gpu}"}} {gpu}.5\n' for gpu in range(1000))
    assert len(written([page] * 100)) < 1.2 * len(written([page]))


def test_a_request_without_a_page_is_kept_with_its_reason(tmp_path: Path) -> None:
    file = io.BytesIO()
    writer = Writer(file, HEADER)
    writer.write(0.0, "a 1\n")
    writer.write_error(1.0, "no answer within 5 s")
    writer.write(2.0, "a 1\n")
    writer.close()
    assert [(time, error) for time, _, error in read(recording(tmp_path, file.getvalue()))] == [
        (0.0, ""),
        (1.0, "no answer within 5 s"),
        (2.0, ""),
    ]


def test_a_file_of_a_killed_process_has_the_pages_until_ten_seconds_before(tmp_path: Path) -> None:
    file = io.BytesIO()
    writer = Writer(file, HEADER)
    for second in range(40):
        writer.write(float(second), f"a {second}\n")
    found = recording(tmp_path, file.getvalue())  # not closed
    times = [page.time for page in found.pages()]
    assert found.is_cut
    assert times == [float(second) for second in range(len(times))]
    assert len(times) >= 30


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path, kept: float) -> None:
    whole = written(f"a {second * 7919 % 1013}\n" for second in range(2000))
    found = recording(tmp_path, whole[: int(len(whole) * kept)])
    times = [page.time for page in found.pages()]
    assert found.is_cut
    assert times == [float(second) for second in range(len(times))]
    assert 0 < len(times) < 2000


def lines(*entries: object) -> bytes:
    return gzip.compress("".join(json.dumps(entry) + "\n" for entry in entries).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a recording of pages"),
        (b"text", "not a recording of pages"),
        (gzip.compress(b""), "not a recording of pages"),
        (gzip.compress(b"[1]\n"), "not a recording of pages"),
        (lines({"format": "else", "version": 1, "start": 0}), "not a recording of pages"),
        (lines({"format": FORMAT, "version": "1", "start": 0}), "not a recording of pages"),
        (lines({"format": FORMAT, "version": VERSION}), "not a recording of pages"),
        (lines({"format": FORMAT, "version": VERSION + 1, "start": 0, "stallscope": "9.0"}), "update Stallscope"),
        (written([])[:12], "ends before its first page"),
    ],
    ids=["empty", "text", "no line", "list", "format", "version", "no start", "newer", "cut"],
)
def test_another_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        recording(tmp_path, content)


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"No such file.*; name a file that `stallscope record --pages` wrote"):
        Recording(tmp_path / "none")


@pytest.mark.parametrize(
    "entry",
    [
        {},
        [],
        {"t": "now"},
        {"t": -1},
        {"t": 1, "set": {"0": "1"}},
        {"t": 1, "new": ["a"], "set": {"0": "much"}},
        {"t": 1, "new": ["a"], "set": {"x": "1"}},
        {"t": 1, "gone": [3]},
        {"t": 1, "new": 5},
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, entry: object) -> None:
    found = recording(tmp_path, lines({"format": FORMAT, "version": VERSION, "start": 0}, entry))
    with pytest.raises(RecordingError, match="line 2 is not a page"):
        list(found.pages())
