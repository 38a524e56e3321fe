"""HTTP answers, as the bytes that go out in one piece."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import NamedTuple

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
HTML = "text/html; charset=utf-8"


class Response(NamedTuple):
    """One answer. `headers` are whole lines without their ends; lengths and dates are added on the way out."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[str, ...] = ()


def text(status: int, message: str, *headers: str) -> Response:
    """Answer with a line of plain text."""
    return Response(status, TEXT, f"{message}\n".encode(), headers)


def problem(status: int, reason: str, message: str, *headers: str) -> Response:
    """Answer with what is wrong, in the same JSON as a refused report: the reason's word, and a sentence."""
    return Response(status, JSON, json.dumps({"error": reason, "message": message}).encode(), headers)


_date = (0, b"")
_LONG = 65_536
"""Bytes of a body from which it is not copied."""


def encode(response: Response, *, keep_alive: bool, head_only: bool = False) -> tuple[bytes, bytes]:
    """Return the bytes to send, and those that follow; after HEAD without the body, but with its length.

    The second part is a long body as it is, so that clients that take a page slowly share one copy. Otherwise it is
    empty, so that most answers are one piece.
    """
    start = _start(response.status, response.content_type, response.headers, keep_alive)
    if response.status == HTTPStatus.NO_CONTENT:  # which has no length either
        return b"%sDate: %s\r\n\r\n" % (start, _now()), b""
    head = b"%sDate: %s\r\nContent-Length: %d\r\n\r\n" % (start, _now(), len(response.body))
    if head_only:
        return head, b""
    return (head, response.body) if len(response.body) >= _LONG else (head + response.body, b"")


_starts: dict[tuple[int, str, tuple[str, ...], bool], bytes] = {}


def _start(status: int, content_type: str, headers: tuple[str, ...], keep_alive: bool) -> bytes:
    key = (status, content_type, headers, keep_alive)
    known = _starts.get(key)
    if known is None:
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *([f"Content-Type: {content_type}", "X-Content-Type-Options: nosniff"] if content_type else []),
            *headers,
        ]
        if not keep_alive:
            lines.append("Connection: close")
        # Every combination is written somewhere in this folder, so there are only a few.
        known = _starts[key] = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
    return known


def _now() -> bytes:
    global _date
    second = int(time.time())
    if _date[0] != second:
        _date = (second, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)).encode())
    return _date[1]
