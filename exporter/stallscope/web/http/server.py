"""The HTTP server: one listening address, a few worker threads, connections that are kept alive.

The library (cheroot) accepts, polls idle connections, and keeps the pool of workers. What this file changes is who
waits: a connection goes to a worker only when bytes have arrived, and the worker takes what is there and never waits
for more; what a client does not take of an answer waits for it with the poller. So a client that is silent, sends a
byte a second or never reads costs a file descriptor and no thread.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

from stallscope.common.address import Address, sender_of
from stallscope.protocol.report import MAX_BYTES
from stallscope.web.http import response
from stallscope.web.http.peer import Peer
from stallscope.web.http.refusals import Reason, Refusals
from stallscope.web.http.request import MAX_HEAD_BYTES, Malformed, Request, take_request
from stallscope.web.http.response import Response

_logger = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""How long a request may take to arrive, and an answer to be taken."""
IDLE_SECONDS = 90
"""How long a connection stays open between two requests: longer than the usual scrape interval."""
MAX_CONNECTIONS = 256
"""Connections that one listener holds at once, where the limit of open files (`ulimit -n`) allows it."""
_MIN_CONNECTIONS = 8
_OTHER_FILES = 128
"""Open files that everything else in the process may need."""
_CLOSING = 2
"""Times the limit: connections of the busiest client, those that are about to be closed included."""
_CLOSING_OR_NEW = 3
"""Times the limit: all connections with those of other clients."""
_WAITING_REQUESTS = 128
_RECEIVE_BYTES = MAX_HEAD_BYTES + MAX_BYTES
_OUT_OF_MEANS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_OUT_OF_MEANS_PAUSE = 0.05
_AT_A_TIME = 16
"""Requests of one connection that are answered before it is the others' turn."""
_BEYOND_LIMITS = frozenset((408, 431))
"""Statuses of requests that take too long, or are too long."""
_TOO_SLOW = f"the request took longer than {REQUEST_SECONDS:g} s to arrive"
_NEVER_TAKEN = f"the answer was not taken within {REQUEST_SECONDS:g} s"
_TOO_MANY = "more connections at once than the limit; the client with the most loses the one silent for longest"
_COMPLAINT_SECONDS = 60.0

Answer = Callable[[Request, str], Response]
"""What answers a request from that client address."""


class ListenError(Exception):
    """An address can't be listened on; the message is one line with the reason and the remedy."""


@contextmanager
def _spared() -> Iterator[None]:
    """Keep out two modules that the library imports only to look at versions, six megabytes in every exporter.

    A Python without TLS and an installation without metadata are cases that it handles.
    """
    no_ssl = "ssl" not in sys.modules
    no_metadata = not hasattr(importlib, "metadata")
    if no_ssl:
        sys.modules["ssl"] = None  # type: ignore[assignment]
    if no_metadata:
        setattr(importlib, "metadata", None)  # noqa: B010 - the type checker knows it as a module
    try:
        yield
    finally:
        if no_ssl:
            del sys.modules["ssl"]
        if no_metadata:
            delattr(importlib, "metadata")


with _spared():
    from cheroot.server import HTTPConnection, HTTPServer
    from cheroot.workers.threadpool import ThreadPool


