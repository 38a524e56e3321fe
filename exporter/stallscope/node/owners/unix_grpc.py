"""Unary gRPC calls to the kubelet over a UNIX socket, on h2, with a twentieth of grpcio's memory.

Importing h2 costs the exporter 1 MB, so this module is imported only where there is a socket to call.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from typing import Literal

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

_CHUNK = 65536
_PREFIX = struct.Struct(">BI")
"""Prefix of each message: compression flag, and length."""
_SHOWN = 200
"""Maximum length of the server's message in an error."""
_STATUS_NAMES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
_STATUS_DIGITS = 9
_DEADLINE_EXCEEDED = 4
_Headers = dict[str, str]


class CallFailed(Exception):
    """A call failed. The message names the server and the reason."""

    def __init__(self, reason: Literal["unavailable", "malformed"], message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """`unavailable`: no response, or a refusal; `malformed`: the response is not gRPC, or too large."""


class _Closed(Exception):
    """The connection has ended; a new one may work."""


class UnixChannel:
    """A connection, kept between calls and reopened when it has ended. Not thread-safe."""

    def __init__(self, path: str, max_bytes: int = 16 * 2**20) -> None:
        """Prepare; nothing is opened before the first call.

        Args:
            path: the socket.
            max_bytes: a longer response is rejected.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._socket: socket.socket | None = None
        self._http = H2Connection()
        self._deadline = 0.0
        self._seconds = 0.0

    def call(self, method: str, request: bytes, seconds: float) -> bytes:
        """Return the response to one request.

        Args:
            method: such as `/v1.PodResourcesLister/List`.
            request: the encoded message.
            seconds: maximum seconds for the call.

        Raises:
            CallFailed: there is no response; the next call opens a new connection.
        """
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        try:
            if self._socket is not None:
                try:
                    return self._attempt(method, request)
                except _Closed:
                    self.close()  # the server has gone since the last call, and may be back already
            self._connect()
            return self._attempt(method, request)
        except CallFailed:
            self.close()
            raise
        except _Closed as closed:
            self.close()
            raise CallFailed("unavailable", f"{self._path}: {closed}") from None
        except TimeoutError:
            self.close()
            raise CallFailed("unavailable", f"{self._path}: no answer within {seconds:g} s") from None
        except OSError as problem:
            self.close()
            raise CallFailed("unavailable", f"{self._path}: {problem.strerror or problem}") from None
        except ProtocolError as problem:
            self.close()
            raise CallFailed("malformed", f"{self._path}: the response is not HTTP/2: {problem}") from None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(self._remaining())
        self._socket.connect(self._path)
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._http.initiate_connection()

    def _attempt(self, method: str, request: bytes) -> bytes:
        http = self._http
        try:
            stream = http.get_next_available_stream_id()
            http.send_headers(stream, self._request_headers(method))
            http.send_data(stream, _PREFIX.pack(0, len(request)) + request, end_stream=True)
        except ProtocolError as problem:  # such as after a GOAWAY that came with the answer before
            raise _Closed(f"the connection can't be used any more: {problem}") from None
        self._send()
        headers: _Headers = {}
        body = bytearray()
        while True:
            for event in http.receive_data(self._receive()):
                if isinstance(event, ConnectionTerminated):
                    raise _Closed(f"the server ended the connection (GOAWAY, code {event.error_code})")
                if getattr(event, "stream_id", stream) != stream:
                    continue
                if isinstance(event, (ResponseReceived, TrailersReceived)):
                    headers.update(_texts(event.headers or ()))
                elif isinstance(event, DataReceived):
                    body += event.data or b""
                    if len(body) > self._max_bytes + _PREFIX.size:
                        raise CallFailed("malformed", f"{self._path}: the answer is over {self._max_bytes} bytes")
                    http.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                elif isinstance(event, StreamReset):
                    raise CallFailed(
                        "unavailable", f"{self._path}: the server reset the call (code {event.error_code})"
                    )
                elif isinstance(event, StreamEnded):
                    return self._message(headers, bytes(body))
            self._send()

    def _message(self, headers: _Headers, body: bytes) -> bytes:
        """Return the only message of a complete response."""
        if headers.get(":status") != "200" or not headers.get("content-type", "").startswith("application/grpc"):
            reported = (
                f"HTTP status {headers.get(':status')}, content type {headers.get('content-type', '')[:_SHOWN]!r}"
            )
            raise CallFailed("malformed", f"{self._path}: the response is not gRPC: {reported}")
        status = headers.get("grpc-status", "")
        if not (status.isdecimal() and len(status) <= _STATUS_DIGITS):
            raise CallFailed("malformed", f"{self._path}: the answer ends without a status")
        if int(status) == _DEADLINE_EXCEEDED:
            raise TimeoutError  # the server's clock was a moment ahead of ours
        if int(status):
            name = _STATUS_NAMES[int(status)] if int(status) < len(_STATUS_NAMES) else "status"
            words = _unquoted(headers.get("grpc-message", ""))[:_SHOWN]
            raise CallFailed("unavailable", f"{self._path}: the server declined: {name} ({status}): {words}")
        if len(body) < _PREFIX.size:
            raise CallFailed("malformed", f"{self._path}: the answer holds no message")
        compressed, length = _PREFIX.unpack_from(body)
        if compressed or length != len(body) - _PREFIX.size:
            reported = f"{len(body) - _PREFIX.size} bytes came, {length} were announced, compressed: {bool(compressed)}"
            raise CallFailed("malformed", f"{self._path}: the response is not one uncompressed message: {reported}")
        return body[_PREFIX.size :]

    def _request_headers(self, method: str) -> list[tuple[str, str]]:
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{max(1, int(self._remaining() * 1000))}m"),
        ]

    def _send(self) -> None:
        pending = self._http.data_to_send()
        if pending:
            self._connection.settimeout(self._remaining())
            try:
                self._connection.sendall(pending)
            except (BrokenPipeError, ConnectionResetError):
                raise _Closed("the server closed the connection") from None

    def _receive(self) -> bytes:
        self._connection.settimeout(self._remaining())
        try:
            received = self._connection.recv(_CHUNK)
        except ConnectionResetError:
            received = b""
        if not received:
            raise _Closed("the server closed the connection without an answer")
        return received

    @property
    def _connection(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def _remaining(self) -> float:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining


def _texts(headers: Iterable[tuple[bytes | str, bytes | str]]) -> _Headers:
    return {_decoded(name): _decoded(value) for name, value in headers}


def _decoded(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _unquoted(message: str) -> str:
    from urllib.parse import unquote

    return unquote(message, errors="replace")
