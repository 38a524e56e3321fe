"""Files of a program that have the names of modules of the standard library, before the program starts."""

from __future__ import annotations

import os
import sys

from stallscope.common.hidden_library import is_of_library, own
from stallscope.common.standard_library import hidden_by

OWN_FOLDERS = "import sys; sys.path[:] = [path for path in sys.path if path]; "
"""Beginning of the code of a Python that is started with `-c`: it does not search the working folder for modules."""
_LOADED_BY_PYTHON = frozenset(
    ("_collections_abc", "abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat")
)
"""Modules that Python loads before a program; no file of the program hides them."""


def release(folder: str) -> None:
    """Let the program import its own files of this folder, whatever of the library was imported before it started."""
    names = hidden_by((folder,)) - _LOADED_BY_PYTHON
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and is_of_library(module):
            own[name] = sys.modules.pop(name)


def script_folder(command: list[str]) -> str:
    """Return the folder that a command line lets Python search first; empty for the working folder."""
    for argument in command[1:]:
        if argument in ("-c", "-m"):
            break
        if argument.endswith(".py"):
            return os.path.dirname(os.path.realpath(argument))
    return ""
