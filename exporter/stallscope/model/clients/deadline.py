"""A time limit for a whole HTTP exchange, from the TLS handshake to the last byte of the response.

The timeouts of HTTP libraries apply to each read: a server that sends a byte a second never exceeds them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

_current = threading.local()


class Deadline:
    """Shuts down a connection when the time is over; its reader then gets an error or the end of the stream."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._watching = threading.Lock()
        self._watched: socket.socket | None = None
        self._alarm = threading.Timer(seconds, self._shut)
        self._alarm.daemon = True
        self._alarm.start()

    def cancel(self) -> None:
        """Stop the clock and release the connection, which stays open."""
        self._alarm.cancel()
        with self._watching:
            if self._watched is not None:
                self._watched.close()
                self._watched = None

    @property
    def is_over(self) -> bool:
        """True once the time is over. A response that ends later may be cut off."""
        return time.monotonic() >= self._ends

    def _watch(self, connection: socket.socket) -> None:
        # A duplicate, since TLS detaches the socket's descriptor, and a closed one may be reused for another file.
        duplicate = socket.socket(fileno=os.dup(connection.fileno()))
        with self._watching:
            if self._watched is not None:
                self._watched.close()
            self._watched = duplicate
        if self.is_over:  # a TLS handshake on a connection that was shut down leaks its socket
            connection.close()
            raise TimeoutError

    def _shut(self) -> None:
        with self._watching, contextlib.suppress(OSError):
            if self._watched is not None:
                self._watched.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def deadline_after(seconds: float) -> Iterator[Deadline]:
    """Limit the time of the connections that this thread opens in the block, or passes to `watch`."""
    deadline = _current.deadline = Deadline(seconds)
    try:
        yield deadline
    finally:
        _current.deadline = None
        deadline.cancel()


def watch(connection: socket.socket | None) -> None:
    """Put the connection under this thread's deadline, if both exist.

    Raises:
        TimeoutError: the time is over; the connection is closed.
    """
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None and connection is not None:
        deadline._watch(connection)  # noqa: SLF001 - a class of this module
