"""Requests from outside, in a file next to the exporter's UNIX socket.

A request counts only if it can come from no one but the exporter, root or this user: only its owner may write the file,
in a folder that not everybody may write to.
"""

from __future__ import annotations

import os

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import DEFAULT_SOCKET
from stallscope.training.shim.tolerance import warn


class RequestFile:
    """A file that may appear, and be replaced."""

    def __init__(self, name: str, max_bytes: int, what: str) -> None:
        """Remember where the file may appear; nothing is read yet.

        Args:
            name: of the file.
            max_bytes: longest request; up to one byte more is returned.
            what: what is requested, for the warning.
        """
        self._path = beside_socket(os.environ.get("STALLSCOPE_ADDRESS", "").strip(), name)
        self._max_bytes = max_bytes
        self._what = what
        self._seen = (0, 0)

    def read(self) -> bytes:
        """Return the content of a new file, or nothing, which takes microseconds."""
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
            with standard_library():
                from stallscope.common.file_trust import request_problem

            problem = request_problem(os.fstat(descriptor), os.stat(os.path.dirname(self._path)))
            if problem:
                warn(f"the request for {self._what} in {self._path} is not trusted: {problem}", f"{self._what}: trust")
                return b""
            return file.read(self._max_bytes + 1)


def beside_socket(address: str, name: str) -> str:
    """Return the path of a file next to the socket, if reports go to a UNIX socket; else empty."""
    socket = DEFAULT_SOCKET if not address else address.removeprefix("unix://")
    return os.path.join(os.path.dirname(socket), name) if socket.startswith("/") else ""