class _Connection(HTTPConnection):
    """One client. Only one thread at a time has it: a worker, or the poller between two requests."""

    server: _Listener

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Caches that nothing here asks, and circles that would keep each closed connection until a garbage collection.
        del self.resolve_peer_creds, self.get_peer_creds
        self.received = bytearray()
        self.unfinished_since: float | None = time.time()
        """When the request began that has not wholly arrived; None between two requests."""
        self.refused = False
        self.more = False
        """Whether requests that have arrived wait for their turn: no others are received before."""
        self.unsent = memoryview(b"")
        """What the client has not taken yet of an answer."""
        self._rest = memoryview(b"")
        """The part of the answer that follows `unsent`."""
        self.unsent_since = 0.0
        self._last_answer = False

    @property
    def awaited_since(self) -> float | None:
        """Since when the client has something to do: take an answer, or send the rest of a request; None for neither.

        An answer of which the kernel holds all, and has no room for the next, is to be taken too.
        """
        return self.unsent_since if self.unsent or self.more else self.unfinished_since

    def communicate(self) -> bool:
        """Answer every request that has wholly arrived; tells whether to keep the connection."""
        try:
            if self.unsent and not self._send_on():
                return time.time() - self.unsent_since < REQUEST_SECONDS
            if self._last_answer or not (self.more or self._receive()):
                return False
            if self.refused:
                self.received.clear()
                return time.time() - (self.unfinished_since or 0.0) < REQUEST_SECONDS
            return self._answer_all()
        except Malformed as problem:
            return self._refuse(problem)
        except OSError as problem:  # the client is gone, takes nothing, or speaks no TLS
            words = self.server.failed(problem, self.remote_addr or "")
            return bool(words) and self._tell_plainly(words)

    def close(self) -> None:
        """Close, and count a client that was too slow."""
        began = self.awaited_since if self.unsent or self.received else None
        if began is not None and time.time() - began >= REQUEST_SECONDS:
            self._count("limits", _NEVER_TAKEN if self.unsent or self.more else _TOO_SLOW)
        super().close()

    def _count(self, reason: Reason, why: str) -> None:
        self.server.refusals.count(reason, self.remote_addr or "", why)

    def _receive(self) -> bool:
        """Take what has arrived; False at the end of the stream."""
        self.socket.settimeout(0)
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
            self.received += data
            # TLS hands over one record at a time, and the poller can't see what it still holds.
            while data and getattr(self.socket, "pending", _nothing)():
                data = self.socket.recv(_RECEIVE_BYTES)
                self.received += data
        except self.server.not_yet:
            return True
        return bool(data)

    def _answer_all(self) -> bool:
        self.more = False
        answered = 0
        while (request := take_request(self.received, MAX_BYTES)) is not None:
            kept = self._respond(request)
            answered += 1
            self.unfinished_since = None
            if self.unsent:
                self._last_answer = not kept
                self.more = bool(self.received)
                return True
            if request.oversized:
                self._count("limits", f"the body is longer than {MAX_BYTES} bytes")
                return self._run_dry()
            if not kept:
                return False
            if answered == _AT_A_TIME and self.received:
                self.more = True
                return True
        if self.received:
            now = time.time()
            self.unfinished_since = self.unfinished_since or now
            if now - self.unfinished_since > REQUEST_SECONDS:
                raise Malformed(408, "too_slow", _TOO_SLOW)
        return True

    def _refuse(self, problem: Malformed) -> bool:
        self._count("limits" if problem.status in _BEYOND_LIMITS else "malformed", str(problem))
        self.received.clear()
        answer = response.problem(problem.status, problem.reason, str(problem))
        try:
            self._send(*response.encode(answer, keep_alive=False))
            return not self.unsent and self._run_dry()
        except OSError:
            return False

    def _tell_plainly(self, words: str) -> bool:
        """Answer a client that speaks no TLS past the TLS of the socket."""
        answer, _rest = response.encode(response.text(400, words), keep_alive=False)
        try:
            socket.socket.send(self.socket, answer)
            return self._run_dry()
        except OSError:
            return False

    def _run_dry(self) -> bool:
        """Take and forget what the client still sends: closing at once would take the answer back from it."""
        self.received.clear()
        self.refused = True
        self.unfinished_since = time.time()
        self.socket.shutdown(socket.SHUT_WR)
        return True

    def _respond(self, request: Request) -> bool:
        keep = request.keep_alive and self.server.ready
        try:
            answer = self.server.answer(request._replace(peer=Peer(self.socket)), self.remote_addr or "")
        except Exception:
            _logger.exception("%s %s could not be answered", request.method, request.path)
            answer = response.text(500, "internal error; the exporter's log tells more")
        self._send(*response.encode(answer, keep_alive=keep, head_only=request.method == "HEAD"))
        return keep

    def _send(self, data: bytes, rest: bytes) -> None:
        self.unsent, self._rest = memoryview(data), memoryview(rest)
        # For the whole of it, not for every piece: a client that reads a byte a second is cut off too.
        self.unsent_since = time.time()
        self._send_on()

    def _send_on(self) -> bool:
        """Hand over as much as the client takes now; tells whether that was all."""
        self.socket.settimeout(0)
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
                if not self.unsent:  # an empty view of a page would keep all of it
                    self.unsent, self._rest = self._rest, memoryview(b"")
        except self.server.not_yet:
            return False
        return True


