"""The two datagram doors, read by one thread.

A door that can't be opened is no reason to stop: its `problem` says why and what to do, the others work, and it is
tried again. So is one whose socket file was removed: nobody could find it any more.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stallscope.intake.complaints import Complaints
from stallscope.intake.runs import Transport
from stallscope.report import MAX_BYTES, ReportError
from stallscope.sampling.clock import Clock, SystemClock

_logger = logging.getLogger(__name__)

Accept = Callable[[bytes, Transport, int | None], object]

_CREDENTIALS = struct.Struct("3i")
_CONTROL_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)
"""Room for the sender's credentials alone: file descriptors that somebody sends along never get in."""
_TOGETHER = 0.1
"""Seconds for which reports wait for others: taken in one after the other, each costs half as much as alone."""
_MOST_WAITING = 64
"""Datagrams of a door that wait at most; then they are taken in at once."""
_RECEIVE_BUFFER = 4 << 20
_MENDING_INTERVAL = 1.0
"""Seconds between two looks at whether each door is open and in its place."""


class Datagram(NamedTuple):
    """What came through a door."""

    data: bytes
    pid: int | None
    """The sender's, where the kernel tells it."""
    origin: str
    """Where it came from, as far as the door tells."""


class Door:
    """One datagram socket."""

    def __init__(self, transport: Transport, address: str) -> None:
        """Take the name and the address as a person would write it."""
        self.transport: Transport = transport
        self.address = address
        self.problem = ""
        """Why the door is not open, or the empty string."""
        self.socket: socket.socket | None = None
        self.waiting: deque[Datagram] = deque()
        """What came through and has not been taken in."""
        self.hopeless = False
        """Whether it is not worth another try: looking for a host holds up the other door."""

    def open(self) -> bool:
        """Bind; tells whether it worked, and leaves the reason in `problem` if not."""
        try:
            self.socket = self._bind()
            self.problem = ""
        except OSError as error:
            self.hopeless = isinstance(error, socket.gaierror)
            self.problem = f"no reports through {self.address}: {error.strerror or error}; {self._remedy(error)}"
        return self.socket is not None

    def receive(self) -> Datagram | None:
        """The next datagram, or None when there is none."""
        assert self.socket is not None
        try:
            data, control, _flags, sender = self.socket.recvmsg(MAX_BYTES + 1, _CONTROL_BYTES)
        except OSError:  # nothing there, or an error that a datagram socket reports once and forgets
            return None
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) == _CREDENTIALS.size:
                return Datagram(data, _CREDENTIALS.unpack(content)[0], self._origin(sender))
        return Datagram(data, None, self._origin(sender))

    def in_place(self) -> bool:
        """Whether senders can find the open socket."""
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
    """A UNIX datagram socket; the kernel tells who sends."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        """Take the socket's path and its file mode."""
        super().__init__("unix", str(path))
        self._path = path
        self._mode = mode
        self._identity = (0, 0)

    def in_place(self) -> bool:
        """Whether the file is still there, and still this socket's."""
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
            bound.setblocking(False)
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
            raise OSError(errno.EEXIST, "the file exists and is no socket")
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
                raise OSError(errno.EADDRINUSE, "another program answers there") from None
            else:
                raise OSError(errno.EADDRINUSE, "another exporter answers there")

    def _remedy(self, error: OSError) -> str:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return "choose a path in a folder that this user may write to"
        if error.errno == errno.EADDRINUSE:
            return "stop the other one or choose another path"
        return "choose another path"


class UdpDoor(Door):
    """A UDP socket."""

    def __init__(self, host: str, port: int) -> None:
        """Take the address; a port of 0 lets the kernel choose."""
        super().__init__("udp", f"UDP {host}:{port}")
        self._host = host
        self._port = port

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
            bound.setblocking(False)
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


class DoorKeeper:
    """Reads every open door in one thread and hands on what comes."""

    def __init__(
        self,
        doors: tuple[Door, ...],
        accept: Accept,
        clock: Clock | None = None,
        complaints: Complaints | None = None,
    ) -> None:
        """Take the doors, and what to call with data, transport and pid; it may raise ReportError.

        Senders of datagrams get no answer, so why one was refused goes to the complaints.
        """
        self.doors = doors
        self._accept = accept
        self._clock = clock or SystemClock()
        self._complaints = complaints or Complaints(self._clock)
        self._wake: socket.socket | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the doors and read from those that opened; the others are logged."""
        for door in self.doors:
            if not door.open():
                _logger.warning("%s", door.problem)
        waked, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._read_for_ever, args=(waked,), name="doors", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Take in what has arrived by now, and close."""
        if self._thread is None or self._wake is None:
            return
        self._stopping.set()
        self._wake.close()
        self._thread.join(timeout)
        self._thread = None
        for door in self.doors:
            door.close()

    def _read_for_ever(self, waked: socket.socket) -> None:
        with waked, selectors.DefaultSelector() as selector:
            selector.register(waked, selectors.EVENT_READ)
            for door in self.doors:
                if door.socket is not None:
                    selector.register(door.socket, selectors.EVENT_READ, door)
            mended = self._clock.monotonic()
            due = 0.0
            while not self._stopping.is_set():
                wait = max(0.0, due - time.monotonic()) if self._waiting else _MENDING_INTERVAL
                for ready, _events in selector.select(wait):
                    if ready.data is not None:
                        if not self._waiting:
                            due = time.monotonic() + _TOGETHER
                        self._receive(ready.data)
                if self._waiting and (time.monotonic() >= due or self._waiting >= _MOST_WAITING):
                    self._take_in()
                if self._clock.monotonic() - mended >= _MENDING_INTERVAL:
                    for door in self.doors:
                        self._mend(door, selector)
                    mended = self._clock.monotonic()
            self._take_in()
            for door in self.doors:
                if door.socket is not None:
                    self._receive(door)
            self._take_in()

    def _mend(self, door: Door, selector: selectors.BaseSelector) -> None:
        if door.socket is not None:
            if door.in_place():
                return
            _logger.warning("%s is no longer in its place; opening it anew", door.address)
            selector.unregister(door.socket)
            self._receive(door)
            door.close()
        elif door.hopeless:
            return
        problem = door.problem
        if door.open():
            assert door.socket is not None
            selector.register(door.socket, selectors.EVENT_READ, door)
            _logger.info("reports can come through %s again", door.address)
        elif door.problem != problem:
            _logger.warning("%s", door.problem)

    @property
    def _waiting(self) -> int:
        """The most datagrams that wait behind one door."""
        return max((len(door.waiting) for door in self.doors), default=0)

    def _receive(self, door: Door) -> None:
        """Let what has come to a door wait here: the kernel's queue for a UNIX socket has room for eleven."""
        while len(door.waiting) < _MOST_WAITING and (datagram := door.receive()) is not None:
            door.waiting.append(datagram)

    def _take_in(self) -> None:
        """Take in what waits, the doors in turn, and keep them free meanwhile."""
        for _ in range(self._waiting):
            for door in self.doors:
                if door.waiting:
                    self._take(door, door.waiting.popleft())
                if door.socket is not None:
                    self._receive(door)

    def _take(self, door: Door, datagram: Datagram) -> None:
        try:
            self._accept(datagram.data, door.transport, datagram.pid)
        except ReportError as error:
            where = f"{door.address} from {datagram.origin}" if datagram.origin else door.address
            self._complaints.tell(where, error)
        except Exception:
            _logger.exception("a report through %s could not be taken in", door.address)
