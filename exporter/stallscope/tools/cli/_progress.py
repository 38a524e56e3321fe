"""Progress bar on standard error; nothing if that is not a terminal, or with `--quiet`.

with progress("Reading steps", total=len(parts)) as advance:
    for part in parts:
        read(part)
        advance()
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stallscope.tools.cli._parser import Parser

Piece = TypeVar("Piece")

SECONDS = 3.0
"""Longest time without output on a terminal where no bar can be drawn."""


def add_flag(parser: Parser) -> None:
    """Add `--quiet` to a command that shows progress."""
    parser.add_argument("--quiet", action="store_true", help="show no progress on the terminal")


@contextmanager
def progress(title: str, total: float | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar until the block ends; without the library for it, a line after three seconds.

    Args:
        title: label of the bar.
        total: amount of work, in any unit; None if unknown, then the bar only moves.
        quiet: show nothing.

    Yields:
        A function to call after each piece of work, with its size (default: 1), from any thread.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        line = threading.Timer(SECONDS, print, (f"{title} …",), {"file": sys.stderr, "flush": True})
        line.daemon = True
        line.start()
        try:
            yield _ignore
        finally:
            line.cancel()
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(size: float = 1.0) -> None:
            bar.advance(task, size)

        yield advance


def each_shown(pieces: Collection[Piece], title: str, *, quiet: bool = False) -> Iterator[Piece]:
    """Yield the pieces of work, with a bar of how many are done."""
    with progress(title, total=len(pieces), quiet=quiet) as advance:
        for piece in pieces:
            yield piece
            advance()


def _ignore(size: float = 1.0) -> None:
    """Accept progress without showing it."""