def connection_limit(listeners: int) -> int:
    """Return the number of connections that each listener may hold, which leaves open files for everything else."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, (files - _OTHER_FILES) // (_CLOSING_OR_NEW * listeners)))


def _nothing() -> int:
    return 0


def _forget(_problem: OSError, _client: str) -> str:
    return ""


class _ListeningSocket(socket.socket):
    """Accepts; where the machine has no means for one more connection, nobody comes in and all others go on."""

    _complained_at = -_COMPLAINT_SECONDS

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept as any socket does.

        Raises:
            TimeoutError: not possible now; the library goes on with the other connections.
            OSError: anything else.
        """
        try:
            return super().accept()
        except OSError as problem:
            if problem.errno not in _OUT_OF_MEANS:
                raise
            now = time.monotonic()
            if now - self._complained_at >= _COMPLAINT_SECONDS:
                self._complained_at = now
                _logger.error("no new connection can be taken: %s; raise the limit (ulimit -n)", problem.strerror)
            time.sleep(_OUT_OF_MEANS_PAUSE)  # who waits outside keeps the poller awake
            raise TimeoutError from None


class _Listener(HTTPServer):
    """The library's server, with our connections."""

    ConnectionClass = _Connection
    timeout = IDLE_SECONDS
    request_queue_size = 128
    shutdown_timeout = 1
    expiration_interval = 0.25
    """Seconds between two looks for expired connections, and the longest that a stop waits for the poller."""
    keep_alive_conn_limit: int
    _connections: Any
    """The library's poller."""
    not_yet: tuple[type[OSError], ...] = (BlockingIOError,)
    """What a socket raises that has nothing to hand over at the moment."""
    failed: Callable[[OSError, str], str]
    """Told why a connection ended, and whose it was; returns what the client should hear of it in plain HTTP."""

    def __init__(
        self, bind_addr: tuple[str, int], answer: Answer, threads: int, refusals: Refusals, max_connections: int
    ) -> None:
        super().__init__(bind_addr, None, minthreads=threads, maxthreads=threads)
        self.keep_alive_conn_limit = max_connections
        self.requests = ThreadPool(
            self, min=threads, max=threads, accepted_queue_size=_WAITING_REQUESTS, accepted_queue_timeout=0
        )
        self.answer = answer
        self.refusals = refusals
        self.failed = _forget
        self.bind_problem: OSError | None = None

    def process_conn(self, conn: _Connection) -> None:
        """Give a connection to a worker, but a new one to the poller until it says something."""
        if conn.last_used is not None:
            super().process_conn(conn)
        elif self.can_add_keepalive_connection or self._make_room(conn):
            self.put_conn(conn)
        else:
            self.refusals.count("limits", conn.remote_addr or "", _TOO_MANY)
            conn.close()

    def _make_room(self, newcomer: _Connection) -> bool:
        """Drop a connection of the client that has most: the one silent for longest, or in a request for longest.

        The poller closes it up to a quarter of a second later. Until then there are more connections than the limit;
        one client alone never takes all of that room.
        """
        connections = [each for _number, each in self._connections._selector.connections if each is not self]  # noqa: SLF001 - as above
        waiting = [each for each in connections if each.last_used]
        numbers = Counter(sender_of(each.remote_addr or "") for each in (*connections, newcomer))
        most = max(numbers.values())
        is_busiest = numbers[sender_of(newcomer.remote_addr or "")] == most
        room = self.keep_alive_conn_limit * (_CLOSING if is_busiest else _CLOSING_OR_NEW)
        if not waiting or len(connections) >= room:
            return False
        candidates = [each for each in waiting if numbers[sender_of(each.remote_addr or "")] == most] or waiting
        dropped = min(candidates, key=lambda each: each.last_used)
        self.refusals.count("limits", dropped.remote_addr or "", _TOO_MANY)
        dropped.last_used = 0.0
        return True

    def put_conn(self, conn: _Connection) -> None:
        """Give a connection to the poller; one in the middle of a request expires sooner than an idle one.

        One with answers to take comes back as soon as it can take more, behind those that came before.
        """
        if not self.ready:
            conn.close()
            return
        began = conn.awaited_since
        # Before the poller has it: from then on another worker may, and what is written here would be of the past.
        conn.last_used = time.time() if began is None else began - (IDLE_SECONDS - REQUEST_SECONDS)
        awaited = EVENT_WRITE if conn.unsent or conn.more else EVENT_READ
        try:
            self._connections._selector.register(conn.socket.fileno(), awaited, data=conn)  # noqa: SLF001 - its own registers to read only
        except ValueError:  # the poller has been closed by now
            conn.close()

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Send the library's messages where ours go; what a client does wrong is no event for the operator."""
        _logger.log(level if level >= logging.ERROR else logging.DEBUG, "%s", msg, exc_info=traceback)

    def bind(self, family: int, type: int, proto: int = 0) -> socket.socket:  # noqa: A002 - the library's word
        """Bind, and remember why not: the library only tells that no address worked."""
        try:
            bound: socket.socket = super().bind(family, type, proto)
        except OSError as problem:
            self.bind_problem = problem
            raise
        listening = self.socket = _ListeningSocket(fileno=bound.detach())
        return listening

    @staticmethod
    def bind_socket(socket_: socket.socket, bind_addr: tuple[str, int]) -> socket.socket:
        """Bind, and don't leave the socket open where that fails."""
        try:
            socket_.bind(bind_addr)
        except OSError:
            socket_.close()
            raise
        return socket_


