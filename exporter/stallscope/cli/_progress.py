"""Progress bar on standard error; nothing if that is not a terminal.

with progress("Reading steps", total=len(parts)) as advance:
    for part in parts:
        read(part)
        advance()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """Show a progress bar until the block ends.

    Args:
        title: label of the bar.
        total: amount of work, in any unit; None if unknown, then the bar only moves.

    Yields:
        A function to call after each piece of work, with its size (default: 1), from any thread.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield _ignore
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(size: float = 1.0) -> None:
            bar.advance(task, size)

        yield advance


def _ignore(size: float = 1.0) -> None:
    """Accept progress without showing it."""
