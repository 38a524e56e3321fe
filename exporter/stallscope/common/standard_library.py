"""Imports from the standard library, although a file of the program has the name of one of its modules.

Python searches the folder of the script first, so that a `signal.py` or `queue.py` in it hides the library's module.
Measuring must not execute such a file, nor keep the program from importing it. In the block

    with standard_library():
        import json

`json`, and each module that it imports, is the library's. Afterwards `sys.modules` has the program's modules again.
Almost no program has such a file; then the block does nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from stallscope.common.hidden_library import Block

_FOLDER = os.path.dirname(os.__file__)
_ARCHIVE = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
_front: tuple[str, ...] = ()
_hidden: frozenset[str] = frozenset()


class _Nothing:
    """The block in a program that hides no module."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


_nothing = _Nothing()


def standard_library() -> Block | _Nothing:
    """Return a context manager: in its block, this thread imports modules of the standard library."""
    names = hidden()
    if not names:
        return _nothing
    from stallscope.common.hidden_library import Block

    return Block(names, len(_front))


def hidden() -> frozenset[str]:
    """Return the names of the library's modules that files in front of it on `sys.path` hide."""
    global _front, _hidden
    front = _in_front()
    if front != _front:
        _front, _hidden = front, hidden_by(front)
    return _hidden


def hidden_by(folders: tuple[str, ...]) -> frozenset[str]:
    """Return the names of the library's modules that files of these folders hide."""
    found: set[str] = set()
    for folder in folders:
        try:
            found.update([name.partition(".")[0] for name in os.listdir(folder or ".")])
        except (OSError, TypeError, ValueError):  # an archive, or an entry of some other kind
            continue
    found &= sys.stdlib_module_names
    if not found:
        return frozenset()
    from stallscope.common.hidden_library import is_file

    return frozenset([name for name in found if is_file(name, folders)])


def loaded(name: str) -> ModuleType | None:
    """Return a module of the library that is loaded already, and not a file of the program with its name."""
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] not in hidden():
        return module
    from stallscope.common.hidden_library import is_of_library, own

    return module if is_of_library(module) else own.get(name)


def _in_front() -> tuple[str, ...]:
    """Return the entries of `sys.path` that are searched before the standard library."""
    for position, entry in enumerate(sys.path):
        if entry == _FOLDER or (isinstance(entry, str) and entry.endswith(_ARCHIVE)):
            return tuple(sys.path[:position])
    return ()
