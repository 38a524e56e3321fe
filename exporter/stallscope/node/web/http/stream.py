"""The bytes of one connection, plain or through TLS, without a thread that waits."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

_Result = TypeVar("_Result")

_PIECE = 65_536
"""Bytes read or encrypted at once."""


class Stream:
    """A plain connection."""

    has_certificate = False
    """True if the client has shown a certificate that an authority of this server has signed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    async def read(self) -> bytes:
        """Return what has arrived as soon as there is something; nothing at the end."""
        return await self._loop.sock_recv(self._connection, _PIECE)

    async def write(self, data: bytes) -> None:
        """Return when the kernel has all of the data."""
        await self._loop.sock_sendall(self._connection, data)

    async def end(self) -> None:
        """Say that nothing follows."""
        self._connection.shutdown(socket.SHUT_WR)


class TlsStream(Stream):
    """A connection through TLS. asyncio's own streams drop the alert that says why a handshake failed."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(connection)
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._unsent, server_side=True)

    async def shake_hands(self) -> None:
        """Agree on keys.

        Raises:
            ssl.SSLError: the client speaks no TLS, or is refused.
        """
        await self._run(self._tls.do_handshake)

    async def read(self) -> bytes:
        """Return what has arrived as soon as there is something; nothing at the end."""
        with suppress(ssl.SSLZeroReturnError):
            return await self._run(partial(self._tls.read, _PIECE))
        return b""

    async def write(self, data: bytes) -> None:
        """Return when the kernel has all of the data."""
        view = memoryview(data)
        for at in range(0, len(view), _PIECE):
            await self._run(partial(self._tls.write, view[at : at + _PIECE]))

    async def end(self) -> None:
        """Say that nothing follows."""
        with suppress(ssl.SSLError):  # no reply is waited for
            self._tls.unwrap()
        await self._send()
        await super().end()

    async def _run(self, action: Callable[[], _Result]) -> _Result:
        """Return the result, once all that it needs has arrived and all that it sends is sent."""
        while True:
            try:
                result = action()
            except ssl.SSLWantReadError:  # noqa: PERF203 - an action rarely takes more than two turns
                await self._send()
                if data := await super().read():
                    self._received.write(data)
                else:
                    self._received.write_eof()
            except ssl.SSLError:
                await self._send()  # an alert with the reason
                raise
            else:
                await self._send()
                return result

    async def _send(self) -> None:
        if data := self._unsent.read():
            await super().write(data)
