"""The stack's ports: those that the user chose, or free ones."""

from __future__ import annotations

import errno
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from stallscope.lab.stack.errors import StackError

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

    @property
    def instance(self) -> str:
        """The service's label `instance`, with the machine's name: a loopback address names no node."""
        return f"{platform.node() or ADDRESS}:{self.number}"


@contextmanager
def reserved_ports(ports: Sequence[Port], show: Callable[[str], None]) -> Iterator[list[Port]]:
    """Yield ports that differ and are free: the given ones, or the default ones all higher by the same number.

    No other stack gets these ports during the block, even before the services listen on them.

    Args:
        ports: the services' ports.
        show: prints a line if other ports than the default ones are used, with the reason.

    Raises:
        StackError: none are free; the message has each service, its port, the process that uses it, and the flag.
    """
    first: list[str] = []
    for distance in range(0, _FARTHEST, _DISTANCE):
        found = [port if port.chosen else port._replace(number=port.number + distance) for port in ports]
        with ExitStack() as reservations:
            problems = _problems(found, reservations)
            first = first or problems
            if not problems:
                if first:
                    show(f"{first[0].partition(';')[0]}; the default ports of this stack are {distance} higher")
                yield found
                return
        if all(port.chosen for port in ports):
            break
    raise StackError("\n".join(first))


def _problems(ports: Sequence[Port], reservations: ExitStack) -> list[str]:
    problems = [
        f"{first.service} and {second.service} have the same port {first.number}; change one with {second.flag}"
        for position, first in enumerate(ports)
        for second in ports[position + 1 :]
        if first.number == second.number
    ]
    for port in {port.number: port for port in ports}.values():
        # All stacks reserve in the same order: of two that start at once, the first gets all of its ports.
        reserved = _reserve(port.number, reservations)
        if not reserved or not _is_free(port):
            problems.append(
                f"port {port.number} for {port.service} is in use by {_holder(port.number, reserved)}; free it, or use "
                f"another with {port.flag}=PORT"
            )
        if not reserved:
            break
    return problems


def _reserve(number: int, reservations: ExitStack) -> bool:
    """Reserve a port among all stacks of this machine; return False if another stack has it.

    The reservation is an abstract Unix socket: it has no file, and ends with the process at the latest.
    """
    reservation = reservations.enter_context(socket.socket(socket.AF_UNIX))
    try:
        reservation.bind(f"\0stallscope-up-port-{number}")
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


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


def _holder(number: int, reserved: bool) -> str:
    import psutil  # only a busy port needs it

    try:
        for connection in psutil.net_connections("inet"):
            listening = connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
            if connection.laddr and connection.laddr.port == number and listening and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid} ({command[:100]})"
    except (psutil.Error, OSError):
        pass
    return "a process of another user" if reserved else "another stack"
