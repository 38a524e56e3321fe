"""A whole HTTP request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import h11

from stallscope.training.protocol.vocabulary import MAX_BYTES

if TYPE_CHECKING:
    from stallscope.node.web.http.peer import Peer

MAX_HEAD_BYTES = 16_384
"""Longest request line with headers."""


class Request(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name; repeated ones joined with commas."""
    body: bytes = b""
    oversized: bool = False
    """True if the body is over the limit; then it is not here, and the connection ends after the response."""
    query: str = ""
    """The query string, unparsed."""
    peer: Peer | None = None
    """The client's end of the connection."""
    proven: bool = False
    """True if it named a user of the web configuration file, with the password."""


def request_of(head: h11.Request, peer: Peer | None = None) -> Request:
    """Return the request without its body.

    Raises:
        h11.RemoteProtocolError: its target is not a path.
    """
    path, _mark, query = head.target.decode().partition("?")
    if not path.startswith("/"):
        raise h11.RemoteProtocolError("the target of a request is a path that begins with /")
    headers: dict[str, str] = {}
    for raw_name, value in head.headers:
        name, text = raw_name.decode(), value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    oversized = int(headers.get("content-length", "0")) > MAX_BYTES
    return Request(head.method.decode(), path, headers, oversized=oversized, query=query, peer=peer)
