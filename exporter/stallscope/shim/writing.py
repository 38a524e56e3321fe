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


def numbers(named: Mapping[str, float]) -> str:
    """An object of finite numbers."""
    return f"{{{','.join([f'{quoted(name)}:{number!r}' for name, number in named.items()])}}}"
