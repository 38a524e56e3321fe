"""HTTP/1.1 requests out of the bytes that a connection has received so far.

The server's library would read line by line and let a worker thread wait for a slow client; a few dozen of those and
nobody else is answered. Here a request is looked at only when all of it has arrived.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stallscope.web.http.peer import Peer

MAX_HEAD_BYTES = 16_384
"""Longest request line with headers."""

_METHOD = re.compile(rb"[A-Z]{1,16}(?: |\Z)")
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class Malformed(Exception):
    """The bytes are no request that can be answered as asked; the connection must end after the answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Request(NamedTuple):
    """One request, whole."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name; repeated ones joined with commas."""
    body: bytes
    keep_alive: bool
    oversized: bool = False
    """Whether the body is over the limit; then it is not here, and the connection must end after the answer."""
    query: str = ""
    """What follows the question mark, as it came."""
    peer: Peer | None = None
    """The client's end of the connection."""
    proven: bool = False
    """Whether it named a user of the web configuration file, with the password."""


def take_request(received: bytearray, max_body: int) -> Request | None:
    """Take the first request off the bytes, or return None while more has to arrive.

    Raises:
        Malformed: no request, or one that breaks a limit.
    """
    while received[:2] == b"\r\n":  # left over after a body by some old clients
        del received[:2]
    end = received.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        _check_beginning(received)
        return None
    line, *rest = bytes(received[:end]).split(b"\r\n")
    method, path, query, minor = _request_line(line)
    headers = _headers(rest)
    length = _body_length(headers)
    start = end + 4
    if length > max_body:
        return Request(method, path, headers, b"", keep_alive=False, oversized=True, query=query)
    if len(received) < start + length:
        return None
    body = bytes(received[start : start + length])
    del received[: start + length]
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if minor == b"1" else "keep-alive" in connection
    return Request(method, path, headers, body, keep_alive, query=query)


def _check_beginning(received: bytearray) -> None:
    if len(received) >= MAX_HEAD_BYTES:
        raise Malformed(431, "head_too_long", f"the request's head is longer than {MAX_HEAD_BYTES} bytes")
    if received[:2] == b"\x16\x03":
        raise Malformed(400, "tls", "TLS came where plain HTTP is spoken; ask by http://, or set --web.config.file")
    line, ended, _rest = bytes(received[:MAX_HEAD_BYTES]).partition(b"\n")
    # What can't become a request is not waited for.
    if ended or (line.strip() and not _METHOD.match(line)):
        _request_line(line.rstrip(b"\r"))


def _request_line(line: bytes) -> tuple[str, str, str, bytes]:
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        if re.search(rb" HTTP/[0-9.]+$", line) and not re.search(rb" HTTP/1\.[01]$", line):
            raise Malformed(505, "http_version", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        raise Malformed(400, "malformed_request", "this is no HTTP request line")
    method, target, minor = found.groups()
    path, _mark, query = target.decode().partition("?")
    return method.decode(), path, query, minor


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _HEADER_NAME.fullmatch(name) or b"\n" in value or b"\r" in value:
            raise Malformed(400, "malformed_request", "a header line is malformed")
        key = name.decode().lower()
        text = value.strip(b" \t").decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


def _body_length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Malformed(411, "length_required", "a body needs a Content-Length; chunks are not taken")
    text = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(text.encode("latin-1")):
        raise Malformed(400, "malformed_request", "Content-Length is no whole number")
    return int(text)
