"""Lets another program take this process' place, as if it had been started by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Which a program would inherit: a shell's `yes | head` would then not end as it does elsewhere."""


def become(command: Sequence[str]) -> NoReturn:
    """Go on as that command, found along PATH.

    Raises:
        FileNotFoundError: there is no such command.
        OSError: it can't be run.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _IGNORED_BY_PYTHON}
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - no shell is wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
