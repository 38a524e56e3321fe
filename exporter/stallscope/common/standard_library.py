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
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FOLDER = os.path.dirname(os.__file__)
_ARCHIVE = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
_LOADED_BY_PYTHON = frozenset(
    ("_collections_abc", "abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat")
)
"""Modules that Python loads before a program; no file of the program hides them."""
OWN_FOLDERS = "import sys; sys.path[:] = [path for path in sys.path if path]; "
"""Beginning of the code of a Python that is started with `-c`: it does not search the working folder for modules."""
_front: tuple[str, ...] = ()
_hidden: frozenset[str] = frozenset()
_own: dict[str, ModuleType] = {}
"""Modules of the library that are hidden and were imported in a block, by name."""


def standard_library() -> _Block:
    """Return a context manager: in its block, this thread imports modules of the standard library."""
    return _Block(hidden())


def hidden() -> frozenset[str]:
    """Return the names of the library's modules that files in front of it on `sys.path` hide."""
    global _front, _hidden
    front = _in_front()
    if front != _front:
        _front, _hidden = front, _hidden_by(front)
    return _hidden


def loaded(name: str) -> ModuleType | None:
    """Return a module of the library that is loaded already, and not a file of the program with its name."""
    module = sys.modules.get(name)
    if name.partition(".")[0] not in hidden() or module is None or _is_of_library(module):
        return module
    return _own.get(name)


def release(folder: str) -> None:
    """Let the program import its own files of this folder, whatever of the library was imported before it started."""
    names = _hidden_by((folder,)) - _LOADED_BY_PYTHON
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and _is_of_library(module):
            _own[name] = sys.modules.pop(name)


def script_folder(command: list[str]) -> str:
    """Return the folder that a command line lets Python search first; empty for the working folder."""
    for argument in command[1:]:
        if argument in ("-c", "-m"):
            break
        if argument.endswith(".py"):
            return os.path.dirname(os.path.realpath(argument))
    return ""


class _Block:
    """The block in which one thread imports hidden modules of the library."""

    __slots__ = ("_before", "_names", "_theirs", "_thread")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._thread = 0
        self._theirs: dict[str, ModuleType] = {}
        self._before: set[str] = set()

    def __enter__(self) -> None:
        if not self._names:
            return
        self._thread = get_ident()
        for name, module in self._present():
            if _is_of_library(module):
                self._before.add(name)
            else:
                self._theirs[name] = sys.modules.pop(name)
        for name, module in _own.items():
            if name.partition(".")[0] in self._names:
                sys.modules.setdefault(name, module)
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        if not self._names:
            return
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name, module in self._present():
            if name not in self._before and _is_of_library(module):
                _own[name] = sys.modules.pop(name)
        sys.modules.update(self._theirs)

    def find_spec(self, name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find a hidden module in the library."""
        if path is not None or name not in self._names or get_ident() != self._thread:
            return None
        return _spec_in(name, sys.path[len(_in_front()) :])

    def _present(self) -> list[tuple[str, ModuleType]]:
        return [pair for pair in list(sys.modules.items()) if pair[0].partition(".")[0] in self._names]


def _in_front() -> tuple[str, ...]:
    """Return the entries of `sys.path` that are searched before the standard library."""
    for position, entry in enumerate(sys.path):
        if entry == _FOLDER or (isinstance(entry, str) and entry.endswith(_ARCHIVE)):
            return tuple(sys.path[:position])
    return ()


def _hidden_by(folders: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    for folder in folders:
        try:
            found.update([name.partition(".")[0] for name in os.listdir(folder or ".")])
        except (OSError, TypeError, ValueError):  # an archive, or an entry of some other kind
            continue
    found &= sys.stdlib_module_names
    return frozenset([name for name in found if _is_file(name, folders)]) if found else frozenset()


def _is_file(name: str, folders: tuple[str, ...]) -> bool:
    """Return whether a module of the folders would be imported; not for a folder of data, or a built-in module."""
    import _imp

    if name in sys.builtin_module_names or _imp.is_frozen(name):
        return False
    spec = _spec_in(name, list(folders))
    return spec is not None and spec.loader is not None


def _spec_in(name: str, folders: list[str]) -> ModuleSpec | None:
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    spec: ModuleSpec | None = finder.find_spec(name, folders)
    return spec


def _is_of_library(module: ModuleType) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None)
    if not isinstance(origin, str):
        return False
    inside = origin.startswith(_FOLDER + os.sep) and "-packages" + os.sep not in origin
    return inside or origin in ("built-in", "frozen")
