"""How far long work has come, on a terminal's standard error; nothing where nobody watches.

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
    """Show a bar with that title until the block ends.

    Args:
        title: what is being done.
        total: how much there is to do, in any unit; None where that is not known, and the bar only moves.

    Yields:
        What is to be called after each piece, with its size, 1 if left out. Any thread may.
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
    """Show nothing."""
