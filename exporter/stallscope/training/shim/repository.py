"""Which commit a program is of, read from the repository's files: starting git would cost a process."""

from __future__ import annotations

import os
from contextlib import suppress

_HASH_LENGTHS = (40, 64)
_MAX_LINKS = 5
_MAX_PACKED = 4 << 20
"""Bytes of packed references that are looked through."""


def checked_out(place: str) -> str:
    """Return the checked-out commit of a work tree, by its `.git`.

    Raises:
        OSError, ValueError: it can't be read.
    """
    repository = place
    if os.path.isfile(place):  # work trees and submodules have a file that names the folder with their HEAD
        kind, _, elsewhere = _text(place).partition(":")
        if kind != "gitdir":
            return ""
        repository = os.path.join(os.path.dirname(place), elsewhere.strip())
    return _resolved(repository, _text(os.path.join(repository, "HEAD")))


def _resolved(repository: str, content: str) -> str:
    common = repository
    with suppress(OSError):  # a work tree's branches are stored in its main repository
        common = os.path.join(repository, _text(os.path.join(repository, "commondir")))
    for _ in range(_MAX_LINKS):
        kind, _, reference = content.partition(":")
        if kind != "ref":
            return content if len(content) in _HASH_LENGTHS and not content.strip("0123456789abcdef") else ""
        content = _reference(repository, common, reference.strip())
    return ""


def _reference(repository: str, common: str, reference: str) -> str:
    if not reference.startswith("refs/") or ".." in reference.split("/"):
        return ""
    for folder in (repository, common):
        with suppress(OSError):
            return _text(os.path.join(folder, reference))
    with open(os.path.join(common, "packed-refs"), encoding="utf-8", errors="replace") as file:
        for line in file.read(_MAX_PACKED).splitlines():
            found, _, name = line.partition(" ")
            if name == reference:
                return found
    return ""


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096).strip()
