"""HTTP responses."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
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


_date = (0, "")


def headers(response: Response, *, keep: bool) -> list[tuple[str, str]]:
    """Return the headers to send.

    Args:
        response: the response.
        keep: False if the connection ends after it.
    """
    found = [(name, value) for name, _colon, value in (line.partition(": ") for line in response.headers)]
    if response.content_type:
        found += [("Content-Type", response.content_type), ("X-Content-Type-Options", "nosniff")]
    if response.status != HTTPStatus.NO_CONTENT:
        found.append(("Content-Length", str(len(response.body))))
    if not keep:
        found.append(("Connection", "close"))
    return [*found, ("Date", _now())]


def _now() -> str:
    global _date
    second = int(time.time())
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True))
    return _date[1]
