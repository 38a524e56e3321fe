"""Requests from outside while the job runs: traces of some steps, or an early end.

Over HTTP a request is in the response to a report, next to a UNIX socket it is a file (see `request_file`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stallscope.training.protocol import step_request
from stallscope.training.protocol.request_name import request_name
from stallscope.training.shim.observer import Observer
from stallscope.training.shim.request_file import RequestFile
from stallscope.training.shim.tolerance import tolerate, warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stallscope.training.protocol.step_request import StepRequest
    from stallscope.training.shim.session import Session


class StepRequests(Observer):
    """Requests to one run. The files are checked before each report, so at most twice a second."""

    task = "reading requests"

    def __init__(self, run: Session) -> None:
        self._run = run
        self._handlers: dict[str, Callable[[StepRequest], object]] = {}
        self._files: list[RequestFile] = []
        self._seen: frozenset[bytes] = frozenset()
        sender: Any = run.sender
        if hasattr(sender, "on_answer"):
            sender.on_answer = self.take_answer

    def handle(self, action: str, handler: Callable[[StepRequest], object]) -> None:
        """Call this with each new request of an action to this rank."""
        if action not in self._handlers:
            name = request_name(action, self._run.name)
            self._files.append(RequestFile(name, step_request.MAX_BYTES, action))
        self._handlers[action] = handler

    def before_report(self, _now: float, _last: bool) -> None:
        """Handle new requests in files, which takes microseconds without one."""
        for file in self._files:
            if data := file.read():
                self._take(data)

    def take_answer(self, answer: bytes) -> None:
        """Handle new requests in the response to a report."""
        lines = frozenset(answer.split(b"\n"))
        new, self._seen = lines - self._seen, lines
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


def requests_of(run: Session) -> StepRequests:
    """Return the requests of a run; created at the first call."""
    found = run.observer(StepRequests)
    if found is None:
        found = StepRequests(run)
        run.observe(found)
    return found
