"""Send reports over HTTP, for nodes that cannot share a socket."""

from __future__ import annotations

import socket
import time

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.tolerance import complain, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from stallscope.training.shim.address import Address, Destination
    from stallscope.training.shim.signing import Signing

_MAX_RESPONSE = 8192
"""Bytes of a response that are read."""
_HTTP_INTERVAL = 5.0
_MAX_HTTP_INTERVAL = 80.0


class Post:
    """Sends over HTTP, for nodes that cannot share a socket. It waits for the response, for at most the timeout.

    So it sends at most every five seconds, and backs off while there is no response. The host name is resolved once,
    when the run begins.
    """

    def __init__(
        self, place: Destination, authorities: str = "", sign: Signing | None = None, *, timeout: float = 1.0
    ) -> None:
        """Prepare to send.

        Args:
            place: the exporter's endpoint for reports.
            authorities: file of certificates to trust instead of the system's; empty for the system's.
            sign: signs each report; None to send unsigned reports.
            timeout: seconds to wait for a response.
        """
        self.sign = sign
        self._timeout = timeout
        self._targets = place.targets
        self._host = place.host
        self._tls: ssl.SSLContext | None = None
        if place.scheme == "https":
            with standard_library():
                import ssl

            self._tls = ssl.create_default_context(cafile=authorities or None)
        name = f"[{place.host}]" if ":" in place.host else place.host
        self._head = (
            f"POST {place.path} HTTP/1.1\r\nHost: {name}:{place.port}\r\nContent-Type: application/json\r\n"
            "Connection: close\r\nContent-Length: "
        )
        self.interval = _HTTP_INTERVAL
        self.on_answer: Callable[[bytes], None] | None = None
        """Called with the exporter's response to an accepted report: a request for traces."""

    def __call__(self, payload: bytes) -> str | None:
        """Send a report; return None, or the reason if dropped: `absent`, `timeout`, `too_large` or `error`."""
        if self.sign is not None:
            payload = self.sign(payload)
        try:
            answer = self._exchange(self._head.encode() + b"%d\r\n\r\n" % len(payload) + payload)
            status = int(answer.split(None, 2)[1])
        except (OSError, ValueError, IndexError) as error:
            self.interval = min(self.interval * 2.0, _MAX_HTTP_INTERVAL)
            if isinstance(error, TimeoutError):
                return "timeout"
            return "absent" if isinstance(error, ConnectionError) else "error"
        self.interval = _HTTP_INTERVAL
        body = answer.partition(b"\r\n\r\n")[2]
        if status < 300:
            if body and self.on_answer is not None:
                self.on_answer(body)
            return None
        text = body[:300].decode(errors="replace")
        warn(f"the exporter answered {status} to a report: {text!r}", f"http: {status}")
        return "too_large" if status == 413 else "error"

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _exchange(self, request: bytes) -> bytes:
        """Send the request and read the response, all within the timeout; http.client has a timeout for each wait only.

        Raises:
            OSError: no response in time.
        """
        deadline = time.monotonic() + self._timeout
        connection = connected(self._targets, deadline)
        try:
            wait_until(deadline, connection)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=self._host)
                wait_until(deadline, connection)
            connection.sendall(request)
            answer = b""
            while len(answer) < _MAX_RESPONSE:
                wait_until(deadline, connection)
                part = connection.recv(_MAX_RESPONSE)
                if not part:
                    break
                answer += part
                if answer[9:10] == b"2" and _is_whole(answer):
                    break
            return answer
        finally:
            connection.close()


def post_to(place: Destination, environment: Mapping[str, str], sign: Signing | None, *, timeout: float) -> Post | None:
    """Return the sender for this endpoint; complain and return None if STALLSCOPE_CA_FILE is invalid."""
    authorities = environment.get("STALLSCOPE_CA_FILE", "").strip()
    try:
        return Post(place, authorities, sign, timeout=timeout)
    except OSError as error:
        complain(f"STALLSCOPE_CA_FILE names {authorities!r:.200}, which can't be used ({error}); nothing is reported")
        return None


def _is_whole(answer: bytes) -> bool:
    """Return True if the response is complete; one without Content-Length is complete with its head."""
    with standard_library():
        import re  # only HTTP needs it

    head, end, body = answer.partition(b"\r\n\r\n")
    announced = re.search(rb"(?i)\r\ncontent-length: *(\d{1,9})", head)
    if announced is None:
        return bool(end) or answer[9:12] != b"200"
    return bool(end) and len(body) >= int(announced[1])


def connected(targets: list[tuple[int, Address]], deadline: float) -> socket.socket:
    """Connect to the first of several addresses that accepts.

    Raises:
        OSError: none of them has accepted by the deadline.
    """
    problem: OSError = ConnectionRefusedError("the host is not known")
    for family, address in targets:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            wait_until(deadline, connection)
            connection.connect(address)
        except OSError as error:
            connection.close()
            problem = error
        else:
            return connection
    raise problem


def wait_until(deadline: float, connection: socket.socket) -> None:
    """Limit the next wait of a connection to the time up to the deadline.

    Raises:
        TimeoutError: the deadline is over.
    """
    left = deadline - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("the exporter took too long to respond")
    connection.settimeout(left)
