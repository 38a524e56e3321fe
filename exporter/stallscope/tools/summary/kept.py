"""The folder with the summaries of earlier runs, for `stallscope compare`; bounded in number and size."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stallscope.common.whole_files import whole_file

VARIABLE = "XDG_STATE_HOME"
MOST_FILES = 100
MOST_BYTES = 8 << 20
_LONGEST_NAME = 60
_PRIVATE = 0o700


def folder() -> Path | None:
    """Return the folder; None without a home."""
    state, home = Path(os.environ.get(VARIABLE, "")), Path(os.environ.get("HOME", ""))
    if not state.is_absolute():
        state = home / ".local" / "state"
    return state / "stallscope" / "summaries" if state.is_absolute() else None


def find(name: str) -> Path:
    """Return the path of a summary: a file, or a name in the folder of summaries."""
    path, place = Path(name), folder()
    return place / name if place is not None and path.name == name and not path.exists() else path


def keep(document: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """Write a summary into the folder, and delete the oldest ones over the limits.

    Returns:
        Its path, and that of the newest earlier summary of the same program, if there is one.

    Raises:
        OSError: the folder can't be written.
    """
    place = folder()
    if place is None:
        raise FileNotFoundError(2, "no home folder", "HOME")
    place.mkdir(_PRIVATE, parents=True, exist_ok=True)
    program = "".join(each if each.isalnum() or each in "-_" else "-" for each in str(document["program"]))
    prefix = program[:_LONGEST_NAME] or "program"
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    # A program whose name begins with that of another one has no time after it.
    earlier = sorted(place.glob(f"{prefix}.[0-9]*T[0-9]*.*.json"))
    path = place / f"{prefix}.{moment}.{os.getpid()}.json"
    with whole_file(path) as file:
        file.write(json.dumps(document, indent=2).encode() + b"\n")
    _bound(place, path)
    known = [each for each in earlier if each != path and each.exists()]
    return path, known[-1] if known else None


def _bound(place: Path, newest: Path) -> None:
    """Delete the oldest summaries over the limits."""
    found = []
    for path in place.glob("*.json"):
        try:
            status = path.stat()
        except OSError:  # deleted by another run
            continue
        found.append((path == newest, status.st_mtime, status.st_size, path))
    size = 0
    for number, (_, _, length, path) in enumerate(sorted(found, reverse=True), 1):
        size += length
        if path != newest and (number > MOST_FILES or size > MOST_BYTES):
            path.unlink(missing_ok=True)
