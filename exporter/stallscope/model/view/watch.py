"""Queries on a background thread while a reader is there: it gets the latest answer from memory, without waiting."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

INTERVAL = 20.0
"""Seconds between two queries; rules are evaluated every 15 to 60 s."""
WATCHED_SECONDS = 120.0
"""Queries continue for this time after the last read, so that the next read finds a fresh answer."""
USEFUL_SECONDS = 300.0
"""Older answers are dropped; a verdict covers five minutes."""

_logger = logging.getLogger(__name__)
_Subjects = TypeVar("_Subjects", bound=Iterable[object])
_Answer = TypeVar("_Answer")


class Watch(ABC, Generic[_Subjects, _Answer]):
    """Queries in the background what was read last, unless all of it is empty.

    `start` starts the thread; `poll` queries in the calling thread.
    """

    def __init__(
        self, name: str, server: str, *, interval: float = INTERVAL, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; nothing is queried yet.

        Args:
            name: what is queried, as a plural; it names the thread and begins lines of the log.
            server: name of the server.
            interval: seconds between two queries.
            monotonic: the clock.
        """
        self._name = name
        self._server_name = server
        self._interval = interval
        self._monotonic = monotonic
        self._subjects: _Subjects | None = None
        self._last_read: float | None = None
        self._pending_since: float | None = None
        self._answer: tuple[float, _Answer] | None = None
        self._problem = ""
        self._woken = threading.Event()
        self._stopping = threading.Event()

    @abstractmethod
    def _query(self, subjects: _Subjects) -> _Answer:
        """Query the server on subjects; any error is shown to the readers."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stop the thread, without waiting for a pending query."""
        self._stopping.set()
        self._woken.set()

    def _read(self, subjects: _Subjects) -> tuple[_Answer | None, float | None, str]:
        """Return the latest answer from memory, and query these subjects from now on.

        Returns:
            The answer and its age in seconds, both None before the first answer and if the last one is too old; and
            the error of the latest query, or the time that it has been pending, empty if all is well.
        """
        now = self._monotonic()
        self._subjects, self._last_read = subjects, now
        self._woken.set()
        answer, problem, since = self._answer, self._problem, self._pending_since
        if since is not None and now - since > self._interval:
            problem = f"{self._server_name}: no answer for {now - since:.0f} s"
        if answer is None or now - answer[0] > USEFUL_SECONDS:
            return None, None, problem
        return answer[1], max(0.0, now - answer[0]), problem

    def poll(self) -> None:
        """Query once, and store the answer or the error."""
        if self._subjects is None:
            return
        began = self._pending_since = self._monotonic()
        try:
            self._answer = began, self._query(self._subjects)
            problem = ""
        except Exception as failure:  # noqa: BLE001 - the page must stay up and show the error
            problem = str(failure) or type(failure).__name__
        if problem != self._problem:
            level = logging.WARNING if problem else logging.INFO
            _logger.log(level, "%s: %s", self._name, problem or "available again")
        self._problem = problem
        self._pending_since = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()  # before reading the time, so that a later read wakes the thread
            subjects, last_read = self._subjects, self._last_read
            is_watched = last_read is not None and self._monotonic() - last_read <= WATCHED_SECONDS
            if not is_watched or subjects is None or not any(subjects):
                self._woken.wait()
                continue
            self.poll()
            self._stopping.wait(self._interval)
