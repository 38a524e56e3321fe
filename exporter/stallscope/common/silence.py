"""Stand-ins for the public names of the shim where its modules cannot be imported: they do nothing."""

from __future__ import annotations

import os
import sys


class Silent:
    """An object whose methods, and whose `with` block, do nothing."""

    silent = True

    def __call__(self, *_: object, **__: object) -> Silent:
        """Do nothing."""
        return self

    def __getattr__(self, name: str) -> Silent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Silent:  # noqa: PYI034 - a stand-in has no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        """Let exceptions pass."""


def stand_in(name: str, error: Exception) -> object:
    """Return the replacement of a public name, and report why nothing is measured.

    Raises:
        Exception: the error, where STALLSCOPE_STRICT=1.
    """
    if os.environ.get("STALLSCOPE_STRICT", "") == "1":
        raise error
    if sys.stderr is not None:
        print(f"stallscope: {name} is not available, and nothing is measured: {type(error).__name__}: {error}",
              file=sys.stderr)  # fmt: skip
    return {"track": _track, "current": _nothing}.get(name, Silent())


def _track(loader: object, *_: object, **__: object) -> object:
    return loader


def _nothing() -> None:
    return None
