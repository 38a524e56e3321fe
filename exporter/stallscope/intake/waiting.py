"""Queue of reports: only the newest of each session, because reports are cumulative."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from stallscope.protocol.report import LAST_STATES, SESSION_LENGTH, TERMINATION_ADDRESS, VERSION

_BEGINNING = re.compile(rb'\{"version":%d,"run":"[^"]*","rank":\d+,"session":"' % VERSION)
_NUMBER = re.compile(rb',"sequence":(\d{1,16}),"start":')
_LAST = tuple(b'"state":"%s"' % state.encode() for state in LAST_STATES)


class Datagram(NamedTuple):
    """A received datagram and its origin."""

    data: bytes
    pid: int | None
    """The sender's pid, if the kernel reports it."""
    origin: str
    """Address of the sender, if the receiver knows it."""
    sender: Hashable
    """Identifies the sender, so that no sender can replace another's report."""
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
    """Return the newest datagram of each session, in the order in which the sessions first appeared."""
    found: dict[Hashable, tuple[int, Datagram]] = {}
    for datagram in datagrams:
        session, number = _told(datagram)
        if session not in found or number >= found[session][0]:
            found[session] = number, datagram
    return [datagram for _number, datagram in found.values()]


def is_last(data: bytes) -> bool:
    """Return True if the report appears to end its session; does not parse it."""
    return any(words in data for words in _LAST)


def _told(datagram: Datagram) -> tuple[Hashable, int]:
    """Return the session and sequence number of a report in the shim's format; otherwise a unique session.

    The session key is the text before the number. That text rarely changes; if it does, both reports are processed.
    """
    data = datagram.data
    if datagram.terminated:
        return (datagram.sender, datagram.terminated), 0
    if _BEGINNING.match(data) and data.endswith(b"}") and (number := _NUMBER.search(data)):
        return (datagram.sender, data[: number.start()]), int(number[1])
    return object(), 0
