"""Datagrams of a batch: only the newest report of each session counts, because reports are cumulative."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from stallscope.training.protocol.termination_notice import SESSION_LENGTH, TERMINATION_ADDRESS
from stallscope.training.protocol.vocabulary import LAST_STATES, VERSION

_BEGINNING = re.compile(rb'\{"version":%d,"run":"[^"]*","rank":\d+,"session":"' % VERSION)
_NUMBER = re.compile(rb',"sequence":(\d{1,16}),"start":')
_LAST = tuple(b'"state":"%s"' % state.encode() for state in LAST_STATES)


class PassedFile:
    """A file whose descriptor came with a datagram; it is closed when nothing refers to it any more."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Datagram(NamedTuple):
    """A datagram from a receiver."""

    data: bytes
    pid: int | None
    """Pid of the sender, where the kernel reports it."""
    origin: str
    """Address of the sender, or the empty string."""
    sender: Hashable
    """Identity of the sender, so that its reports replace only its own."""
    terminated: tuple[str, ...] = ()
    """Sessions of a process that SIGTERM or SIGHUP ends: only a notice has them, never a report."""
    uid: int | None = None
    """User of the sender, where the kernel reports it."""
    file: PassedFile | None = None
    """File that the sender has passed."""


def sessions_terminated(address: object) -> tuple[str, ...]:
    """Return the sessions in the sender's address of a notice of SIGTERM or SIGHUP; none for other addresses."""
    if not isinstance(address, bytes) or not address.startswith(TERMINATION_ADDRESS):
        return ()
    names = address[len(TERMINATION_ADDRESS) :].decode("ascii", "replace")
    return tuple(names[begin : begin + SESSION_LENGTH] for begin in range(0, len(names), SESSION_LENGTH))


def newest(datagrams: Iterable[Datagram]) -> list[Datagram]:
    """Return the newest datagram of each session, in the order of the sessions' first datagrams."""
    found: dict[Hashable, tuple[int, Datagram]] = {}
    for datagram in datagrams:
        session, number = _session_and_number(datagram)
        if session not in found or number >= found[session][0]:
            if datagram.file is None and session in found:
                datagram = datagram._replace(file=found[session][1].file)
            found[session] = number, datagram
    return [datagram for _number, datagram in found.values()]


def is_last(data: bytes) -> bool:
    """Return True if a report seems to be the last of its session, without parsing it."""
    return any(words in data for words in _LAST)


def _session_and_number(datagram: Datagram) -> tuple[Hashable, int]:
    """Return the session of a datagram and the report's sequence number.

    A report in another format than the shim's gets a unique session, so that it is never skipped. The session is
    everything before the number: if any of it changes, both reports count.
    """
    data = datagram.data
    if datagram.terminated:
        return (datagram.sender, datagram.terminated), 0
    if _BEGINNING.match(data) and data.endswith(b"}") and (number := _NUMBER.search(data)):
        return (datagram.sender, data[: number.start()]), int(number[1])
    return object(), 0
