"""Send reports: one attempt each, without waiting. A sender returns the reason for a dropped report."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from errno import EBADF, EHOSTUNREACH, EMSGSIZE, ENETDOWN, ENETUNREACH, ENOBUFS, ENOTSOCK

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import DEFAULT_PORT, DEFAULT_SOCKET, LONGEST_SOCKET_PATH, MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stallscope.training.shim.address import Address
    from stallscope.training.shim.http_transport import Post
    from stallscope.training.shim.signing import Signing

    Sender = Callable[[bytes], str | None]
    """Sends one encoded report without waiting; returns None, or the reason if the report was dropped. May have
    `interval`, the minimum seconds between two reports, `sign`, which makes a report longer, and `close()`."""

_PATIENCE = 8
"""Failed datagrams before the sender backs off: a restarted exporter responds again by then."""
_MAX_DATAGRAM_INTERVAL = 4.0


class Datagrams:
    """Sends each report to the first of several sockets that has a listener.

    The sockets are tried in order for each report. So an exporter that starts late, stops, or moves is found: at once
    if it responded a moment ago, otherwise within seconds, because the search must not cost more than sending.
    """

    def __init__(self, targets: list[tuple[int, Address]], sign: Signing | None = None) -> None:
        """Prepare to send.

        Args:
            targets: pairs of address family and socket address.
            sign: signs each report; None to send unsigned reports.
        """
        self._targets = targets
        self._sockets: list[socket.socket | None] = [None] * len(targets)
        self._missed = 0
        self.interval = 0.0
        """Minimum seconds between two reports."""
        self.sign = sign
        self.passed = -1
        """Descriptor to send with the next report through a UNIX socket, or -1."""
        self._used = -1

    def __call__(self, payload: bytes) -> str | None:
        """Send a report; return None, or the reason if it was dropped.

        Reasons are `absent`, `denied`, `unreachable`, `queue_full`, `too_large` and `error`.
        """
        cause = self._send_to_first(payload if self.sign is None else self.sign(payload))
        if cause in (None, "queue_full"):
            self._missed, self.interval = 0, 0.0
        else:
            self._missed += 1
            if self._missed > _PATIENCE:
                self.interval = min(max(self.interval * 2.0, 1.0), _MAX_DATAGRAM_INTERVAL)
        return cause

    def _send_to_first(self, payload: bytes) -> str | None:
        cause = "absent"
        for position, (family, address) in enumerate(self._targets):
            try:
                self._send(position, family, address, payload)
            except PermissionError:
                cause = "denied"
            except (FileNotFoundError, NotADirectoryError, ConnectionError):
                pass  # of several causes, report one that the user can fix
            except BlockingIOError:
                return "queue_full"
            except OSError as error:
                if error.errno == EMSGSIZE:
                    return "too_large"
                if error.errno == ENOBUFS:
                    return "queue_full"
                cause = "unreachable" if error.errno in (EHOSTUNREACH, ENETUNREACH, ENETDOWN) else "error"
            else:
                self._used = position
                return None
        return cause

    @property
    def passes(self) -> bool:
        """True if there is a UNIX socket of an exporter to pass descriptors through."""
        if self._used >= 0 and self._targets[self._used][0] == socket.AF_UNIX:
            return True  # it received the newest report
        return any(family == socket.AF_UNIX and os.path.exists(str(address)) for family, address in self._targets)

    @property
    def route(self) -> tuple[str, int]:
        """Path of the UNIX socket that received the newest report; for UDP, the local socket's descriptor.

        The empty string and -1 before the first report, and for UDP with signatures: an unsigned notice would be
        rejected.
        """
        if self._used < 0:
            return "", -1
        family, address = self._targets[self._used]
        if family == socket.AF_UNIX:
            return str(address), -1
        opened = self._sockets[self._used]
        return "", -1 if opened is None or self.sign is not None else opened.fileno()

    def close(self) -> None:
        """Close the sockets."""
        for position, opened in enumerate(self._sockets):
            if opened is not None:
                with suppress(OSError):  # the program may have closed all descriptors
                    opened.close()
                self._sockets[position] = None

    def _send(self, position: int, family: int, address: Address, payload: bytes) -> None:
        try:
            self._send_once(position, family, address, payload)
        except OSError as error:
            opened = self._sockets[position]
            if error.errno not in (EBADF, ENOTSOCK) or opened is None:
                raise
            opened.detach()  # the program has closed the descriptor, and may have opened it again as something else
            self._sockets[position] = None
            self._send_once(position, family, address, payload)

    def _send_once(self, position: int, family: int, address: Address, payload: bytes) -> None:
        sender = self._sockets[position]
        if sender is None:
            sender = self._sockets[position] = datagram_socket(family)
            sender.setblocking(False)
        if family == socket.AF_UNIX:  # by path each time, because a restarted exporter has a new socket
            if self.passed < 0:
                sender.sendto(payload, address)
            else:
                with standard_library():
                    from stallscope.training.shim.descriptors import send_with

                send_with(self.passed, sender, payload, address)
                self.passed = -1
            return
        # Only a connected socket detects a missing listener. It is connected again each time, because Cilium chooses
        # the pod of a Service only at connect(), and the chosen pod may be gone.
        sender.connect(address)
        try:
            sender.send(payload)
        except (ConnectionRefusedError, ConnectionAbortedError):  # an error of the report before; send this one
            sender.send(payload)
        if sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # on this machine, an error is reported at once
            raise ConnectionRefusedError


def transport(environment: Mapping[str, str], *, timeout: float = 1.0) -> Datagrams | Post:
    """Return the sender for STALLSCOPE_ADDRESS; by default the node's UNIX socket, or UDP to the local exporter.

    Args:
        environment: STALLSCOPE_ADDRESS, STALLSCOPE_CA_FILE, STALLSCOPE_TOKEN and STALLSCOPE_TOKEN_FILE.
        timeout: seconds for which a report over HTTP waits for its response.
    """
    address = environment.get("STALLSCOPE_ADDRESS", "").strip()
    sign = _signing(environment)
    if not address:
        return Datagrams([(socket.AF_UNIX, DEFAULT_SOCKET), (socket.AF_INET, ("127.0.0.1", DEFAULT_PORT))], sign)
    scheme, _, path = address.partition("://")
    if scheme == "unix" and path.startswith("/") and len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return Datagrams([(socket.AF_UNIX, path)], sign)
    with standard_library():
        from stallscope.training.shim.address import destination

    found = destination(address)
    if found is None:
        return Datagrams([])
    if not found.path:
        return Datagrams(found.targets, sign)
    with standard_library():
        from stallscope.training.shim.http_transport import post_to

    return post_to(found, environment, sign, timeout=timeout) or Datagrams([])


def datagram_socket(family: int) -> socket.socket:
    """Return a new socket with a descriptor above those of the standard streams."""
    opened = socket.socket(family, socket.SOCK_DGRAM)
    if opened.fileno() > 2:
        return opened
    with standard_library():
        from stallscope.training.shim.descriptors import above_standard

    return socket.socket(fileno=above_standard(opened.detach()))


def room(sender: Sender) -> int:
    """Return the maximum bytes of a report with a sender."""
    if getattr(sender, "sign", None) is None:
        return MAX_BYTES
    with standard_library():
        from stallscope.training.protocol.signature import LENGTH

    return MAX_BYTES - LENGTH


def _signing(environment: Mapping[str, str]) -> Signing | None:
    token = environment.get("STALLSCOPE_TOKEN", "").strip()
    file = environment.get("STALLSCOPE_TOKEN_FILE", "").strip()
    if not token and not file:
        return None
    with standard_library():
        from stallscope.training.shim.signing import Signing  # imports hashlib, which most runs do not need

    return Signing(token, "" if token else file)
