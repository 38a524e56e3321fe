"""Report SIGTERM and SIGHUP to the exporter from a process that one of them ends.

The default action of both signals ends a process at once, also while its main thread is in native code. No Python code
runs then, so `faulthandler` reports the signal: its handler is written in C, writes the stack to a file descriptor and
raises the signal again with the action that it had before. `signal.getsignal` and the exit status stay as they are.

The file descriptor is a UNIX datagram socket that is connected to the exporter's socket. Its address holds the sessions
of this process, so any datagram from it means that this process received a signal. The content is ignored. Over UDP it
is the socket of the reports: text from a session's address that is not a report means the same.

A signal is left unchanged where the program ignores it or a native library handles it. There is no notice over HTTP,
nor over UDP with signatures: the exporter finds that rank lost once its process is gone or silent for too long. Over
UDP a process sends a notice for one of its sessions only.
"""

from __future__ import annotations

import _thread
import os
import signal
import socket
import weakref

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.termination_notice import TERMINATION_ADDRESS
from stallscope.training.shim.descriptors import is_same_file
from stallscope.training.shim.endings import SIGNALS
from stallscope.training.shim.tolerance import tolerate
from stallscope.training.shim.transport import datagram_socket

_MAX_SESSIONS = 5
"""Session identifiers that fit into the 107 bytes of an address."""
_MOST_FILLING = 64
"""Datagrams that fill a send buffer of the kernel's minimum, and more."""
_sessions: dict[str, tuple[str, int]] = {}
"""By session: path of the exporter's UNIX socket, or else the descriptor of the UDP socket that sends the reports."""
_line: _Reports | None = None
_registered: dict[int, tuple[weakref.ref[_File], bool]] = {}
"""By signal: the file given to faulthandler, and whether a Python function handled the signal at that time."""
_has_fork_handler = False


