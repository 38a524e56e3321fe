"""Read a JSON object piece by piece, so that a file of gigabytes needs little memory."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tests.external.errors import ExternalError

_CHUNK = 1 << 16
MAX_VALUE = 64 << 20
"""Longest single value in characters: an element of a streamed array, or the whole value of another key."""
_GZIP = b"\x1f\x8b"
_BLANK = " \t\r\n"
_INCOMPLETE = (EOFError, zlib.error)


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a text file, compressed with gzip or not.

    Raises:
        ExternalError: the file can't be read; also while it is used.
    """
    try:
        with path.open("rb") as raw:
            is_compressed = raw.read(len(_GZIP)) == _GZIP
        if is_compressed:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                yield file
        else:
            with path.open(encoding="utf-8") as file:
                yield file
    except UnicodeDecodeError:
        raise ExternalError(f"{path.name}: expected text in UTF-8; name a text file, or its copy with gzip") from None
    except _INCOMPLETE:
        raise ExternalError(f"{path.name}: the compressed file is damaged or cut off; copy it again") from None
    except OSError as problem:
        raise ExternalError(f"{path.name}: {problem.strerror or problem}; name a file that can be read") from None


def members(path: Path, streamed: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each member of a file's object.

    Args:
        path: the file, compressed with gzip or not.
        streamed: keys whose value is an array; each of its elements is yielded by itself.

    Raises:
        ExternalError: the file can't be read, or is not such an object.
    """
    with opened(path) as file:
        yield from _Reader(path.name, file).members(streamed)


class _Reader:
    """The decoder of one file."""

    def __init__(self, name: str, file: TextIO) -> None:
        self._name = name
        self._file = file
        self._text = ""
        self._at = 0
        self._is_over = False
        self._decoder = json.JSONDecoder()

    def members(self, streamed: Collection[str]) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._next() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise self._invalid()
            self._expect(":")
            if key in streamed and self._next() == "[":
                self._at += 1
                for element in self._elements():
                    yield key, element
            else:
                yield key, self._value()
            if self._separator("}"):
                return

    def _elements(self) -> Iterator[Any]:
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            if self._separator("]"):
                return

    def _separator(self, end: str) -> bool:
        """Read what follows a value; return True at the end of its array or object."""
        found = self._next()
        if found not in (",", end):
            raise self._invalid()
        self._at += 1
        return found == end

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise self._invalid()
        self._at += 1

    def _next(self) -> str:
        """Return the next character that is not blank; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANK:
                    return self._text[self._at]
                self._at += 1
            if not self._read():
                return ""

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError):
                if self._read():
                    continue
                raise self._invalid() from None
            if end == len(self._text) and self._read():
                continue  # the digits of a number may go on
            self._at = end
            return value

    def _read(self) -> bool:
        """Read more text; return False at the end of the file."""
        if self._is_over:
            return False
        kept = self._text[self._at :]
        if len(kept) > MAX_VALUE:
            raise ExternalError(
                f"{self._name}: a single value is longer than {MAX_VALUE >> 20} MiB; use one of the documented formats"
            )
        # As much again as there is: a long value is then decoded a few times only.
        chunk = self._file.read(max(_CHUNK, len(kept)))
        self._is_over = not chunk
        self._text, self._at = kept + chunk, 0
        return bool(chunk)

    def _invalid(self) -> ExternalError:
        return ExternalError(f"{self._name}: not a complete JSON object; write it again")
