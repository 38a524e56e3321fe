"""The HTTP server: one listening address, an event loop in a thread of its own, and a few worker threads.

asyncio holds the connections and h11 speaks HTTP/1.1. Workers compute the answers. So a client that is silent, sends a
byte a second or never reads holds no worker, and an answer that takes long delays only those that wait for a worker.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11

from stallscope.common.address import Address, all_interfaces, sender_of
from stallscope.node.web.http import response
from stallscope.node.web.http.peer import Peer
from stallscope.node.web.http.refusals import Reason, Refusals
from stallscope.node.web.http.request import MAX_HEAD_BYTES, Request, request_of
from stallscope.node.web.http.response import Response
from stallscope.node.web.http.stream import Stream
from stallscope.training.protocol.vocabulary import MAX_BYTES

if TYPE_CHECKING:
    from stallscope.node.web.http.tls import TlsAdapter

_logger = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""How long a request may take to arrive, and a response to be taken."""
IDLE_SECONDS = 90.0
"""How long a connection stays open between two requests: longer than the usual scrape interval."""
MAX_CONNECTIONS = 256
"""Connections that one listener holds at once, where the limit of open files (`ulimit -n`) allows it."""
_BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted. A client beyond it tries again after a second."""
_MIN_CONNECTIONS = 8
_OTHER_FILES = 128
"""Open files that everything else in the process may need."""
_LONG = 65_536
"""Bytes of a body from which it is not copied."""
_OUT_OF_MEANS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_OUT_OF_MEANS_PAUSE = 0.05
_LOG_SECONDS = 60.0
"""Seconds between two log lines that no connection can be accepted."""
_STOP_SECONDS = 1.0
"""How long responses that are being computed or sent may take when the server stops."""
_TOO_SLOW = f"the request took longer than {REQUEST_SECONDS:g} s to arrive"
_NEVER_TAKEN = f"the answer was not taken within {REQUEST_SECONDS:g} s"
_TOO_MANY = "more connections at once than the limit; the client with the most loses the one silent for longest"
_TLS_IN_PLAIN = "a TLS handshake came where plain HTTP is served; use http://, or set --web.config.file"
_TLS_RECORD = b"\x16\x03"

Answer = Callable[[Request, str], Response]
"""Returns the response to a request from that client address."""


class ListenError(Exception):
    """The server can't listen on an address; the message is one line with the reason and the remedy."""


