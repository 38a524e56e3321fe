"""A run's data frames in files: complete and unchanged, or no files at all."""

from __future__ import annotations

import csv
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stallscope.model.analysis import Frames, pieces
from stallscope.model.analysis.data_frames import NAMES
from stallscope.model.analysis.export import FORMATS, export
from tests.analysis.scrapes import SCRAPES, of_gpu, of_host, of_rank, scraped

WORDS = ("instance", "phase", "gpu", "uuid", "mig", "name")


@pytest.fixture(scope="module")
def parts() -> Sequence[Frames]:
    """A run in several pieces; a host joins halfway, with label values that earlier pieces lack."""
    late = range(40, SCRAPES)
    everything = [
        *of_rank("resnet50", 0, uuid="GPU-a", world_size=2),
        *of_rank("resnet50", 1, uuid="GPU-b", world_size=2, instance="late:19400", only=late),
        *of_gpu("resnet50:19400", 0, "GPU-a"),
        *of_gpu("late:19400", 1, "GPU-b", only=late),
        *of_host("resnet50:19400"),
    ]
    with scraped(everything) as held:
        return list(pieces("resnet50", prometheus=held.url, start=held.start - 60, piece_bytes=60_000))


def together(parts: Sequence[Frames], name: str) -> pd.DataFrame:
    frame = pd.concat([dict(each.items())[name] for each in parts])
    plain: pd.DataFrame = frame.astype({word: str for word in WORDS if word in frame})
    return plain


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_parquet_preserves_frames_with_index_units_and_categories(parts: Sequence[Frames], tmp_path: Path) -> None:
    assert len(parts) > 1
    export(parts, tmp_path, "parquet")
    for name in NAMES:
        frame = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert frame.attrs["units"] == getattr(parts[0], name).attrs["units"]
        expected = together(parts, name)
        words = {word: str for word in (*WORDS, "state", "activity") if word in frame}
        pd.testing.assert_frame_equal(
            frame.astype(words)[expected.columns], expected.astype(words), check_like=True, check_index_type=False
        )
    assert set(pd.read_parquet(tmp_path / "gpu.parquet")["uuid"]) == {"GPU-a", "GPU-b"}


def test_csv_has_time_first_and_empty_cells_for_missing_values(parts: Sequence[Frames], tmp_path: Path) -> None:
    export(parts, tmp_path, "csv")
    lines = (tmp_path / "gpu.csv").read_text().splitlines()
    assert lines[0].startswith('"time","rank","instance","gpu","uuid"')
    assert sum(line.startswith('"time"') for line in lines) == 1
    frame = pd.read_csv(tmp_path / "gpu.csv", parse_dates=["time"], index_col="time")
    assert frame["sm_active_ratio"].isna().all()


def test_csv_has_the_same_digits_as_parquet(parts: Sequence[Frames], tmp_path: Path) -> None:
    for form in FORMATS:
        export(parts, tmp_path, form)
    for name in NAMES:
        frame = pd.read_parquet(tmp_path / f"{name}.parquet")
        words: Any = {word: str for word in (*WORDS, "state", "activity") if word in frame}
        found = pd.read_csv(
            tmp_path / f"{name}.csv",
            parse_dates=["time"],
            index_col="time",
            dtype={**frame.dtypes.to_dict(), **words},
        )
        # CSV does not distinguish a missing text from an empty one.
        empty = dict.fromkeys(words, "")
        pd.testing.assert_frame_equal(
            found.fillna(empty),
            frame.astype(dict.fromkeys(words, object)).fillna(empty).astype(words),
            check_index_type=False,
            rtol=1e-15,
        )


FORMULAS = ("=HYPERLINK(0)", "+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "'=HYPERLINK(0)", "=1,=2", '="quoted"')


def named(parts: Sequence[Frames], words: Sequence[str]) -> Frames:
    """Return the first piece with these words as phases."""
    frame = parts[0].phases
    phases = [words[row % len(words)] for row in range(len(frame))]
    changed = frame.assign(phase=pd.Categorical(phases))
    changed.attrs = frame.attrs
    return replace(parts[0], phases=changed)


def test_a_word_that_a_spreadsheet_would_execute_begins_with_an_apostrophe_in_csv(
    parts: Sequence[Frames], tmp_path: Path
) -> None:
    export([named(parts, FORMULAS)], tmp_path, "csv")
    with (tmp_path / "phases.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["phase"] for row in rows} == {f"'{word}" for word in FORMULAS}
    for row in rows:
        # No other cell begins like a formula, except for numbers.
        for name, cell in row.items():
            assert not cell.startswith(("=", "+", "@", "\t", "\r", "\n")), (name, cell)
            assert not cell.startswith("-") or float(cell) < 0, (name, cell)


def test_parquet_and_harmless_words_in_csv_are_unchanged(parts: Sequence[Frames], tmp_path: Path) -> None:
    harmless = ("forward", "it's", "a=b", "'quoted'", "naïve", "")
    for words in (FORMULAS, harmless):
        export([named(parts, words)], tmp_path, "parquet")
        assert set(pd.read_parquet(tmp_path / "phases.parquet")["phase"]) == set(words)
    export([named(parts, harmless)], tmp_path, "csv")
    assert set(pd.read_csv(tmp_path / "phases.csv", keep_default_na=False)["phase"]) == set(harmless)


def test_a_negative_number_stays_a_number_in_csv(parts: Sequence[Frames], tmp_path: Path) -> None:
    frame = parts[0].steps.assign(loss=-1.5)
    frame.attrs = parts[0].steps.attrs
    export([replace(parts[0], steps=frame)], tmp_path, "csv")
    assert set(pd.read_csv(tmp_path / "steps.csv")["loss"]) == {-1.5}


def test_the_result_describes_the_written_files(parts: Sequence[Frames], tmp_path: Path) -> None:
    written = export(parts, tmp_path / "new" / "folder", "parquet")
    for each in written.files:
        assert each.path == tmp_path / "new" / "folder" / f"{each.name}.parquet"
        assert each.bytes == each.path.stat().st_size
        assert each.rows == sum(len(getattr(part, each.name)) for part in parts)
    assert [each.name for each in written.files] == list(NAMES)
    assert (written.start, written.end, written.gaps) == (parts[0].start, parts[-1].end, 0)


def test_notes_of_all_pieces_are_listed_once(parts: Sequence[Frames], tmp_path: Path) -> None:
    noted = [replace(each, notes=("2 of 4 ranks", f"piece {number}")) for number, each in enumerate(parts[:2])]
    assert export(noted, tmp_path, "parquet").notes == ("2 of 4 ranks", "piece 0", "piece 1")


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_full_disk_leaves_the_old_files(parts: Sequence[Frames], tmp_path: Path, form: str) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.{form}").write_text("old")
    with pytest.raises(OSError, match="File too large"), files_no_larger_than(5_000):
        export(parts, tmp_path, form)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}
    assert len(list(tmp_path.iterdir())) == len(NAMES)


def test_a_server_that_fails_half_way_leaves_nothing(parts: Sequence[Frames], tmp_path: Path) -> None:
    def failing() -> Iterator[Frames]:
        yield parts[0]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        export(failing(), tmp_path, "parquet")
    assert not list(tmp_path.iterdir())
