"""Reports that wait to be taken in: of each session only the newest, since it tells all that those before it told."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from stallscope.report import VERSION

_BEGINNING = f'{{"version":{VERSION},"run":'.encode()
_SESSION = b',"session":"'
_SEQUENCE = b',"sequence":'
_MOST_DIGITS = 16


class Datagram(NamedTuple):
    """What came through a door."""

    data: bytes
    pid: int | None
    """The sender's, where the kernel tells it."""
    origin: str
    """Where it came from, as far as the door tells."""
    sender: Hashable
    """Tells senders apart, so that none can take another's place."""


def newest(datagrams: Iterable[Datagram]) -> list[Datagram]:
    """Leave out those that another one of their session has overtaken, in the order in which sessions first came."""
    found: dict[Hashable, tuple[int, Datagram]] = {}
    for datagram in datagrams:
        session, number = _told(datagram)
        if session not in found or number >= found[session][0]:
            found[session] = number, datagram
    return [datagram for _number, datagram in found.values()]


def _told(datagram: Datagram) -> tuple[Hashable, int]:
    """The session and the report's number there, where it is written as the shim does; else a session of its own.

    All that comes before the number has to be equal: what a shim tells there changes seldom, and is then taken in.
    """
    data = datagram.data
    end = max(0, data.find(_SEQUENCE))
    if data.startswith(_BEGINNING) and data.find(_SESSION, 0, end) > 0 and data.endswith(b"}"):
        start = end + len(_SEQUENCE)
        digits = data[start : data.find(b",", start, start + _MOST_DIGITS + 1)]
        if digits.isdigit():
            return (datagram.sender, data[:end]), int(digits)
    return object(), 0
