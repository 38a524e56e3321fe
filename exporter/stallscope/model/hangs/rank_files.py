"""Find the files of a job's ranks in a folder, by the rank in their names.

If no name contains a rank, the name of the file's folder counts, as in torchelastic's `attempt_0/3/stderr.log`. Such a
folder also has other files of the rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stallscope.common.formatting import several

_MAX_DEPTH = 5
"""Levels of subfolders: node, attempt, rank."""
_MAX_FILES = 100_000
_MAX_PROBLEMS = 8
"""Maximum number of files with a message."""
_END = r"(?<!\d)(\d{1,7})(?:\.[a-z]{2,7})?$"
"""A number at the end of the name, before a suffix such as .json."""
_PLACES = [
    re.compile(r"rank[-_.=]?(\d{1,7})(?!\d)"),
    re.compile(rf"rank[-_.=]\D.*{_END}"),
    re.compile(r"(?:dump|trace|stacks?|worker)[-_.=]?(\d{1,7})(?!\d)"),
    re.compile(_END),
]
"""Places of the rank, best first. After a word, further numbers can be those of an attempt or a time. A name between
`rank` and the number is that of a host, which can contain a word and a number too, as in `rank_job-worker-0_12`."""


class Unreadable(Exception):
    """The files can't be read; the message is one line with the problem and what to do."""


class RankFiles(NamedTuple):
    """The files of each rank, in the order of their paths."""

    by_rank: dict[int, list[Path]]
    has_others: bool
    """True if the files of a rank include files that were written for another purpose."""


def rank_files(path: Path) -> RankFiles:
    """Return the files of each rank.

    Args:
        path: a folder, or the prefix of the files' paths.

    Raises:
        Unreadable: the folder can't be read, or no file name has a rank.
    """
    is_folder = path.is_dir()
    folder, prefix = (path, "") if is_folder else (path.parent, path.name)
    try:
        present = list(_files(folder, _MAX_DEPTH if is_folder else 0))
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror or error}; check the path") from None
    if len(present) > _MAX_FILES:
        raise Unreadable(f"{folder}: more than {_MAX_FILES:,} files; name the folder of one job")
    present = sorted(file for file in present if file.name.startswith(prefix))
    exact = [file for file in present if _rank(file.name) is not None and prefix and _follows(file.name, prefix)]
    found = _by_rank((file, file.name) for file in exact or present)
    if found:
        return RankFiles(found, False)
    found = _by_rank((file, file.parent.name) for file in present if file.parent != folder)
    if not found:
        raise Unreadable(f"{path}: no file name contains a rank, as in rank_3 or dump_3.json; check the path")
    return RankFiles(found, True)


def superseded(older: Sequence[Path]) -> list[str]:
    """Return the message about files that are older than another one of the same rank, if there are any."""
    if not older:
        return []
    more = f" and {len(older) - 1:,} more" if len(older) > 1 else ""
    return [f"{older[0]}{more}: older than another file of the same rank; remove it if it is not needed"]


def bounded(problems: Sequence[str], path: Path) -> list[str]:
    """Return the first messages about files, and how many more files were left out."""
    more = len(problems) - _MAX_PROBLEMS
    return [*problems[:_MAX_PROBLEMS], *([f"{path}: {several(more, 'more file')} left out"] if more > 0 else [])]


def _by_rank(names: Iterable[tuple[Path, str]]) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for file, name in names:
        rank = _rank(name)
        if rank is not None:
            found.setdefault(rank, []).append(file)
    return dict(sorted(found.items()))


def _follows(name: str, prefix: str) -> bool:
    """Return whether the rank directly follows the prefix."""
    return name[len(prefix) :].partition(".")[0].isdecimal()


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
            if _can_be_read(file):
                yield file
                count += 1
                if count > _MAX_FILES:
                    return


def _can_be_read(file: Path) -> bool:
    """Return whether this is a regular file, as a pipe would block; also true without the permission to find out."""
    try:
        return file.is_file()
    except OSError:
        return True


def _rank(name: str) -> int | None:
    for place in _PLACES:
        if found := place.findall(name):
            return int(found[-1])
    return None
