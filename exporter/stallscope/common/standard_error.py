"""Messages of `stallscope run` on standard error, next to those of the program that it runs."""

from __future__ import annotations

import sys
from contextlib import suppress


def show(message: str) -> None:
    """Print a line on standard error, unless it is closed or the program has replaced it by something that fails."""
    if sys.stderr is not None:  # else print() would write to standard output
        with suppress(Exception):
            print(f"stallscope run: {message}", file=sys.stderr, flush=True)
