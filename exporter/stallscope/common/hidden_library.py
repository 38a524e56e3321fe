"""Modules of the standard library that files of the program hide. Imported only in a program that has such a file."""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FOLDER = os.path.dirname(os.__file__)
own: dict[str, ModuleType] = {}
"""Modules of the library that are hidden and were imported in a block, by name."""


class Block:
    """The block in which one thread imports hidden modules of the library."""

    __slots__ = ("_before", "_folders_in_front", "_names", "_theirs", "_thread")

    def __init__(self, names: frozenset[str], folders_in_front: int) -> None:
        """Prepare the block.

        Args:
            names: the hidden modules.
            folders_in_front: number of entries of `sys.path` that are searched before the library.
        """
        self._names = names
        self._folders_in_front = folders_in_front
        self._thread = 0
        self._theirs: dict[str, ModuleType] = {}
        self._before: set[str] = set()

    def __enter__(self) -> None:
        self._thread = get_ident()
        for name, module in self._present():
            if is_of_library(module):
                self._before.add(name)
            else:
                self._theirs[name] = sys.modules.pop(name)
        for name, module in own.items():
            if name.partition(".")[0] in self._names:
                sys.modules.setdefault(name, module)
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name, module in self._present():
            if name not in self._before and is_of_library(module):
                own[name] = sys.modules.pop(name)
        sys.modules.update(self._theirs)

    def find_spec(self, name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find a hidden module in the library."""
        if path is not None or name not in self._names or get_ident() != self._thread:
            return None
        return _spec_in(name, sys.path[self._folders_in_front :])

    def _present(self) -> list[tuple[str, ModuleType]]:
        return [pair for pair in list(sys.modules.items()) if pair[0].partition(".")[0] in self._names]


def is_file(name: str, folders: tuple[str, ...]) -> bool:
    """Return whether a module of the folders would be imported; not for a folder of data, or a built-in module."""
    import _imp

    if name in sys.builtin_module_names or _imp.is_frozen(name):
        return False
    spec = _spec_in(name, list(folders))
    return spec is not None and spec.loader is not None


def is_of_library(module: ModuleType) -> bool:
    """Return whether a module is one of the standard library, and not a file of the program."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None)
    if not isinstance(origin, str):
        return False
    inside = origin.startswith(_FOLDER + os.sep) and "-packages" + os.sep not in origin
    return inside or origin in ("built-in", "frozen")


def _spec_in(name: str, folders: list[str]) -> ModuleSpec | None:
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    spec: ModuleSpec | None = finder.find_spec(name, folders)
    return spec
