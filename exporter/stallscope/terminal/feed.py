"""What one exporter says, asked for again and again on a thread of its own, so that nobody who looks ever waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from stallscope.clients.exporter import ExporterError
from stallscope.view.model import Node
from stallscope.view.observer import Observer, wanted


class Pages(Protocol):
    """Where pages come from; `stallscope.clients.exporter.ExporterClient` is one."""

    name: str
    timeout: float

    def read(self) -> str:
        """The page as it is now, or an ExporterError."""

    def close(self) -> None:
        """Let the connection go."""


class Seen(NamedTuple):
    """What is known of one exporter at one moment."""

    name: str
    """Its address."""
    node: Node | None
    """What its newest page told."""
    age: float | None
    """Seconds since that page; None where none ever came."""
    problem: str
    """Why there is no newer one; empty where all is well."""


class _Known(NamedTuple):
    node: Node | None
    read_at: float
    problem: str


class Feed:
    """See the module. `start` makes the thread; `ask` asks once in the calling thread."""

    def __init__(self, pages: Pages, interval: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is asked yet."""
        self.name = pages.name
        self._pages = pages
        self._interval = interval
        self._monotonic = monotonic
        self._observer = Observer()
        self._asking_since: float | None = None
        self._known = _Known(None, 0.0, "")
        self._stopping = threading.Event()

    def start(self, changed: Callable[[], object]) -> None:
        """Ask from now on, and say so after every answer, good or bad, on the feed's own thread."""
        threading.Thread(target=self._ask_for_ever, args=(changed,), name=f"feed {self.name}", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; does not wait for a question that is under way."""
        self._stopping.set()

    def ask(self) -> None:
        """Ask once, and keep the answer or what stood in its way."""
        began = self._asking_since = self._monotonic()
        try:
            page = wanted(self._pages.read())
            if not page:
                raise ExporterError("no Stallscope metrics on its page; check what listens at that address")
            self._known = _Known(self._observer.observe(page, began), began, "")
        except ExporterError as problem:
            self._known = self._known._replace(problem=str(problem))
        except Exception as failure:  # noqa: BLE001 - whatever a page does to us, the screen stays up and says so
            words = f"its page can't be read: {type(failure).__name__}: {failure}"
            self._known = self._known._replace(problem=words)
        self._asking_since = None

    def look(self) -> Seen:
        """What is known now. Memory only."""
        now, since = self._monotonic(), self._asking_since
        node, read_at, problem = self._known
        if since is not None and now - since > self._pages.timeout:
            problem = f"no answer for {now - since:.0f} s"
        return Seen(self.name, node, None if node is None else max(0.0, now - read_at), problem)

    def _ask_for_ever(self, changed: Callable[[], object]) -> None:
        while not self._stopping.is_set():
            began = self._monotonic()
            self.ask()
            if not self._stopping.is_set():
                changed()
            self._stopping.wait(max(0.0, self._interval - (self._monotonic() - began)))
        self._pages.close()
