"""Find the line of the program in a stack: file, line and function, never source text, arguments or variables."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import lru_cache

from stallscope.training.protocol.stack_file import DECORATORS
from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH
from stallscope.training.shim.tolerance import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

    Spot = tuple[CodeType, int, CodeType | None]
    """Code and line of the program, and the code of the library function that the line called, if any."""

_MAX_FRAMES = 256
"""Frames of a stack that are read, the innermost first."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
_GENERATED_FOLDERS = ("torchinductor_", "torch_compile_debug")
"""Beginnings of the names of folders with code that a compiler wrote."""
_WAITING_MODULES = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "queue", "selectors", "subprocess", "threading"}
)
"""Modules of the standard library whose functions wait for another thread or process."""
_FRAMEWORKS = frozenset({"numpy", "torch", "torchvision"})
"""Libraries of a frozen application, whose files have no folder."""
_COMPREHENSIONS = tuple(f".<locals>.<{kind}>" for kind in ("genexpr", "listcomp", "setcomp", "dictcomp"))
_LOADER_MODULES = ("torch.utils.data", "torch.multiprocessing")
PROGRAM, LIBRARY, HIDDEN = range(3)
"""Kinds of code: the program's own; a library's; the standard library's, generated code and this package's."""


def spot_of(frame: FrameType | None, *, or_library: bool = False) -> Spot | None:
    """Return the innermost frame of the program's own code, or None.

    Args:
        frame: the innermost frame of a stack.
        or_library: without code of the program, return the innermost frame of a library other than the data loader.
    """
    beneath: CodeType | None = None
    library: Spot | None = None
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        kind = kind_of(code.co_filename)
        if kind == PROGRAM:
            return code, frame.f_lineno or code.co_firstlineno, beneath
        if kind == LIBRARY:
            if or_library and library is None and not _module(frame).startswith(_LOADER_MODULES):
                library = code, frame.f_lineno or code.co_firstlineno, None
            beneath = beneath if beneath is not None and code.co_name in DECORATORS else code
        elif not code.co_filename.startswith((_PACKAGE, "<")):
            beneath = code
        frame = frame.f_back
    return library


def is_waiting(frame: FrameType) -> bool:
    """Return whether the innermost frame of a stack waits for another thread or process."""
    return kind_of(frame.f_code.co_filename) == HIDDEN and _module(frame).partition(".")[0] in _WAITING_MODULES


def is_inside(frame: FrameType | None, functions: set[CodeType]) -> bool:
    """Return whether a stack contains a call of one of these functions."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_code in functions:
            return True
        frame = frame.f_back
    return False


@lru_cache(maxsize=4096)
def kind_of(file: str) -> int:
    """Return the kind of code that a file contains: PROGRAM, LIBRARY or HIDDEN."""
    if file.startswith("<"):
        return PROGRAM if file.startswith("<ipython-input-") else HIDDEN
    if file.startswith(_PACKAGE):
        return HIDDEN
    parts = file.replace("\\", "/").split("/")
    if any(part in _LIBRARY_FOLDERS for part in parts):
        return LIBRARY
    if any(part.startswith(_GENERATED_FOLDERS) for part in parts):
        return HIDDEN
    if getattr(sys, "frozen", False):
        top = parts[0].removesuffix(".py") if not os.path.isabs(file) else ""
        if top in sys.stdlib_module_names:
            return HIDDEN
        return LIBRARY if top in _FRAMEWORKS else PROGRAM
    return HIDDEN if file.startswith(_standard_library()) else PROGRAM


def location_of(spot: Spot) -> str:
    """Return a spot as `data/augment.py:41`, seen from the program's folder, or as `cell 3:12` in a notebook."""
    code, line, _ = spot
    end = f":{line}"
    path = "".join([each if each.isprintable() else "?" for each in shortened(code.co_filename)[-MAX_LABEL_LENGTH:]])
    return path[-(MAX_LABEL_LENGTH - len(end)) :].lstrip() + end


def function_of(code: CodeType) -> str:
    """Return the qualified name of a function, or of the function around a comprehension."""
    name = getattr(code, "co_qualname", code.co_name)
    while name.endswith(_COMPREHENSIONS):
        name = name.rpartition(".<locals>.")[0]
    return label(name.replace(".<locals>", ""), MAX_LABEL_LENGTH)


def library_function_of(code: CodeType) -> str:
    """Return the name of a library's function with its module, as `torchvision.transforms.functional.resize`."""
    parts = code.co_filename.replace("\\", "/").removesuffix(".py").split("/")
    folders = [index for index, part in enumerate(parts) if part in _LIBRARY_FOLDERS or part.startswith("python3")]
    parts = parts[folders[-1] + 1 :] if folders else parts[-1:]
    module = ".".join([part for part in parts if part != "__init__"])
    name = function_of(code)
    return f"{module}.{name}" if module else name


def entry_of(spot: Spot) -> tuple[str, str, str]:
    """Return location, function, and the library function that the line called; the last one may be empty."""
    code, _, beneath = spot
    return location_of(spot), function_of(code), "" if beneath is None else library_function_of(beneath)


def shortened(file: str) -> str:
    """Return a file's path as seen from the program's folder, the working directory or the libraries' folder.

    Other paths are reduced to the file and the two folders around it, and notebook cells to their number.
    """
    if cell := _cell(file):
        return cell
    for folder in _folders():
        if file.startswith(folder):
            return file[len(folder) :]
    parts = file.split(os.sep)
    folders = [index for index, part in enumerate(parts) if part in _LIBRARY_FOLDERS]
    return "/".join(parts[folders[-1] + 1 :] if folders else parts[-3:])


def _folders() -> list[str]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    found = [os.path.dirname(os.path.abspath(main))] if isinstance(main, str) else []
    with suppress(OSError):  # the folder was deleted
        found.append(os.getcwd())
    return [folder.rstrip(os.sep) + os.sep for folder in found if folder.rstrip(os.sep)]


def _cell(file: str) -> str:
    """Return the name of a notebook's cell; an empty string for another file."""
    if file.startswith("<ipython-input-"):
        number = file.removeprefix("<ipython-input-").partition("-")[0]
        return f"cell {number}" if number.isdigit() else "notebook cell"
    if f"{os.sep}ipykernel_" not in file:
        return ""
    try:
        shell = sys.modules["IPython"].get_ipython()
        count: object = shell.compile._filename_map.get(file)  # noqa: SLF001 - IPython keeps the number nowhere else
    except (KeyError, AttributeError):  # not a notebook, or another version of IPython
        count = None
    return f"cell {count}" if isinstance(count, int) else "notebook cell"


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__", "")
    return name if type(name) is str else ""


@lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    # sysconfig has these folders too, and takes 160 kB.
    return tuple({os.path.dirname(resolve(os.__file__)) + os.sep for resolve in (os.path.abspath, os.path.realpath)})
