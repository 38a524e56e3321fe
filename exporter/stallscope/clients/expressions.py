"""Texts from outside in PromQL, whatever characters they hold."""

from __future__ import annotations

from collections.abc import Iterable

_SPECIAL = frozenset(r"\.+*?()|[]{}^$")


def quoted(text: str) -> str:
    """A text as a string of PromQL."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def any_of(texts: Iterable[str]) -> str:
    """A string of PromQL for a `=~` matcher that matches these texts and no other."""
    return quoted("|".join("".join(f"\\{each}" if each in _SPECIAL else each for each in text) for text in texts))
