"""Sign what is reported, with the token of STALLSCOPE_TOKEN or of the file that STALLSCOPE_TOKEN_FILE names.

Of a file's tokens the first signs. It is looked at again every ten seconds, so that a token can be changed under a
training that goes on for weeks.
"""

from __future__ import annotations

import os
import time

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.signature import key, signed
from stallscope.training.shim.tolerance import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_EVERY = 10.0
_LONGEST_FILE = 65_536


class Signing:
    """Signs documents; without a token they stay as they are."""

    def __init__(self, token: str, file: str = "", monotonic: Callable[[], float] = time.monotonic) -> None:
        with standard_library():
            self._key = key(token) if token else None
        self._file = file
        self._monotonic = monotonic
        self._looked = 0.0
        self._mark: tuple[int, int] | None = None
        if file:
            self._look(monotonic())
            if self._key is None:
                complain(f"STALLSCOPE_TOKEN_FILE names {file!r:.200}, which holds no token; reports are not signed")

    def __call__(self, document: bytes) -> bytes:
        """Return the document with its signature."""
        if self._file and (now := self._monotonic()) - self._looked >= _LOOK_EVERY:
            self._look(now)
        if self._key is None:
            return document
        with standard_library():
            return signed(document, *self._key, time.time())

    def _look(self, now: float) -> None:
        self._looked = now
        try:
            status = os.stat(self._file)
            mark = (status.st_ino, status.st_mtime_ns)
            if mark == self._mark:
                return
            with open(self._file, encoding="ascii") as file:
                lines = [line.strip() for line in file.read(_LONGEST_FILE).splitlines()]
        except (OSError, ValueError):
            return  # the one in use goes on
        if status.st_mode & 0o007 and status.st_uid == os.geteuid():
            complain(f"STALLSCOPE_TOKEN_FILE names {self._file!r:.200}, which every user may read; chmod o-rwx it")
        tokens = [line for line in lines if line and not line.startswith("#")]
        if tokens:
            with standard_library():
                self._mark, self._key = mark, key(tokens[0])
