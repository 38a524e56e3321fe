"""Write a run's data frames to Parquet or CSV files; one piece of the run is in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from stallscope.common.whole_files import whole_files
from stallscope.model.analysis.data_frames import NAMES, Frames
from stallscope.model.analysis.runs import Run

FORMATS = ("parquet", "csv")
_FORMULA = re.compile(r"^'*[=+\-@\t\r\n]")
"""Start of a cell that a spreadsheet executes. Leading apostrophes count, so that different words stay different."""


@dataclass(frozen=True)
class Written:
    """One file."""

    name: str
    """Name of the data frame."""
    path: Path
    rows: int
    bytes: int


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    run: Run
    start: float
    """Unix time before the first row."""
    end: float
    resolution: float
    """Seconds between two rows of the same subject."""
    files: tuple[Written, ...]
    gaps: int
    """Number of times that a rank's next row came later than three usual intervals."""
    notes: tuple[str, ...]
    """Notes of all pieces, without duplicates."""


def export(pieces: Iterable[Frames], folder: Path, form: str) -> Export:
    """Write `steps`, `phases`, `gpu`, `host` and `values`, each to a file of that name.

    All files are replaced, or none: an error leaves the old files unchanged.

    Args:
        pieces: pieces of one run in the order of time, at least one.
        folder: target folder; created if missing.
        form: `parquet` or `csv`.

    Raises:
        OSError: a file can't be written.
        PrometheusError: the server gave no valid response.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{form}" for name in NAMES]
    first = last = None
    gaps = 0
    notes: dict[str, None] = {}
    with whole_files(paths) as files:
        with ExitStack() as stack:
            sheets = [_Sheet(file, form) for file in files]
            for sheet in sheets:
                stack.callback(sheet.close)
            for piece in pieces:
                for sheet, (_, frame) in zip(sheets, piece.items(), strict=True):
                    sheet.add(frame)
                first, last = first or piece, piece
                gaps += piece.gaps
                notes |= dict.fromkeys(piece.notes)
        if first is None or last is None:
            raise ValueError("pieces: expected at least one piece")
        sizes = [file.tell() for file in files]
    written = tuple(
        Written(name, path, sheet.rows, size)
        for name, path, sheet, size in zip(NAMES, paths, sheets, sizes, strict=True)
    )
    return Export(first.run, first.start, last.end, first.resolution, written, gaps, tuple(notes))


class _Sheet:
    """A file to which data frames with the same columns are appended."""

    def __init__(self, file: BinaryIO, form: str) -> None:
        self.rows = 0
        self._file = file
        self._form = form
        self._schema: Any = None
        self._writer: Any = None

    def add(self, frame: pd.DataFrame) -> None:
        """Append the rows of a data frame."""
        if self._writer is None:
            self._schema = _schema(frame)
            self._writer = (
                pyarrow.csv.CSVWriter(self._file, self._schema)
                if self._form == "csv"
                else pyarrow.parquet.ParquetWriter(self._file, self._schema, compression="zstd")
            )
        if self._form == "csv":
            frame = _without_formulas(frame)
        self._writer.write_table(pa.Table.from_pandas(frame, schema=self._schema))
        self.rows += len(frame)

    def close(self) -> None:
        """Write the footer of the file."""
        if self._writer is not None:
            self._writer.close()


def _without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Prefix words that a spreadsheet would execute as formulas with an apostrophe; numbers are unchanged."""
    plain = {
        name: frame[name].cat.rename_categories([_FORMULA.sub(r"'\g<0>", word) for word in frame[name].cat.categories])
        for name in frame.columns
        if isinstance(frame[name].dtype, pd.CategoricalDtype)
    }
    harmless: pd.DataFrame = frame.assign(**plain)
    return harmless


def _schema(frame: pd.DataFrame) -> Any:
    """Return the Arrow schema: time first, and one type for all words, whatever words a piece contains."""
    found = pa.Schema.from_pandas(frame)
    word = pa.dictionary(pa.int32(), pa.string())
    units = frame.attrs["units"]
    fields = [
        pa.field(
            field.name,
            word if pa.types.is_dictionary(field.type) else field.type,
            metadata={"unit": units[field.name]} if field.name in units else None,
        )
        for field in found
    ]
    # pandas restores frame.attrs from this metadata.
    metadata = {**found.metadata, b"PANDAS_ATTRS": json.dumps(frame.attrs).encode()}
    return pa.schema([fields[-1], *fields[:-1]], metadata=metadata)
