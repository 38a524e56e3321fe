"""Write parts of a report as JSON. They are all text and numbers, so this takes a third of the json module's time.

Importing that module would take longer than all of the shim, too.
"""

from __future__ import annotations

from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@lru_cache(maxsize=256)
def quoted(text: str) -> str:
    """Printable text, as `label` makes it, between quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def words(texts: Iterable[str]) -> str:
    """A list of texts."""
    return f"[{','.join([quoted(text) for text in texts])}]"


def texts(named: Mapping[str, str]) -> str:
    """An object of texts."""
    return f"{{{','.join([f'{quoted(name)}:{quoted(text)}' for name, text in named.items()])}}}"


def amounts(named: Mapping[str, float]) -> str:
    """An object of finite numbers, to the millionth: for seconds and what is counted."""
    return _form(tuple(named), "%.6f") % tuple(named.values())


def values(named: Mapping[str, float]) -> str:
    """An object of finite numbers of any size, to twelve digits. All of them would take four times as long."""
    return _form(tuple(named), "%.12g") % tuple(named.values())


@lru_cache(maxsize=64)
def _form(names: tuple[str, ...], number: str) -> str:
    return f"{{{','.join([quoted(name).replace('%', '%%') + ':' + number for name in names])}}}"
