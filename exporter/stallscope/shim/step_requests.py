"""Requests from outside while the job runs: traces of some steps, or an early end.

A request counts only if it can come from no one but the exporter, root or this user: over HTTP it is in the response to
a report; next to a UNIX socket it is a file, which only its owner may write, in a folder that not everybody may.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from stallscope.protocol import step_request
from stallscope.protocol.report import DEFAULT_SOCKET
from stallscope.shim.tolerance import tolerate, warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stallscope.protocol.step_request import StepRequest
    from stallscope.shim.run import Run


class StepRequests:
    """Requests to one run. The files are checked before each report, so at most twice a second."""

    def __init__(self, run: Run) -> None:
        """Nothing is read until a handler is added."""
        self._run = run
        self._address = os.environ.get("STALLSCOPE_ADDRESS", "").strip()
        self._handlers: dict[str, Callable[[StepRequest], object]] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._heard: frozenset[bytes] = frozenset()
        run.watch(self.look)
        sender: Any = run.sender
        if hasattr(sender, "hear"):
            sender.hear = self.hear

    def handle(self, action: str, handler: Callable[[StepRequest], object]) -> None:
        """Call this with each new request of an action to this rank."""
        self._handlers[action] = handler

    def look(self) -> None:
        """Handle new requests in files, which takes microseconds without one."""
        for action in self._handlers:
            data = self._file(beside_socket(self._address, action, self._run.name))
            if data:
                self._take(data)

    def hear(self, answer: bytes) -> None:
        """Handle new requests in the response to a report."""
        lines = frozenset(answer.split(b"\n"))
        new, self._heard = lines - self._heard, lines
        for line in new:
            self._take(line)

    def _take(self, data: bytes) -> None:
        try:
            request = step_request.parse(data)
        except ValueError as problem:
            warn(f"a request from outside is invalid: {problem}", "request")
            return
        run, handler = self._run, self._handlers.get(request.action)
        addressed = request.run == run.name and (not request.ranks or run.rank in request.ranks)
        if handler is None or not addressed or time.time() > request.expires:
            return
        try:
            handler(request)
        except Exception as error:
            tolerate(error, f"handling a {request.action} request")

    def _file(self, path: str) -> bytes:
        if not path:
            return b""
        try:
            status = os.stat(path)
            mark = (status.st_mtime_ns, status.st_ino)
            if mark == self._seen.get(path):
                return b""
            self._seen[path] = mark
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        with open(descriptor, "rb") as file:
            problem = mistrust(os.fstat(descriptor), os.stat(os.path.dirname(path)))
            if problem:
                warn(f"the request in {path} is not trusted: {problem}", "request: trust")
                return b""
            return file.read(step_request.MAX_BYTES + 1)


def requests_of(run: Run) -> StepRequests:
    """Return the requests of a run; created at the first call."""
    if run.step_requests is None:
        run.step_requests = StepRequests(run)
    return run.step_requests


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


def beside_socket(address: str, action: str, run: str) -> str:
    """Return the path of a request to the run, if reports go to a UNIX socket; else empty."""
    socket = DEFAULT_SOCKET if not address else address.removeprefix("unix://")
    folder = os.path.dirname(socket) if socket.startswith("/") else ""
    return os.path.join(folder, step_request.file_name(action, run)) if folder else ""
