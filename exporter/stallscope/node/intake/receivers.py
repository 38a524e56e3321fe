"""Receivers of datagrams: a UNIX socket and a UDP socket."""

from __future__ import annotations

import errno
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from stallscope.common.address import Address, all_interfaces
from stallscope.node.intake.local_senders import LocalSenders
from stallscope.node.intake.pending import Datagram, PassedFile, sessions_terminated
from stallscope.node.intake.runs import Transport
from stallscope.training.protocol.signature import is_signed
from stallscope.training.protocol.vocabulary import MAX_BYTES

Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]
"""Data, ancillary data, flags and the sender's address, as `recvmsg` returns them."""

_CREDENTIALS = struct.Struct("iII")
"""Pid, uid and gid of the sender."""
_DESCRIPTOR = struct.Struct("i")
_CONTROL_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_DESCRIPTOR.size)
"""Space for the sender's credentials and one file descriptor; the kernel closes further ones."""
_RECEIVE_BUFFER = 4 << 20
_MAX_SENDERS = 4096
"""Sender addresses whose session a UDP receiver remembers."""
_RECEIVE_TIMEOUT = struct.pack("@ll", 0, 250_000)
"""Longest blocking read: a quarter of a second, as a `timeval`."""


class Receiver:
    """A datagram socket."""

    def __init__(self, transport: Transport, address: str) -> None:
        self.transport: Transport = transport
        self.address = address
        self.problem = ""
        """Reason why the receiver is closed and what to do, or the empty string."""
        self.socket: socket.socket | None = None
        self.unresolvable = False
        """True if the host name can't be resolved: retries would query DNS again and again, which may take long."""

    def open(self) -> bool:
        """Bind the socket, and return True on success; `problem` has the reason for a failure."""
        try:
            self.socket = self._bind()
            self.problem = ""
        except OSError as error:
            self.unresolvable = isinstance(error, socket.gaierror)
            self.problem = f"no reports through {self.address}: {error.strerror or error}; {self._remedy(error)}"
        return self.socket is not None

    def receive(self, *, wait: bool) -> Received | None:
        """Return the next datagram, or None; with `wait`, block for up to a quarter of a second."""
        assert self.socket is not None
        try:
            flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
            received = self.socket.recvmsg(MAX_BYTES + 1, _CONTROL_BYTES, flags)
        except OSError:  # no datagram, or a socket error, which the kernel reports only once
            return None
        data, control, _flags, sender = received
        # A socket that was shut down returns no data and no sender.
        return received if data or control or sender is not None else None

    def read(self, received: Received) -> Datagram:
        """Return the parsed datagram. Separate from `receive`, so that the socket is emptied quickly."""
        data, control, _flags, sender = received
        datagram = Datagram(data, None, self._origin(sender), sender)
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) == _CREDENTIALS.size:
                pid, uid, _gid = _CREDENTIALS.unpack(content)
                terminated = sessions_terminated(sender)
                datagram = datagram._replace(pid=pid, sender=pid, terminated=terminated, uid=uid)
            elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                # The last one is kept; the others close at once.
                for (descriptor,) in _DESCRIPTOR.iter_unpack(content[: len(content) // 4 * 4]):
                    datagram = datagram._replace(file=PassedFile(descriptor))
        return datagram

    def remember(self, datagram: Datagram, session: str) -> None:
        """Remember that the sender of this datagram reports this session."""

    def shut(self) -> None:
        """Unblock a waiting read; datagrams that have arrived can still be read."""
        if self.socket is not None:
            with suppress(OSError):  # ENOTCONN, but the read is unblocked
                self.socket.shutdown(socket.SHUT_RD)

    def in_place(self) -> bool:
        """Return True if senders can still reach the socket."""
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


class UnixReceiver(Receiver):
    """A UNIX datagram socket; the kernel reports pid and uid of each sender."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        super().__init__("unix", str(path))
        self._path = path
        self._mode = mode
        self._identity = (0, 0)

    def in_place(self) -> bool:
        """Return True if the path still refers to this socket."""
        return _identity(self._path) == self._identity

    def close(self) -> None:
        """Close the socket, and remove its file unless another program has replaced it."""
        if self.socket is not None and self.in_place():
            self._path.unlink(missing_ok=True)
        super().close()

    def _bind(self) -> socket.socket:
        folder = self._path.parent
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)  # regardless of the umask: the mode of the socket itself controls who may send
        self._remove_stale()
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
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
                raise OSError(errno.EADDRINUSE, "another program listens there") from None
            else:
                raise OSError(errno.EADDRINUSE, "another exporter listens there")

    def _remedy(self, error: OSError) -> str:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return "choose a path in a folder that this user can write to"
        if error.errno == errno.EADDRINUSE:
            return "stop it or choose another path"
        return "choose another path"


class UdpReceiver(Receiver):
    """A UDP socket."""

    def __init__(self, host: str, port: int, *, notices: bool = True, root: Path = Path("/")) -> None:
        """Take the address.

        Args:
            host: name or address of this machine; empty for all interfaces.
            port: 0 lets the kernel choose.
            notices: treat text from a known sender that is not a report as its notice of SIGTERM or SIGHUP.
            root: folder that contains `proc`, to identify senders on this machine.
        """
        super().__init__("udp", f"UDP {Address(host, port)}")
        self._host = host
        self._port = port
        self._notices = notices
        self._local = LocalSenders(root)
        self._sessions: dict[Any, str] = {}

    def read(self, received: Received) -> Datagram:
        """Return the parsed datagram; the notice of a signal is a traceback written by faulthandler."""
        datagram = super().read(received)
        identity = self._local.identify(received[3], datagram.data)
        if identity is not None:
            datagram = datagram._replace(pid=identity.pid, uid=identity.uid)
        data, session = datagram.data, self._sessions.get(datagram.sender)
        if session is None or data.startswith(b"{") or is_signed(data):
            return datagram
        return datagram._replace(terminated=(session,))

    def remember(self, datagram: Datagram, session: str) -> None:
        """Remember the session that reports from this address."""
        if self._notices and self._sessions.get(datagram.sender) != session:
            self._sessions.pop(datagram.sender, None)
            while len(self._sessions) >= _MAX_SENDERS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[datagram.sender] = session

    @property
    def port(self) -> int:
        """Port of the socket."""
        assert self.socket is not None
        return int(self.socket.getsockname()[1])

    def _bind(self) -> socket.socket:
        # Bytes, because text would load Python's IDNA tables, which take a megabyte.
        host = self._host or all_interfaces()
        found = socket.getaddrinfo(host.encode(), self._port, type=socket.SOCK_DGRAM)
        kind, _type, protocol, _name, address = found[0]
        bound = socket.socket(kind, socket.SOCK_DGRAM, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            if kind == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound

    def _origin(self, address: Any) -> str:
        return str(address[0]).removeprefix("::ffff:")  # of IPv4 senders, where the socket accepts both

    def _remedy(self, error: OSError) -> str:
        return "choose a free port" if error.errno == errno.EADDRINUSE else "choose an address of this machine"


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.lstat()
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)
