"""Listen addresses, written as Prometheus exporters write them, and URLs of HTTP servers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_HIGHEST_PORT = 65_535
_HOST = re.compile(r"([^.]{1,63}\.)*[^.]{1,63}\.?")


class Address(NamedTuple):
    """A host and a port; the empty host stands for all interfaces."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host:port`, `:port` or `[v6]:port`.

    Raises:
        ValueError: with what was expected.
    """
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    well_formed = (
        separator
        and port.isascii()
        and port.isdigit()
        and int(port) <= _HIGHEST_PORT
        and (":" in plain) == bracketed
        and not any(character.isspace() or not character.isprintable() or character in "[]/" for character in plain)
    )
    if not well_formed:
        raise ValueError(f"HOST:PORT, :PORT or [IPV6]:PORT with a port from 0 to {_HIGHEST_PORT}")
    return Address(plain, int(port))


def all_interfaces() -> str:
    """Return the IPv6 wildcard, which accepts IPv4 too, if the machine has IPv6; otherwise that of IPv4."""
    import socket  # which the shim does not need here

    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"  # noqa: S104 - the meaning of an address without a host
    return "::"


def is_this_machine(host: str) -> bool:
    """Return whether a host's name or address is a loopback address, or one that connects to this machine."""
    import ipaddress  # which commands that only read addresses do not need

    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def split_url(text: str) -> SplitResult:
    """Split the URL of an HTTP server, whose host and port are then known to be valid.

    Raises:
        ValueError: it is not the URL of an HTTP server.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        is_sound = (
            re.fullmatch(r"[\x21-\x7e]+", text)
            and parts.scheme in ("http", "https")
            and parts.port != 0
            and _is_host(parts.hostname or "", parts.netloc.rpartition("@")[2])
        )
    except ValueError:
        is_sound = False
    if not is_sound:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    return parts


def _is_host(host: str, place: str) -> bool:
    """Return whether the host is a name or an address, and nothing but a port follows it.

    Raises:
        ValueError: the brackets contain no IPv6 address.
    """
    import ipaddress  # which commands that only read listen addresses do not need

    if "[" in place:
        ipaddress.IPv6Address(host)
        return place.rpartition("]")[2][:1] in ("", ":")
    return _HOST.fullmatch(host) is not None


@lru_cache(1024)
def sender_of(client: str) -> str:
    """Return the part of a client's address that identifies the client: for IPv6 its network of 2^64 addresses."""
    import ipaddress  # which commands that only read addresses do not need

    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv4Address):
        return client
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), 64), strict=False))
