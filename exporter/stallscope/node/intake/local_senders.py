"""Identifies the processes of this machine that send datagrams over the loopback interface.

The kernel names the sender of a datagram for UNIX sockets only. For UDP it lists the sockets of this machine with their
users, and the open sockets of each process. A report's own pid only selects the process whose list is read.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_SESSION = re.compile(rb'"session": ?"([^"]{1,64})"')
_PID = re.compile(rb'"pid": ?(\d{1,10})[,}]')
_MAX_SENDERS = 4096
"""Sender addresses to remember."""
_MAX_LOOKUPS = 64
"""Lookups in a second: a lookup takes up to a few milliseconds, and any local user can open new sockets."""
_MAPPED = "::ffff:"
"""Start of an IPv4 address on a socket of both versions."""


class Identity(NamedTuple):
    """A process that the kernel lists as the sender."""

    pid: int
    uid: int


class LocalSenders:
    """Looks up each sender once for each session, because a port may get another process."""

    def __init__(self, root: Path = Path("/"), monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start empty.

        Args:
            root: folder that contains `proc`, of this process' network and pid namespaces.
            monotonic: clock, in seconds.
        """
        self._proc = root / "proc"
        self._monotonic = monotonic
        self._known: dict[Any, tuple[bytes, Identity | None]] = {}
        self._second = 0.0
        self._lookups = 0

    def identify(self, address: Any, data: bytes) -> Identity | None:
        """Return the process that sent a report, or None if the kernel does not list it on this machine.

        Args:
            address: of the sender, as `recvmsg` returns it.
            data: the report; without a session, as in the notice of a signal, the sender's last one is assumed.
        """
        host = str(address[0]).removeprefix(_MAPPED)
        if host != "::1" and not host.startswith("127."):
            return None
        known = self._known.get(address)
        session = _SESSION.search(data)
        if session is None or (known is not None and known[0] == session[1]):
            return None if known is None else known[1]
        pid = _PID.search(data)
        if pid is None or not self._may_look_up():
            return None
        found = self._find(host, address[1], int(pid[1]))
        self._known.pop(address, None)
        while len(self._known) >= _MAX_SENDERS:
            del self._known[next(iter(self._known))]
        self._known[address] = session[1], found
        return found

    def _may_look_up(self) -> bool:
        now = self._monotonic()
        if now - self._second >= 1.0:
            self._second, self._lookups = now, 0
        self._lookups += 1
        return self._lookups <= _MAX_LOOKUPS

    def _find(self, host: str, port: int, pid: int) -> Identity | None:
        try:
            with open(self._proc / "net" / ("udp6" if ":" in host else "udp"), "rb") as file:
                lines = file.read().decode("ascii", "replace").splitlines()[1:]
            wanted = f"{_hexadecimal(host)}:{port:04X}"
            sockets = {words[9]: int(words[7]) for line in lines if (words := line.split())[1] == wanted}
            folder = self._proc / str(pid) / "fd"
            for name in os.listdir(folder):  # noqa: PTH208 - a process may have thousands of open files
                link = _link(f"{folder}/{name}")
                inode = link[len("socket:[") : -1] if link.startswith("socket:[") else ""
                if inode in sockets:
                    return Identity(pid, sockets[inode])
        except (OSError, ValueError, IndexError):
            pass  # ended, or hidden from this user: the sender counts as one of the network
        return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - as above
    except OSError:
        return ""


def _hexadecimal(host: str) -> str:
    """Return an address as the kernel writes it: words of 32 bits in the machine's byte order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = [packed[begin : begin + 4] for begin in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
