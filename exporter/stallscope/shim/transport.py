"""How a report leaves the process: one attempt, without waiting, and a word on why it didn't go."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from errno import EMSGSIZE, ENOBUFS
from typing import Any

from stallscope.report import DEFAULT_PORT, DEFAULT_SOCKET
from stallscope.shim.tolerance import complain, warn

Address = str | tuple[Any, ...]
"""A socket address as the socket module has it."""
_HTTP_TIMEOUT = 1.0
_HTTP_EVERY = 5.0
_HTTP_SELDOM = 80.0


class Datagrams:
    """Sends to the first of several sockets at which somebody listens.

    Each report tries them anew in order, so an exporter that comes late, goes, or moves is found.
    """

    interval = 0.0

    def __init__(self, targets: list[tuple[int, Address]]) -> None:
        """Take pairs of address family and socket address."""
        self._targets = targets
        self._sockets: list[socket.socket | None] = [None] * len(targets)

    def __call__(self, payload: bytes) -> str | None:
        """Send; None, or why it was dropped: `absent`, `queue_full`, `too_large` or `error`."""
        cause = "error"
        for position, (family, address) in enumerate(self._targets):
            try:
                self._send(position, family, address, payload)
            except (FileNotFoundError, ConnectionError, PermissionError):
                cause = "absent"
            except BlockingIOError:
                return "queue_full"
            except OSError as error:
                if error.errno == EMSGSIZE:
                    return "too_large"
                if error.errno == ENOBUFS:
                    return "queue_full"
                cause = "error"
            else:
                return None
        return cause

    def close(self) -> None:
        """Close the sockets."""
        for position, opened in enumerate(self._sockets):
            if opened is not None:
                opened.close()
                self._sockets[position] = None

    def _send(self, position: int, family: int, address: Address, payload: bytes) -> None:
        sender = self._sockets[position]
        if family == socket.AF_UNIX:
            if sender is None:
                sender = self._sockets[position] = _opened(family)
            sender.sendto(payload, address)  # by name each time: a new exporter, a new socket
            return
        if sender is None:
            sender = _opened(family)
            try:
                sender.connect(address)  # only a connected one hears that nobody listens
            except OSError:
                sender.close()
                raise
            self._sockets[position] = sender
        try:
            sender.send(payload)
        except ConnectionRefusedError:  # that was the answer to the report before; this one is still to be sent
            sender.send(payload)
        if sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # this machine's own answer is there at once
            raise ConnectionRefusedError


class Post:
    """Sends over HTTP, where no socket can be shared. It waits for the answer, one second at most.

    So it is used at most every five seconds, and less and less often while there is no answer.
    """

    def __init__(self, scheme: str, host: str, port: int | None, path: str, token: str) -> None:
        self._scheme = scheme
        self._host = host
        self._port = port
        self._path = path
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self.interval = _HTTP_EVERY

    def __call__(self, payload: bytes) -> str | None:
        """Send; None, or why it was dropped: `absent`, `too_large` or `error`."""
        import http.client

        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_HTTP_TIMEOUT)
        try:
            connection.request("POST", self._path, payload, self._headers)
            answer = connection.getresponse()
            text = answer.read(300).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            self.interval = min(self.interval * 2.0, _HTTP_SELDOM)
            return "absent" if isinstance(error, ConnectionError) else "error"
        finally:
            connection.close()
        self.interval = _HTTP_EVERY
        if answer.status < 300:
            return None
        warn(f"the exporter answered {answer.status} to a report: {text!r}", f"http: {answer.status}")
        return "too_large" if answer.status == 413 else "error"

    def close(self) -> None:
        """Nothing is held open."""


def transport(environment: Mapping[str, str]) -> Datagrams | Post:
    """Choose by STALLSCOPE_ADDRESS; without it the node's UNIX socket, or else UDP to the local exporter."""
    address = environment.get("STALLSCOPE_ADDRESS", "").strip()
    if not address:
        return Datagrams([(socket.AF_UNIX, DEFAULT_SOCKET), (socket.AF_INET, ("127.0.0.1", DEFAULT_PORT))])
    scheme, separator, rest = address.partition("://")
    if separator and scheme == "unix" and rest.startswith("/"):
        return Datagrams([(socket.AF_UNIX, rest)])
    try:
        if separator and scheme == "udp":
            host, port = _host_and_port(rest, DEFAULT_PORT)
            return Datagrams(_resolved(host, port))
        if separator and scheme in ("http", "https"):
            place, slash, path = rest.partition("/")
            host, port = _host_and_port(place, 443 if scheme == "https" else 80)
            path = (slash + path).rstrip("/") or "/api/v1/report"
            return Post(scheme, host, port, path, environment.get("STALLSCOPE_TOKEN", "").strip())
    except ValueError:
        pass
    complain(
        f"STALLSCOPE_ADDRESS is {address!r:.200}; expected unix:///path, udp://host:port or http://host:port;"
        " nothing is reported"
    )
    return Datagrams([])


def _opened(family: int) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM)
    opened.setblocking(False)
    return opened


def _host_and_port(place: str, default: int) -> tuple[str, int]:
    """Split host:port or [address]:port.

    Raises:
        ValueError: there is no host, or the port is none.
    """
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = place.partition(":")
    number = int(port) if port else default
    if not host or not 0 < number < 65536:
        raise ValueError(place)
    return host, number


def _resolved(host: str, port: int) -> list[tuple[int, Address]]:
    """Look the host up, once: in the loop there is no time for that."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        complain(f"STALLSCOPE_ADDRESS names the host {host!r:.200}, which is not found ({error}); nothing is reported")
        return []
    return [(family, address) for family, _, _, _, address in found]


Sender = Callable[[bytes], "str | None"]
"""Takes one encoded report without waiting; None where it went, else the cause of the drop. May have `interval`, the
fewest seconds between two reports, and `close()`."""
