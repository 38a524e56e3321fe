"""Find the files of a job's ranks in a folder, by the rank in their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MAX_DEPTH = 5
"""Levels of subfolders: node, attempt, rank."""
_MAX_FILES = 100_000
_RANK = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)")
_LAST = re.compile(r"(?<!\d)(\d{1,7})(?:\.[a-z]{2,7})?")
"""A number at the end of the name, before a suffix such as .json."""


class NoFiles(Exception):
    """There are no files of ranks; the message is one line with the problem and what to do."""


def rank_files(path: Path) -> dict[int, list[Path]]:
    """Return the files of each rank, in the order of their paths.

    Args:
        path: a folder, or the prefix of the files' paths.

    Raises:
        NoFiles: the folder can't be read, or no file name has a rank.
    """
    is_folder = path.is_dir()
    folder, prefix = (path, "") if is_folder else (path.parent, path.name)
    try:
        present = list(_files(folder, _MAX_DEPTH if is_folder else 0))
    except OSError as error:
        raise NoFiles(f"{folder}: {error.strerror or error}; check the path") from None
    if len(present) > _MAX_FILES:
        raise NoFiles(f"{folder}: more than {_MAX_FILES:,} files; name the folder of one job")
    found: dict[int, list[Path]] = {}
    exact: dict[int, list[Path]] = {}
    for file in sorted(present):
        rank = _rank(file.name)
        if rank is not None and file.name.startswith(prefix):
            found.setdefault(rank, []).append(file)
            if file.name[len(prefix) :].partition(".")[0] == str(rank):
                exact.setdefault(rank, []).append(file)
    if not found:
        raise NoFiles(f"{path}: no file name contains a rank, as in rank_3 or dump_3.json; check the path")
    return dict(sorted((exact if prefix and exact else found).items()))


def _files(folder: Path, depth: int) -> Iterator[Path]:
    top = len(folder.parts)
    count = 0

    def failed(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    for parent, folders, names in os.walk(folder, onerror=failed):
        if len(Path(parent).parts) - top >= depth:
            folders.clear()
        for name in names:
            file = Path(parent, name)
            if file.is_file():  # a pipe would block
                yield file
                count += 1
                if count > _MAX_FILES:
                    return


def _rank(name: str) -> int | None:
    by_word = _RANK.findall(name)
    if by_word:
        return int(by_word[-1])
    last = re.search(_LAST.pattern + "$", name)
    return int(last[1]) if last else None