class _Connection:
    """One client. Only the event loop's thread uses it."""

    def __init__(self, server: Server, client_socket: socket.socket, client: str) -> None:
        self._server = server
        self._socket = client_socket
        self._loop = asyncio.get_running_loop()
        self._stream: Stream = Stream(client_socket)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self.client = client
        self.sender = sender_of(client)
        self.last_used = time.monotonic()
        self.is_waiting = True
        """True unless a response is being computed or sent."""
        self.in_request = False
        """True while a request has arrived in part."""
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(self._end)

    def close(self) -> None:
        """Close at once."""
        self.task.cancel()

    async def _run(self) -> None:
        self._limit(REQUEST_SECONDS)
        try:
            await self._open()
            while await self._answer_next():
                self._http.start_next_cycle()
            await self._stream.end()
        except OSError:  # the client is gone, or speaks no TLS
            pass

    def _end(self, _task: asyncio.Task[None]) -> None:
        self._lift_limit()
        self._socket.close()
        self._server.forget(self)

    async def _open(self) -> None:
        """Shake hands where TLS is spoken.

        Raises:
            OSError: the client is gone, or is refused.
        """
        tls = self._server.tls
        if tls is not None:
            self._stream = stream = tls.stream(self._socket)
            try:
                await stream.shake_hands()
            except OSError as problem:
                if words := tls.failed(problem, self.client):
                    await self._loop.sock_sendall(self._socket, _plain(400, words))
                raise
        self._peer = Peer(self._socket, has_certificate=self._stream.has_certificate)

    def _limit(self, seconds: float, why: str = "") -> None:
        """Close after that time, unless another limit is set before; with a reason, count the client as refused."""
        self._lift_limit()
        self._timer = self._loop.call_later(seconds, self._expire, why)

    def _lift_limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self, why: str) -> None:
        if why:
            self._count("limits", why)
        self.close()

    def _count(self, reason: Reason, why: str) -> None:
        self._server.refusals.count(reason, self.client, why)

    async def _answer_next(self) -> bool:
        """Answer the next request; returns True if the connection is kept."""
        try:
            found = await self._request()
        except h11.RemoteProtocolError as problem:
            return await self._refuse(problem)
        if found is None:
            return False
        self.is_waiting = self.in_request = False
        self._lift_limit()  # the client does not answer for the time that the response takes to compute
        answer = await self._loop.run_in_executor(self._server.workers, self._server.answer_safely, found, self.client)
        if found.oversized:
            self._count("limits", f"the body is longer than {MAX_BYTES} bytes")
        keep = not found.oversized and not self._server.is_stopping
        await self._send(answer, keep=keep, head_only=found.method == "HEAD")
        self.is_waiting, self.last_used = True, time.monotonic()
        if self._http.our_state is h11.DONE and keep:
            self._limit(IDLE_SECONDS)
            return True
        if found.oversized:
            await self._run_dry()
        return False

    async def _request(self) -> Request | None:
        """Return the next request once it has wholly arrived; None at the end of the connection.

        Raises:
            h11.RemoteProtocolError: the client sends something else.
        """
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        found = request_of(head, self._peer)
        body = bytearray()
        while not found.oversized:
            event = await self._event()
            if not isinstance(event, h11.Data):
                return found._replace(body=bytes(body)) if isinstance(event, h11.EndOfMessage) else None
            body += event.data
            if len(body) > MAX_BYTES:
                found = found._replace(oversized=True)
        return found

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._stream.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            data = await self._stream.read()
            if not self.in_request and data:
                if data.startswith(_TLS_RECORD):
                    raise h11.RemoteProtocolError(_TLS_IN_PLAIN)
                self.in_request, self.last_used = True, time.monotonic()
                self._limit(REQUEST_SECONDS, _TOO_SLOW)
            self._http.receive_data(data)
        return event

    async def _refuse(self, problem: h11.RemoteProtocolError) -> bool:
        status = problem.error_status_hint
        # Never the library's words, which may hold the client's: the log remembers each.
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._count("limits", f"the request's head is longer than {MAX_HEAD_BYTES} bytes")
        else:
            self._count(
                "malformed", _TLS_IN_PLAIN if str(problem) == _TLS_IN_PLAIN else "this is not an HTTP/1.1 request"
            )
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(response.problem(status, "malformed_request", str(problem)), keep=False, head_only=False)
            await self._run_dry()
        return False

    async def _send(self, answer: Response, *, keep: bool, head_only: bool) -> None:
        self._limit(REQUEST_SECONDS, _NEVER_TAKEN)
        head = h11.Response(
            status_code=answer.status,
            headers=response.headers(answer, keep=keep),
            reason=HTTPStatus(answer.status).phrase,
        )
        data = self._http.send(head) or b""
        body = b"" if head_only else answer.body
        if body:
            self._http.send(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        if len(body) < _LONG:  # most responses are one packet
            await self._stream.write(data + body)
        else:  # clients that take a page slowly share one copy
            await self._stream.write(data)
            await self._stream.write(body)

    async def _run_dry(self) -> None:
        """Read and drop what the client still sends: closing at once would take the response back from it."""
        self._limit(REQUEST_SECONDS)
        await self._stream.end()
        while await self._stream.read():
            pass


class Server:
    """Listens on one address and answers requests."""

    def __init__(
        self,
        address: Address,
        answer: Answer,
        *,
        threads: int = 4,
        max_connections: int = MAX_CONNECTIONS,
        tls: TlsAdapter | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """Bind, so that a wrong or busy address is known at once; `start` answers.

        Args:
            address: where to listen; the empty host is all interfaces, port 0 any free one.
            answer: called by worker threads for each request with the client's address.
            threads: worker threads.
            max_connections: connections that are held at once.
            tls: the TLS to speak; None for plain HTTP.
            refusals: counts requests and connections beyond the limits.

        Raises:
            ListenError: the address can't be listened on.
        """
        self.tls = tls
        self.refusals = refusals or Refusals()
        self.is_stopping = False
        self._answer = answer
        self._max_connections = max_connections
        self._connections: set[_Connection] = set()
        self._listening = _listen(address)
        self._logged_at = -_LOG_SECONDS
        self.address = Address(address.host, int(self._listening.getsockname()[1]))
        self.scheme = "http" if tls is None else "https"
        self.workers = ThreadPoolExecutor(threads, f"http {self.address}")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"http {self.address}", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        return f"{self.scheme}://{self.address._replace(host=self.address.host or 'localhost')}/"

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what has arrived and close; takes up to two seconds."""
        if self._thread.ident is None:
            self._listening.close()
            self._loop.close()
        else:
            with suppress(RuntimeError):  # stopped already
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(2 * _STOP_SECONDS)
        self.workers.shutdown(wait=False)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        # A client that disconnects is not an event for the operator.
        self._loop.set_exception_handler(lambda _loop, context: _logger.debug("%s", context.get("message")))
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._loop.add_reader(self._listening, self._accept)
        await self._stop.wait()
        self.is_stopping = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in [each for each in self._connections if each.is_waiting]:
            connection.close()
        if tasks := [each.task for each in self._connections]:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for connection in list(self._connections):
            connection.close()
        if tasks := [each.task for each in self._connections]:
            await asyncio.wait(tasks)

    def _accept(self) -> None:
        """Accept one client. The loop calls this again while others wait."""
        try:
            client_socket, address = self._listening.accept()
        except OSError as problem:
            if problem.errno in _OUT_OF_MEANS:
                self._pause(problem)
            return  # else the client is gone already
        client_socket.setblocking(False)
        client = str(address[0])
        if len(self._connections) < self._max_connections or self._make_room(sender_of(client)):
            self._connections.add(_Connection(self, client_socket, client))
        else:
            self.refusals.count("limits", client, _TOO_MANY)
            client_socket.close()

    def _pause(self, problem: OSError) -> None:
        """Stop accepting for a moment: the machine has no resources for one more connection."""
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _logger.error("no new connection can be taken: %s; raise the limit (ulimit -n)", problem.strerror)
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_OUT_OF_MEANS_PAUSE, self._resume)

    def _resume(self) -> None:
        if not self.is_stopping:
            self._loop.add_reader(self._listening, self._accept)

    def _make_room(self, newcomer: str) -> bool:
        """Close a connection of the client that has most: first those in the middle of a request, then the idlest."""
        numbers = Counter([newcomer, *(each.sender for each in self._connections)])
        most = max(numbers.values())
        waiting = [each for each in self._connections if each.is_waiting]
        candidates = [each for each in waiting if numbers[each.sender] == most] or waiting
        if not candidates:
            return False
        dropped = min(candidates, key=lambda each: (not each.in_request, each.last_used))
        self.refusals.count("limits", dropped.client, _TOO_MANY)
        self._connections.discard(dropped)
        dropped.close()
        return True

    def forget(self, connection: _Connection) -> None:
        """Drop a connection that has ended."""
        self._connections.discard(connection)

    def answer_safely(self, request: Request, client: str) -> Response:
        """Return the response, also where computing it fails."""
        try:
            return self._answer(request, client)
        except Exception:
            _logger.exception("%s %s could not be answered", request.method, request.path)
            return response.text(500, "internal error; see the exporter's log")


def connection_limit(listeners: int) -> int:
    """Return the number of connections that each listener may hold, which leaves open files for everything else."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, (files - _OTHER_FILES) // listeners))


def _plain(status: int, words: str) -> bytes:
    """Return a whole response for a client that speaks no TLS."""
    body = f"{words}\n".encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _listen(address: Address) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ListenError: the address can't be listened on.
    """
    host = address.host or all_interfaces()
    problem: OSError | None = None
    try:
        found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, place in found:
            try:
                listening = socket.create_server(
                    place[:2],
                    family=family,
                    backlog=_BACKLOG,
                    dualstack_ipv6=host == "::" and family == socket.AF_INET6,
                )
            except OSError as refused:  # noqa: PERF203 - a name has few addresses
                problem = problem or refused
            else:
                listening.setblocking(False)
                return listening
    except UnicodeError:
        raise ListenError(f"can't listen on {address}: {address.host} is not a known host") from None
    except OSError as unknown:
        problem = unknown
    raise ListenError(_explanation(address, problem or OSError("no address found"))) from None


def _explanation(address: Address, problem: OSError) -> str:
    code = problem.errno or 0
    remedies = {
        errno.EADDRINUSE: "stop the program that holds it, or choose another with --web.listen-address",
        errno.EACCES: "ports under 1024 need a privilege; choose a higher one with --web.listen-address",
        errno.EADDRNOTAVAIL: "no interface of this machine has it; choose another with --web.listen-address",
    }
    remedy = remedies.get(code, "choose another with --web.listen-address")
    # The system's own words: the library adds the address, which is here already.
    reason = os.strerror(code) if code in errno.errorcode else problem.strerror or problem
    return f"can't listen on {address}: {reason}; {remedy}"
