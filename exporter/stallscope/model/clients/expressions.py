"""Escape arbitrary text for PromQL."""

from __future__ import annotations

from collections.abc import Iterable

_SPECIAL = frozenset(r"\.+*?()|[]{}^$")


def quoted(text: str) -> str:
    """Return a text as a PromQL string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def any_of(texts: Iterable[str]) -> str:
    """Return a PromQL string for a `=~` matcher that matches exactly these texts."""
    return quoted("|".join("".join(f"\\{each}" if each in _SPECIAL else each for each in text) for text in texts))
