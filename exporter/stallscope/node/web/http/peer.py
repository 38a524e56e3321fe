"""The client's end of a connection: its user, as the kernel reports it, and its certificate."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_NETWORK = Path("/proc/self/net")
_ESTABLISHED = b"01"
_TCP_ESTABLISHED = 1
_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address in IPv6 notation."""


class Peer:
    """The other end of one connection. Nothing is read before it is needed."""

    def __init__(self, connection: Any, network: Path = _NETWORK, *, has_certificate: bool = False) -> None:
        """Describe the other end of an accepted socket.

        Args:
            connection: the socket.
            network: the folder with the kernel's tables of connections.
            has_certificate: True if the client has shown a certificate that an authority of this server has signed.
        """
        self._connection = connection
        self._network = network
        self.has_certificate = has_certificate

    def uid(self) -> int | None:
        """Return the user that opened the client's socket, where that socket is in the same network namespace."""
        try:
            client, own = self._connection.getpeername(), self._connection.getsockname()
            found = self._find(_table_entries(client), _table_entries(own))
            # The kernel lists sockets that their process has closed as root's, and another process may take their
            # place. While this end is established, the other end was not closed.
            state = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            return None
        return found if state == _TCP_ESTABLISHED else None

    def _find(self, client: dict[str, bytes], own: dict[str, bytes]) -> int | None:
        for table, entry in client.items():
            with suppress(FileNotFoundError), open(self._network / table, "rb") as lines:
                for line in lines:
                    if entry in line:
                        fields = line.split()
                        ends, state, uid, inode = fields[1:3], fields[3], fields[7], fields[9]
                        if ends == [entry, own.get(table)] and state == _ESTABLISHED and inode != b"0":
                            return int(uid)
        return None


def _table_entries(address: tuple[Any, ...]) -> dict[str, bytes]:
    """Return an address as each of the kernel's tables writes it: the client's socket may be of either family."""
    host, port = str(address[0]).removeprefix("::ffff:"), b":%04X" % address[1]
    if ":" in host:
        return {"tcp6": _words(socket.inet_pton(socket.AF_INET6, host)) + port}
    packed = socket.inet_pton(socket.AF_INET, host)
    return {"tcp": _words(packed) + port, "tcp6": _words(_MAPPED + packed) + port}


def _words(packed: bytes) -> bytes:
    """Write an address in hexadecimal digits, each four bytes as a number of this machine."""
    return b"".join(b"%08X" % int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
