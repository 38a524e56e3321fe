r"""The file format of a recording: an exporter's pages with their times.

The file is gzip-compressed JSON, one object on each line. The first line is the header. Each further line is one page,
as the difference to the page before: `new` has series that appear for the first time, which are numbered in that order;
`set` has the values that changed, by number; `gone` has the numbers of series that are no longer on the page. `error`
replaces a page that the exporter did not return. Values are text, so that nothing is rounded.

    {"format": "stallscope-pages", "version": 1, "start": 1790000000.0, …}
    {"t": 0.012, "new": ["stallscope_gpu_up{gpu=\"0\"}"], "set": {"0": "1"}}
    {"t": 1.013, "set": {"0": "0"}}
    {"t": 2.013, "error": "no answer within 5 s"}

A file that was cut off is valid up to the cut.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

FORMAT = "stallscope-pages"
VERSION = 1
MAX_BYTES = 16 * 2**20
"""Default limit of a file's size: about an hour of eight GPUs."""
_FLUSH_SECONDS = 10.0
"""Seconds that are lost at most if the recording process is killed."""
_MAX_LINE = 64 * 2**20
_MAX_SERIES = 1_000_000
_FIRST_BYTES = b"\x1f\x8b"
_NO_RECORDING = "not a recording of pages; write one with `stallscope record --pages 10m FILE`"


class RecordingError(Exception):
    """A file is not a recording of pages, or can't be read; the message is one line."""


class Page(NamedTuple):
    """One page of a recording."""

    time: float
    """Seconds since the first page was requested."""
    samples: Mapping[str, str]
    """Values by series, as on the page. The next page changes this mapping; copy what is kept."""
    error: str
    """Why there is no page; empty if there is one."""


class Writer:
    """Writes pages into a file."""

    def __init__(self, file: BinaryIO, header: Mapping[str, Any]) -> None:
        """Write the header.

        Args:
            file: opened for writing; it stays open.
            header: what is known about the recording; format and version are added.

        Raises:
            OSError: the file can't be written.
        """
        self._raw = file
        # Level 6 takes a quarter less CPU time than the default, 9, for 3 % more bytes.
        self._file = gzip.GzipFile("", "wb", 6, fileobj=file, mtime=0)
        self._numbers: dict[str, int] = {}
        self._values: dict[str, str] = {}
        self._flushed = 0.0
        self._write({"format": FORMAT, "version": VERSION, **header})
        self._flush()

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._raw.tell()

    def write(self, time: float, page: str) -> None:
        """Write a page.

        Args:
            time: seconds since the first page was requested.
            page: in the Prometheus text format; comments are left out.

        Raises:
            OSError: the file can't be written.
        """
        changed: dict[int, str] = {}
        new: list[str] = []
        values: dict[str, str] = {}
        for line in page.splitlines():
            series, _, value = line.rpartition(" ")
            if not series or series[0] == "#":
                continue
            number = self._numbers.get(series)
            if number is None:
                number = self._numbers[series] = len(self._numbers)
                new.append(series)
            values[series] = value
            if self._values.get(series) != value:
                changed[number] = value
        gone = [self._numbers[series] for series in self._values if series not in values]
        self._values = values
        parts: dict[str, Any] = {"new": new, "set": changed, "gone": gone}
        self._write({"t": round(time, 3), **{key: part for key, part in parts.items() if part}})
        if time - self._flushed >= _FLUSH_SECONDS:
            self._flushed = time
            self._flush()

    def write_error(self, time: float, error: str) -> None:
        """Write that the exporter returned no page.

        Raises:
            OSError: the file can't be written.
        """
        self._write({"t": round(time, 3), "error": error})

    def close(self) -> None:
        """Complete the compressed data.

        Raises:
            OSError: the file can't be written.
        """
        self._file.close()
        self._raw.flush()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def _flush(self) -> None:
        self._file.flush()
        self._raw.flush()


class Recording:
    """A recording that is read from a file, page by page."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            RecordingError: it is not a recording that this version reads.
        """
        self.path = path
        self.is_cut = False
        """True once the pages were read and the file ended within one."""
        try:
            with path.open("rb") as file:
                if file.read(len(_FIRST_BYTES)) != _FIRST_BYTES:
                    raise RecordingError(f"{path}: {_NO_RECORDING}")
            with gzip.open(path) as file:
                self.header = self._header(file.readline(_MAX_LINE))
        except OSError as problem:
            raise RecordingError(
                f"{path}: {problem.strerror or problem}; name a file that `stallscope record --pages` wrote"
            ) from None
        except (EOFError, zlib.error):
            raise RecordingError(f"{path}: the file ends before its first page; record again") from None

    def pages(self) -> Iterator[Page]:
        """Yield the pages in their order; the last one is before the place where the file is cut.

        Raises:
            RecordingError: a line is invalid.
        """
        series: list[str] = []
        samples: dict[str, str] = {}
        last = 0.0
        with gzip.open(self.path) as file:
            for number in range(2**31):
                try:
                    line = file.readline(_MAX_LINE)
                except (EOFError, zlib.error, OSError):
                    self.is_cut = True
                    return
                if not line:
                    return
                if not line.endswith(b"\n"):
                    self.is_cut = True
                    return
                if number == 0:
                    continue
                try:
                    entry = json.loads(line)
                    last = _apply(entry, series, samples, last)
                except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                    raise RecordingError(
                        f"{self.path}: line {number + 1} is not a page; the file is damaged, record again"
                    ) from None
                yield Page(last, samples, str(entry.get("error", "")))

    def _header(self, line: bytes) -> Mapping[str, Any]:
        try:
            header = json.loads(line)
            is_pages = header["format"] == FORMAT and type(header["version"]) is int
            float(header["start"])
        except (ValueError, TypeError, KeyError):
            is_pages = False
        if not is_pages:
            raise RecordingError(f"{self.path}: {_NO_RECORDING}")
        if header["version"] > VERSION:
            raise RecordingError(
                f"{self.path}: recorded by Stallscope {str(header.get('stallscope', '?'))[:20]} in version "
                f"{header['version']} of the format, this one reads up to {VERSION}; update Stallscope"
            )
        found: Mapping[str, Any] = header
        return found


def _apply(entry: Mapping[str, Any], series: list[str], samples: dict[str, str], last: float) -> float:
    """Apply the differences of one line to the samples, and return its time."""
    time = float(entry["t"])
    if time < last:
        raise ValueError
    series.extend(map(str, entry.get("new", ())))
    if len(series) > _MAX_SERIES:
        raise ValueError
    for number in entry.get("gone", ()):
        samples.pop(series[number], None)
    for number, value in entry.get("set", {}).items():
        float(value)
        samples[series[int(number)]] = value
    return time
