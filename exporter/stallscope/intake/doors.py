"""The UNIX and UDP datagram sockets that receive reports."""

from __future__ import annotations

import errno
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from stallscope.intake.runs import Transport
from stallscope.intake.waiting import Datagram, sessions_terminated
from stallscope.protocol.report import MAX_BYTES
from stallscope.protocol.signature import is_signed

Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]
"""Data, ancillary data, flags and the sender's address, as `recvmsg` returns them."""

_SHUT: Received = (b"", [], 0, None)
"""No datagram at all: the socket was shut."""
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of the sender."""
_CONTROL_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)
"""Room for the sender's credentials alone: file descriptors that a client attaches are dropped."""
_RECEIVE_BUFFER = 4 << 20
_MAX_SENDERS = 4096
"""Addresses of which a UDP endpoint remembers the session."""
_PATIENCE = struct.pack("@ll", 0, 250_000)
"""A quarter of a second, as the kernel reads it: how long a read waits at most."""


class Door:
    """One datagram socket."""

    def __init__(self, transport: Transport, address: str) -> None:
        """Take the name and the address as a person would write it."""
        self.transport: Transport = transport
        self.address = address
        self.problem = ""
        """Why the socket is not open, or the empty string."""
        self.socket: socket.socket | None = None
        self.hopeless = False
        """True if opening is not retried: each lookup of the host queries the network, and may take long."""

    def open(self) -> bool:
        """Bind the socket; return False and set `problem` on failure."""
        try:
            self.socket = self._bind()
            self.problem = ""
        except OSError as error:
            self.hopeless = isinstance(error, socket.gaierror)
            self.problem = f"no reports through {self.address}: {error.strerror or error}; {self._remedy(error)}"
        return self.socket is not None

    def receive(self, *, wait: bool) -> Received | None:
        """Return the next datagram, or None; optionally wait for one, for a limited time."""
        assert self.socket is not None
        try:
            received = self.socket.recvmsg(MAX_BYTES + 1, _CONTROL_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except OSError:  # nothing there, or an error that a datagram socket reports once and forgets
            return None
        return None if received == _SHUT else received

    def read(self, received: Received) -> Datagram:
        """The datagram that was received; apart from that, since it has time until it is taken in."""
        data, control, _flags, sender = received
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) == _CREDENTIALS.size:
                pid, uid, _gid = _CREDENTIALS.unpack(content)
                return Datagram(data, pid, self._origin(sender), pid, sessions_terminated(sender), uid)
        return Datagram(data, None, self._origin(sender), sender)

    def note(self, datagram: Datagram, session: str) -> None:
        """Note that this datagram was a report of this session."""

    def shut(self) -> None:
        """End a read that waits; what has arrived can still be read."""
        if self.socket is not None:
            with suppress(OSError):  # it says that it is not connected, and does it
                self.socket.shutdown(socket.SHUT_RD)

    def in_place(self) -> bool:
        """Return True if senders can reach the open socket."""
        return True

    def close(self) -> None:
        """Unbind."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _bind(self) -> socket.socket:
        raise NotImplementedError

    def _origin(self, _address: Any) -> str:
        return ""

    def _remedy(self, error: OSError) -> str:
        raise NotImplementedError


class UnixDoor(Door):
    """A UNIX datagram socket; the kernel reports the sender."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        """Take the socket's path and its file mode."""
        super().__init__("unix", str(path))
        self._path = path
        self._mode = mode
        self._identity = (0, 0)

    def in_place(self) -> bool:
        """Return True if the path still refers to this socket."""
        return _identity(self._path) == self._identity

    def close(self) -> None:
        """Unbind, and remove the file unless another's stands in its place."""
        if self.socket is not None and self.in_place():
            self._path.unlink(missing_ok=True)
        super().close()

    def _bind(self) -> socket.socket:
        folder = self._path.parent
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)  # whatever the umask: who may send is for the socket's own mode to say
        self._remove_stale()
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            bound.bind(str(self._path))
            self._identity = _identity(self._path)
            self._path.chmod(self._mode)
        except OSError:
            bound.close()
            raise
        return bound

    def _remove_stale(self) -> None:
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise OSError(errno.EEXIST, "the file exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
            try:
                caller.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink(missing_ok=True)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    raise
                raise OSError(errno.EADDRINUSE, "another program is using it") from None
            else:
                raise OSError(errno.EADDRINUSE, "another exporter is using it")

    def _remedy(self, error: OSError) -> str:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return "choose a path in a folder that this user may write to"
        if error.errno == errno.EADDRINUSE:
            return "stop the other one or choose another path"
        return "choose another path"


class UdpDoor(Door):
    """A UDP socket."""

    def __init__(self, host: str, port: int, *, notices: bool = True) -> None:
        """Take the address; a port of 0 lets the kernel choose.

        Args:
            host: name or address of this machine.
            port: number of the port.
            notices: take text that is no report, from the sender of reports, as notice of SIGTERM or SIGHUP.
        """
        super().__init__("udp", f"UDP {host}:{port}")
        self._host = host
        self._port = port
        self._notices = notices
        self._sessions: dict[Any, str] = {}

    def read(self, received: Received) -> Datagram:
        """Return the datagram; the notice of a signal is the text that faulthandler writes."""
        datagram = super().read(received)
        data, session = datagram.data, self._sessions.get(datagram.sender)
        if session is None or data.startswith(b"{") or is_signed(data):
            return datagram
        return datagram._replace(terminated=(session,))

    def note(self, datagram: Datagram, session: str) -> None:
        """Note which session reports from this address."""
        if self._notices and self._sessions.get(datagram.sender) != session:
            self._sessions.pop(datagram.sender, None)
            while len(self._sessions) >= _MAX_SENDERS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[datagram.sender] = session

    @property
    def port(self) -> int:
        """The port bound."""
        assert self.socket is not None
        return int(self.socket.getsockname()[1])

    def _bind(self) -> socket.socket:
        # As bytes: text would load Python's tables of international names, a megabyte for nothing.
        found = socket.getaddrinfo(self._host.encode(), self._port, type=socket.SOCK_DGRAM)
        kind, _type, protocol, _name, address = found[0]
        bound = socket.socket(kind, socket.SOCK_DGRAM, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound

    def _origin(self, address: Any) -> str:
        return str(address[0])

    def _remedy(self, error: OSError) -> str:
        return "choose a free port" if error.errno == errno.EADDRINUSE else "choose an address of this machine"


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.lstat()
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)
