"""Replace this process by another program, as if the user had started that program directly."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""A program would inherit these dispositions: in a shell script, `yes | head` would then not end."""


def become(command: Sequence[str]) -> NoReturn:
    """Execute a command, found on PATH, in place of this process.

    Raises:
        FileNotFoundError: the command does not exist.
        OSError: the command cannot be executed.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _IGNORED_BY_PYTHON}
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - runs without a shell on purpose
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
