"""Polls one exporter on a background thread, so that readers never wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from stallscope.model.clients.exporter import ExporterError
from stallscope.model.view.model import Node
from stallscope.model.view.observer import Observer, wanted


class Pages(Protocol):
    """A source of pages; `stallscope.model.clients.exporter.ExporterClient` is one."""

    name: str
    timeout: float

    def read(self) -> str:
        """Return the current page, or raise an ExporterError."""

    def close(self) -> None:
        """Close the connection."""


class ExporterState(NamedTuple):
    """The state of one exporter at one moment."""

    name: str
    """Its address."""
    node: Node | None
    """The node as of its latest page."""
    age: float | None
    """Seconds since that page; None before the first page."""
    problem: str
    """Error of the latest poll; empty if all is well."""


class _LatestPoll(NamedTuple):
    node: Node | None
    read_at: float
    problem: str


class Feed:
    """Polls an exporter. `start` starts the thread; `poll` polls once in the calling thread."""

    def __init__(self, pages: Pages, interval: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is requested yet."""
        self.name = pages.name
        self._pages = pages
        self._interval = interval
        self._monotonic = monotonic
        self._observer = Observer()
        self._pending_since: float | None = None
        self._latest = _LatestPoll(None, 0.0, "")
        self._stopping = threading.Event()

    def start(self, changed: Callable[[], object]) -> None:
        """Start the thread, which calls `changed` after every poll, successful or not."""
        threading.Thread(target=self._run, args=(changed,), name=f"feed {self.name}", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread, without waiting for a pending poll."""
        self._stopping.set()

    def poll(self) -> None:
        """Poll once, and store the node or the error."""
        began = self._pending_since = self._monotonic()
        try:
            page = wanted(self._pages.read())
            if not page:
                raise ExporterError("no Stallscope metrics on its page; check what listens at that address")
            self._latest = _LatestPoll(self._observer.observe(page, began), began, "")
        except ExporterError as problem:
            self._latest = self._latest._replace(problem=str(problem))
        except Exception as failure:  # noqa: BLE001 - the screen must stay up and show the error, whatever a page holds
            words = f"its page can't be read: {type(failure).__name__}: {failure}"
            self._latest = self._latest._replace(problem=words)
        self._pending_since = None

    def look(self) -> ExporterState:
        """Return the current state from memory."""
        now, since = self._monotonic(), self._pending_since
        node, read_at, problem = self._latest
        if since is not None and now - since > self._pages.timeout:
            problem = f"no answer for {now - since:.0f} s"
        return ExporterState(self.name, node, None if node is None else max(0.0, now - read_at), problem)

    def _run(self, changed: Callable[[], object]) -> None:
        while not self._stopping.is_set():
            began = self._monotonic()
            self.poll()
            if not self._stopping.is_set():
                changed()
            self._stopping.wait(max(0.0, self._interval - (self._monotonic() - began)))
        self._pages.close()
