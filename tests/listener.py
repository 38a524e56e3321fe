"""A UNIX socket that receives reports, as the exporter's does."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Listener:
    """Receives datagrams, and keeps them until a test takes them.

    The kernel has room for eleven (net.unix.max_dgram_qlen). A slow program sends more before it ends, and waits for
    50 ms at most where there is no room for its last report. So a test runs a program inside `reading()`.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._received: list[tuple[bytes, Any]] = []

    def close(self) -> None:
        self._socket.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read at once what arrives during the block. Do not fork in it: it needs a thread."""
        closing, closed = socket.socketpair()

        def read() -> None:
            while closed not in select.select([self._socket, closed], [], [])[0]:
                self._read()

        with closing, closed:
            thread = threading.Thread(target=read)
            thread.start()
            try:
                yield
            finally:
                closing.send(b".")
                thread.join()

    def received(self) -> list[tuple[bytes, Any]]:
        """Return what has arrived since the last call, with the senders' addresses."""
        self._read()
        received, self._received = self._received, []
        return received

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._received.append(self._socket.recvfrom(65536))