class _Reports:
    """The UDP socket that sends the reports. It belongs to the session and stays open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino

    def is_open(self) -> bool:
        return is_same_file(self.descriptor, self._inode)

    def connect(self, path: str) -> None:
        """Do nothing: each report connects again."""

    def close(self) -> None:
        """Do nothing: the session closes its socket."""


class _Line(_Reports):
    """A socket from which at most one datagram at a time waits in the exporter's queue.

    faulthandler writes dozens of times, and the queue of a UNIX socket is short. So the send buffer is filled with
    datagrams to a second socket that is never read, except for one.
    """

    def __init__(self, sessions: str) -> None:
        self._sockets: list[socket.socket] = []
        line = datagram_socket(socket.AF_UNIX)
        super().__init__(line.fileno())
        self._sockets.append(line)
        unread = datagram_socket(socket.AF_UNIX)
        self._sockets.append(unread)
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes its minimum
        line.bind(TERMINATION_ADDRESS + sessions.encode())
        unread.bind("")
        try:
            for _ in range(_MOST_FILLING):
                line.sendto(b" ", unread.getsockname())
        except BlockingIOError:
            unread.recv(1)

    def connect(self, path: str) -> None:
        self._sockets[0].connect(path)

    def close(self) -> None:
        is_open = self.is_open() if self._sockets else False
        while self._sockets:
            if is_open:
                self._sockets.pop().close()
            else:
                self._sockets.pop().detach()

    __del__ = close


class _File:
    """File object of one signal. Only faulthandler refers to it, so a program that registers its own file frees it."""

    __slots__ = ("__weakref__", "_line")

    def __init__(self, line: _Reports) -> None:
        self._line = line

    def fileno(self) -> int:
        return self._line.descriptor

    def flush(self) -> None:
        """Do nothing: faulthandler calls this."""


def announce(session: str, path: str, descriptor: int = -1) -> None:
    """Let the exporter know when a signal ends this process. Called after each report that was sent.

    Connects again each time, since a restarted exporter has another socket at the same path.

    Args:
        session: identifier of the session that has reported.
        path: of the exporter's UNIX socket, if that took the report.
        descriptor: of the UDP socket that sent the report, or -1.
    """
    if not path and descriptor < 0:
        return
    if _thread.get_native_id() != os.getpid():  # faulthandler's alternate stack has to be the main thread's
        return
    try:
        if _sessions.get(session) != (path, descriptor):
            if session not in _sessions and len(_sessions) >= _MAX_SESSIONS:
                return
            _sessions[session] = path, descriptor
            _open_line()
        if _line is not None and not _line.is_open():
            _open_line()
        if _line is not None:
            _line.connect(path)
    except OSError:
        pass  # the exporter is gone, or the sandbox has no abstract addresses
    except Exception as error:
        tolerate(error, "preparing for SIGTERM")


def withdraw(session: str) -> None:
    """Report no signal for this session from now on."""
    if _sessions.pop(session, None) is not None:
        _reopen_line()


def _after_fork_in_child() -> None:
    _sessions.clear()
    _reopen_line()


def _reopen_line() -> None:
    try:
        _open_line()
    except Exception as error:
        tolerate(error, "preparing for SIGTERM")


def _open_line() -> None:
    """Open a socket for the present sessions in place of the one before, and register it."""
    global _has_fork_handler, _line
    if not _has_fork_handler and hasattr(os, "register_at_fork"):
        _has_fork_handler = True
        os.register_at_fork(after_in_child=_after_fork_in_child)
    previous, _line = _line, None
    try:
        if _sessions:
            path, descriptor = next(iter(_sessions.values()))
            _line = _Line("".join(_sessions)) if path else _Reports(descriptor)
            _line.connect(path)
    finally:
        for number in SIGNALS:
            if _line is None:
                _unregister(number)
            else:
                _register(number, _line)
        if previous is not None:
            previous.close()


def _register(number: int, line: _Reports) -> None:
    import faulthandler

    if number in _registered:
        if _registered[number][0]() is None:  # the program has registered its own file
            return
        by_python = _registered[number][1]
    elif is_default(number):
        by_python = False
    elif _is_python_handler(number):
        by_python = True
    else:
        return
    file = _File(line)
    faulthandler.register(number, file=file, all_threads=False, chain=True)
    _registered[number] = weakref.ref(file), by_python


def _unregister(number: int) -> None:
    """Restore the action from before, unless the program has changed it in the meantime."""
    import faulthandler

    if number not in _registered:
        return
    file, by_python = _registered.pop(number)
    handler = signal.getsignal(number)
    if file() is not None and (callable(handler) if by_python else handler == signal.SIG_DFL):
        faulthandler.unregister(number)


def is_default(number: int) -> bool:
    """Return whether the kernel has the default action for this signal, neither a handler nor to ignore it."""
    with open("/proc/self/status", "rb") as file:
        masks = dict(line.split(b":", 1) for line in file if line.startswith((b"SigCgt", b"SigIgn")))
    return len(masks) == 2 and not any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())


def _is_python_handler(number: int) -> bool:
    """Return whether a Python function handles this signal, with nothing in between such as faulthandler.

    All signals with a Python function have one C handler, so the last real-time signal gets one for a moment. SIGINT
    would do as well, but a shell ignores that for commands in the background.
    """
    spare = getattr(signal, "SIGRTMAX", None)
    if spare is None or not callable(signal.getsignal(number)) or not is_default(spare):
        return False
    try:
        with standard_library():
            import ctypes
    except ImportError:
        return False
    handlers = []
    try:
        signal.signal(spare, lambda *_: None)
        for each in (number, spare):
            action = ctypes.create_string_buffer(512)
            if ctypes.CDLL(None).sigaction(each, None, action):
                return False
            handlers.append(action.raw[: ctypes.sizeof(ctypes.c_void_p)])  # the handler comes first on Linux
    finally:
        signal.signal(spare, signal.SIG_DFL)
    return handlers[0] == handlers[1]