class Server:
    """Listens on one address and answers with what it is given."""

    def __init__(
        self,
        address: Address,
        answer: Answer,
        *,
        threads: int = 4,
        max_connections: int = MAX_CONNECTIONS,
        tls: Any = None,
        refusals: Refusals | None = None,
    ) -> None:
        """Bind, so that a wrong or busy address is known at once; `start` answers.

        Args:
            address: where to listen; the empty host is all interfaces, port 0 any free one.
            answer: called by worker threads for each request with the client's address.
            threads: worker threads.
            max_connections: connections that are held at once.
            tls: an adapter of `stallscope.web.http.tls`, or None for plain HTTP.
            refusals: counts requests and connections beyond the limits.

        Raises:
            ListenError: the address can't be had.
        """
        self._listener = _Listener(
            (address.host or _all_interfaces(), address.port),
            answer,
            threads,
            refusals or Refusals(),
            max_connections,
        )
        if tls is not None:
            self._listener.ssl_adapter = tls
            self._listener.not_yet = tls.not_yet
            self._listener.failed = tls.failed
        # The library would take the socket of a service manager that handed one to a parent of this process.
        os.environ.pop("LISTEN_PID", None)
        try:
            self._listener.prepare()
        except OSError as problem:
            raise ListenError(_explanation(address, self._listener.bind_problem or problem)) from None
        except UnicodeError:
            raise ListenError(f"can't listen on {address}: {address.host} is no name of a host") from None
        self.address = Address(address.host, int(self._listener.bind_addr[1]))
        self.scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._listener.serve, name=f"http {self.address}", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        return f"{self.scheme}://{self.address._replace(host=self.address.host or 'localhost')}/"

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what has arrived and close; takes up to two seconds."""
        self._listener.stop()
        if self._thread.ident is not None:
            self._thread.join(2)


def _all_interfaces() -> str:
    """The IPv6 wildcard, which takes IPv4 too, where the machine has IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"  # noqa: S104 - what an address without a host asks for
    return "::"


def _explanation(address: Address, problem: OSError) -> str:
    remedies = {
        errno.EADDRINUSE: "stop the program that holds it, or choose another with --web.listen-address",
        errno.EACCES: "ports under 1024 need a privilege; choose a higher one with --web.listen-address",
        errno.EADDRNOTAVAIL: "no interface of this machine has it; choose another with --web.listen-address",
    }
    remedy = remedies.get(problem.errno or 0, "choose another with --web.listen-address")
    return f"can't listen on {address}: {problem.strerror or problem}; {remedy}"
