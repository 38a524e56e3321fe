"""The stack's ports: those that the user chose, or free ones."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stallscope.stack.errors import StackError

ADDRESS = "127.0.0.1"
"""The stack is for this machine's user: no service listens on the network."""
_DISTANCE = 10
"""Distance between the ports of two stacks."""
_FARTHEST = 200


class Port(NamedTuple):
    """A service's TCP port (and UDP port, for reports)."""

    service: str
    number: int
    flag: str
    datagrams: bool = False
    chosen: bool = True
    """True if the user named the number; otherwise another one may replace it."""

    @property
    def url(self) -> str:
        """The service's address for a browser."""
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{ADDRESS}:{self.number}"


def free_ports(ports: Sequence[Port], show: Callable[[str], None]) -> list[Port]:
    """Return ports that differ and are free: the given ones, or the default ones all higher by the same number.

    Args:
        ports: the services' ports.
        show: prints a line if other ports than the default ones are used, with the reason.

    Raises:
        StackError: none are free; the message has each service, its port, the process that uses it, and the flag.
    """
    first: list[str] = []
    for distance in range(0, _FARTHEST, _DISTANCE):
        found = [port if port.chosen else port._replace(number=port.number + distance) for port in ports]
        problems = _problems(found)
        first = first or problems
        if not problems:
            if first:
                show(f"{first[0].partition(';')[0]}; the default ports of this stack are {distance} higher")
            return found
        if all(port.chosen for port in ports):
            break
    raise StackError("\n".join(first))


def _problems(ports: Sequence[Port]) -> list[str]:
    problems = [
        f"{first.service} and {second.service} have the same port {first.number}; change one with {second.flag}"
        for position, first in enumerate(ports)
        for second in ports[position + 1 :]
        if first.number == second.number
    ]
    problems += [
        f"port {port.number} for {port.service} is in use by {_holder(port.number)}; free it, or use another with "
        f"{port.flag}=PORT"
        for port in ports
        if not _is_free(port)
    ]
    return problems


def _is_free(port: Port) -> bool:
    kinds = [socket.SOCK_STREAM] + ([socket.SOCK_DGRAM] if port.datagrams else [])
    return all(_can_bind(port.number, kind) for kind in kinds)


def _can_bind(number: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:
            # As servers do, so that a connection in TIME_WAIT does not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, number))
        except OSError:
            return False
    return True


def _holder(number: int) -> str:
    import psutil  # only a busy port needs it

    try:
        for connection in psutil.net_connections("inet"):
            listening = connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
            if connection.laddr and connection.laddr.port == number and listening and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid} ({command[:100]})"
    except (psutil.Error, OSError):
        pass
    return "a process of another user"
