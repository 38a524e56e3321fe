"""Atomic file writes: files are written next to their place, and renamed when complete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file; at the end of the block it takes its place, unless the block failed.

        with whole_file(Path("report.html")) as file:
            file.write(page)

    Args:
        path: where it is to be; a file that is there stays until the new one is complete. A link stays a link.

    Raises:
        OSError: it can't be written; nothing of it is left.
    """
    with whole_files([path]) as (file,):
        yield file


@contextmanager
def whole_files(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Write several files that belong together: all of them take their places, or none.

    Args:
        paths: where they are to be.

    Raises:
        OSError: one can't be written; nothing of any is left.
    """
    places = [path.resolve() for path in paths]
    drafts = [place.with_name(f".{place.name}.{os.getpid()}.part") for place in places]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(draft.open("wb")) for draft in drafts]
            yield list(files)
            for file in files:
                file.flush()
                os.fsync(file.fileno())  # a full disk fails here, before anything is replaced
        for draft, place in zip(drafts, places, strict=True):
            draft.replace(place)
    except BaseException as problem:
        for draft, place in zip(drafts, places, strict=True):
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            if isinstance(problem, OSError) and str(problem.filename) == str(draft):
                problem.filename = str(place)  # the name that the user knows
        raise


def reason(error: OSError, path: Path) -> str:
    """In one line, why a file could not be written."""
    return f"{error.filename or path} can't be written: {error.strerror or error}"
