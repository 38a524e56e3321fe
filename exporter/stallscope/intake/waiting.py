"""Reports that wait to be taken in: of each session only the newest, since it tells all that those before it told."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from stallscope.protocol.report import LAST_STATES, SESSION_LENGTH, TERMINATION_ADDRESS, VERSION

_BEGINNING = re.compile(rb'\{"version":%d,"run":"[^"]*","rank":\d+,"session":"' % VERSION)
_NUMBER = re.compile(rb',"sequence":(\d{1,16}),"start":')
_LAST = tuple(b'"state":"%s"' % state.encode() for state in LAST_STATES)


class Datagram(NamedTuple):
    """What came through a door."""

    data: bytes
    pid: int | None
    """The sender's, where the kernel tells it."""
    origin: str
    """Where it came from, as far as the door tells."""
    sender: Hashable
    """Tells senders apart, so that none can take another's place."""
    terminated: tuple[str, ...] = ()
    """Sessions of a process that SIGTERM or SIGHUP ends; not empty only for the notice of it, which is no report."""
    uid: int | None = None
    """The sender's user, where the kernel reports it."""


def sessions_terminated(address: object) -> tuple[str, ...]:
    """Return the sessions that a socket address names if a notice of SIGTERM or SIGHUP comes from it."""
    if not isinstance(address, bytes) or not address.startswith(TERMINATION_ADDRESS):
        return ()
    names = address[len(TERMINATION_ADDRESS) :].decode("ascii", "replace")
    return tuple(names[begin : begin + SESSION_LENGTH] for begin in range(0, len(names), SESSION_LENGTH))


def newest(datagrams: Iterable[Datagram]) -> list[Datagram]:
    """Leave out those that another one of their session has overtaken, in the order in which sessions first came."""
    found: dict[Hashable, tuple[int, Datagram]] = {}
    for datagram in datagrams:
        session, number = _told(datagram)
        if session not in found or number >= found[session][0]:
            found[session] = number, datagram
    return [datagram for _number, datagram in found.values()]


def is_last(data: bytes) -> bool:
    """Whether a report says that its session is over, as far as can be told without reading it."""
    return any(words in data for words in _LAST)


def _told(datagram: Datagram) -> tuple[Hashable, int]:
    """The session and the report's number there, where it is written as the shim does; else a session of its own.

    All that comes before the number has to be equal: what a shim tells there changes seldom, and is then taken in.
    """
    data = datagram.data
    if datagram.terminated:
        return (datagram.sender, datagram.terminated), 0
    if _BEGINNING.match(data) and data.endswith(b"}") and (number := _NUMBER.search(data)):
        return (datagram.sender, data[: number.start()]), int(number[1])
    return object(), 0
