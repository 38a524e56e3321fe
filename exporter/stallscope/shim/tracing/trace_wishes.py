"""Trace requests from outside, while the job runs.

A request counts only if it can come from no one but the exporter, root or this user: over HTTP it is the response to
a report; beside a UNIX socket it is a file, which only its owner may write, in a folder that not everybody may.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from stallscope.protocol import trace_request
from stallscope.protocol.report import DEFAULT_SOCKET
from stallscope.shim.tolerance import warn

if TYPE_CHECKING:
    from stallscope.shim.run import Run


class Wishes:
    """Trace requests of one run. The file is checked before each report, so at most twice a second."""

    def __init__(self, run: Run) -> None:
        """Remember where requests may appear; nothing is read yet."""
        self._run = run
        self._path = beside_socket(os.environ.get("STALLSCOPE_ADDRESS", "").strip(), run.name)
        self._seen = (0, 0)
        self._heard = b""

    def look(self) -> range | None:
        """Return the steps of a new request in the file, or None, which takes microseconds."""
        data = self._file()
        return self._steps(data) if data else None

    def hear(self, answer: bytes) -> range | None:
        """Return the steps of a new request in the response to a report; None if there is no new one."""
        if answer == self._heard:
            return None
        self._heard = answer
        return self._steps(answer)

    def _steps(self, data: bytes) -> range | None:
        try:
            wish = trace_request.parse(data)
        except ValueError as problem:
            warn(f"a request for traces is not understood: {problem}", "trace request")
            return None
        run = self._run
        if wish.run != run.name or (wish.ranks and run.rank not in wish.ranks) or time.time() > wish.expires:
            return None
        return range(wish.first_step, wish.first_step + wish.steps)

    def _file(self) -> bytes:
        if not self._path:
            return b""
        try:
            status = os.stat(self._path)
            mark = (status.st_mtime_ns, status.st_ino)
            if mark == self._seen:
                return b""
            self._seen = mark
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        with open(descriptor, "rb") as file:
            problem = mistrust(os.fstat(descriptor), os.stat(os.path.dirname(self._path)))
            if problem:
                warn(f"the request for traces in {self._path} is not trusted: {problem}", "trace request: trust")
                return b""
            return file.read(trace_request.MAX_BYTES + 1)


def mistrust(file: os.stat_result, folder: os.stat_result) -> str:
    """Return why a file may come from an unauthorized user; empty if it can't."""
    if not stat.S_ISREG(file.st_mode):
        return "it is not a regular file"
    if file.st_uid not in (0, os.geteuid(), folder.st_uid):
        return f"it belongs to user {file.st_uid}; expected root, this user or the folder's owner"
    if file.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others than its owner may write it"
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        return "everybody may write its folder"
    return ""


def beside_socket(address: str, run: str) -> str:
    """Return the path of the run's request, if reports go to a UNIX socket; else empty."""
    socket = DEFAULT_SOCKET if not address else address.removeprefix("unix://")
    return os.path.join(os.path.dirname(socket), trace_request.file_name(run)) if socket.startswith("/") else ""
