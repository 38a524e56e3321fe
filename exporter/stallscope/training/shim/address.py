"""Where STALLSCOPE_ADDRESS sends reports to, if that is no UNIX socket."""

from __future__ import annotations

import socket

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import DEFAULT_PORT, LONGEST_SOCKET_PATH
from stallscope.training.shim.tolerance import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Address = str | tuple[Any, ...]
    """A socket address as the socket module has it."""


class Destination:
    """The sockets that an address stands for; for reports over HTTP, also the parts of its URL."""

    __slots__ = ("host", "path", "port", "scheme", "targets")

    def __init__(
        self, targets: list[tuple[int, Address]], scheme: str = "", host: str = "", port: int = 0, path: str = ""
    ) -> None:
        self.targets = targets
        """Pairs of address family and socket address."""
        self.scheme = scheme
        self.host = host
        self.port = port
        self.path = path
        """Path of the URL; empty for datagrams."""


def destination(address: str) -> Destination | None:
    """Return what a value of STALLSCOPE_ADDRESS stands for; complain and return None if it is invalid."""
    scheme, separator, rest = address.partition("://")
    try:
        if separator and scheme == "udp":
            return Destination(_resolved(*host_and_port(rest, DEFAULT_PORT)))
        if separator and scheme in ("http", "https"):
            place, slash, path = rest.partition("/")
            host, port = host_and_port(place, 443 if scheme == "https" else 80)
            path = (slash + path).rstrip("/") or "/api/v1/report"
            if not path.isprintable() or " " in path:
                raise ValueError(path)
            return Destination(_resolved(host, port, socket.SOCK_STREAM), scheme, host, port, path)
    except ValueError:
        pass
    shown = scheme.rpartition("@")[2] + separator + rest.rpartition("@")[2]  # without a password
    complain(
        f"STALLSCOPE_ADDRESS is {shown!r:.200}; expected unix:///path (of at most {LONGEST_SOCKET_PATH} bytes),"
        " udp://host:port, http://host:port or https://host:port; nothing is reported"
    )
    return None


def host_and_port(place: str, default: int) -> tuple[str, int]:
    """Split host:port or [address]:port.

    Raises:
        ValueError: the host is missing or impossible, or the port is invalid.
    """
    host, colon, port = place.partition(":")
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        try:
            socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        except OSError:
            raise ValueError(place) from None
        if not bracket or colon not in ("", ":"):
            raise ValueError(place)
    number = default
    if port:
        number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    if not host or not 0 < number < 65536 or not host.isprintable() or any(each in " @[]/?#\\" for each in host):
        raise ValueError(place)
    return host, number


def _resolved(host: str, port: int, kind: int = socket.SOCK_DGRAM) -> list[tuple[int, Address]]:
    """Resolve the host once, because the training loop must not wait for DNS."""
    try:
        with standard_library():  # a codec for names of hosts is imported
            found = socket.getaddrinfo(host, port, type=kind)
    except OSError as error:
        complain(f"STALLSCOPE_ADDRESS names the host {host!r:.200}, which is not found ({error}); nothing is reported")
        return []
    return [(family, address) for family, _, _, _, address in found]
