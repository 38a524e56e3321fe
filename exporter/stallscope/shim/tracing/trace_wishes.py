"""Trace requests from outside, while the job runs.

A request counts only if it can come from no one but the exporter, root or this user: over HTTP it is the response to
a report; beside a UNIX socket it is a file, which only its owner may write, in a folder that not everybody may.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stallscope.protocol import trace_request
from stallscope.shim.request_file import RequestFile
from stallscope.shim.tolerance import warn

if TYPE_CHECKING:
    from stallscope.shim.run import Run


class Wishes:
    """Trace requests of one run. The file is checked before each report, so at most twice a second."""

    def __init__(self, run: Run) -> None:
        """Remember where requests may appear; nothing is read yet."""
        self._run = run
        self._file = RequestFile(trace_request.file_name(run.name), trace_request.MAX_BYTES, "traces")
        self._heard = b""

    def look(self) -> range | None:
        """Return the steps of a new request in the file, or None, which takes microseconds."""
        data = self._file.read()
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
