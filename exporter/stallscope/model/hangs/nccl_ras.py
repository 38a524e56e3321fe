"""The state of a job's communicators, from NCCL's RAS service (NCCL 2.24 and newer).

Any process of the job responds for all communicators, as text, or as JSON since NCCL 2.28.7. The text lists members
only if counts differ, and only for counts that less than half of the members have.
"""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress
from typing import Any

from stallscope.common.address import Address
from stallscope.common.formatting import readable
from stallscope.model.hangs.collective_counts import Communicator, Evidence, Member, Share, shared

DEFAULT = "localhost:28028"
VARIABLE = "NCCL_RAS_ADDR"
_ATTEMPTS = 5
"""Connections to try: several processes can share the port, and one of them may not respond."""
_MAX_RESPONSE = 64 << 20
_MISSING_COMMA = re.compile(r'("nvml_dev": -?\d+)(?=\s*"status")')
"""JSON of a missing rank, in which NCCL 2.28.7 and 2.28.9 omit a comma."""


class Unreadable(Exception):
    """NCCL's response can't be used; the message is one line with the problem and what to do."""


def read(address: Address, *, greeting: float = 1.0, seconds: float = 20.0) -> Evidence:
    """Return the communicators of the job whose service has this address.

    Args:
        address: of the service.
        greeting: seconds to wait for a connection and for each line before the response.
        seconds: to wait for the response. NCCL itself waits up to ten seconds for processes that do not respond.

    Raises:
        Unreadable: the response can't be used.
    """
    text, is_json = _response(address, greeting, seconds)
    return _from_json(text) if is_json else _from_text(text)


def _response(address: Address, greeting: float, seconds: float) -> tuple[str, bool]:
    """Return the service's response, and whether it should be JSON."""
    for _ in range(_ATTEMPTS):
        with suppress(TimeoutError):
            return _exchange(address, greeting, seconds)
    raise Unreadable("the service does not respond; its process may be stopped")


def _exchange(address: Address, greeting: float, seconds: float) -> tuple[str, bool]:
    try:
        with socket.create_connection(address, timeout=greeting) as connection:
            connection.sendall(b"CLIENT PROTOCOL 2\n")
            if not _receive(connection, greeting, b"\n").startswith(b"SERVER PROTOCOL "):
                raise Unreadable("not NCCL's RAS service; check --nccl and NCCL_RAS_ADDR of the job")
            connection.sendall(b"SET FORMAT json\n")
            is_json = _receive(connection, greeting, b"\n").strip() == b"OK"
            connection.sendall(b"VERBOSE STATUS\n")
            return _status(connection, seconds), is_json
    except TimeoutError:
        raise
    except UnicodeError:
        raise Unreadable("not a host name; check --nccl") from None
    except OSError as error:
        raise Unreadable(f"{error.strerror or error}; check that the job runs here with NCCL 2.24 or newer") from None


def _status(connection: socket.socket, seconds: float) -> str:
    try:
        received = _receive(connection, seconds)
    except TimeoutError:
        raise Unreadable(f"NCCL did not finish its response within {seconds:g} s; try again") from None
    if not received:
        raise Unreadable("NCCL closed the connection without a response; try again")
    return received.decode(errors="replace")


def _receive(connection: socket.socket, seconds: float, end: bytes = b"") -> bytes:
    """Return the bytes that the service sends, up to `end` or until it closes the connection.

    Raises:
        TimeoutError: it takes longer.
    """
    deadline = time.monotonic() + seconds
    received = bytearray()
    while not (end and received.endswith(end)):
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        if not (part := connection.recv(1 << 16)):
            break
        received += part
        if len(received) > _MAX_RESPONSE:
            raise Unreadable("NCCL's response is too large; read its text: ncclras -v")
    return bytes(received)


def _from_json(text: str) -> Evidence:
    version = re.search(r'"nccl_version": "([^"]*)"', text)
    source = _source(version.group(1) if version else "")
    try:
        document = json.loads(_MISSING_COMMA.sub(r"\1,", text))
    except (ValueError, RecursionError):
        raise Unreadable(f"{source} returned malformed JSON; read its text: ncclras -v") from None
    try:
        found = tuple(_communicator(each) for each in document["communicators"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unreadable(f"{source} returned an unknown format; read its text: ncclras -v") from None
    return Evidence(source, "communicator", len(found), found)


def _communicator(document: Any) -> Communicator:
    counts: dict[str, list[tuple[Member, int, str]]] = {}
    for rank in document["ranks"]:
        member = _member(rank)
        for operation, count in rank["collective_counts"].items():
            counts.setdefault(readable(operation), []).append((member, _whole(count), ""))
    lost = tuple((_member(rank), _state(rank["status"])) for rank in document["missing_ranks"])
    return Communicator(
        f"communicator {readable(document['hash'])}",
        _whole(document["size"]),
        {operation: shared(each) for operation, each in counts.items()},
        lost,
    )


def _member(document: Any) -> Member:
    pid = document["pid"]
    return Member(_whole(document["rank"]), readable(document["host"]), None if pid == -1 else _whole(pid))


def _state(status: Any) -> str:
    return "dead" if status["considered_dead"] is True else "unresponsive" if status["unresponsive"] is True else "left"


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


_VERSION = re.compile(r"NCCL version (\S+)")
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+[A-Z]+\s+\S+")
"""A row of the table: group, communicators in it, and their size."""
_HEADING = re.compile(r"#(\d+)-\d+ \(0*([0-9a-f]+)\) ([A-Z]+)")
_OPERATION = re.compile(r"\s*Communicator ranks have different (\S+) operation counts")
_COUNT = re.compile(r"\s*(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(
    r"\s*Rank (\d+)( has launched up to operation (\d+)| has not launched any operations)?"
    r" -- (?:GPU .* managed by process (\d+) on node (\S+)|\[)"
)
_MISSING = re.compile(r"\s*The missing ranks?: ([\d,]+)")
_PROCESS = re.compile(r"\s*Process (\d+) on node (\S+) managing")


class _Section:
    """The part of the text about one communicator."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.counts: dict[str, list[Share]] = {}
        self.lost: list[Member] = []


def _from_text(text: str) -> Evidence:
    """Parse the text; skip unknown lines."""
    version = _VERSION.search(text)
    if version is None or "\nWarnings\n" not in text:  # the heading of the last part
        raise Unreadable("NCCL returned an unknown or incomplete text; read it: ncclras -v")
    rows: dict[str, tuple[int, int]] = {}
    sections: dict[str, _Section] = {}
    section, part, shares = _Section(0), "", list[Share]()
    dead = set()
    for line in text.splitlines():
        if match := _ROW.fullmatch(line):
            rows[match[1]] = int(match[2]), int(match[3])
        elif line in ("DEAD", "INCOMPLETE"):
            part = line
        elif match := _HEADING.match(line):
            section = sections.setdefault(match[2], _Section(rows.get(match[1], (0, 0))[1]))
            part, shares = match[3], []
        elif match := _OPERATION.match(line):
            shares = section.counts.setdefault(match[1], [])
        elif match := _COUNT.match(line):
            shares.append(Share(int(match[2] or 0), int(match[1]), ()))
        elif match := _RANK.match(line):
            member = Member(int(match[1]), match[5] or "", int(match[4]) if match[4] else None)
            if match[2]:
                shares.append(Share(int(match[3] or 0), 1, (member,)))
            elif part == "INCOMPLETE":
                section.lost.append(member)
            elif shares:
                shares[-1] = shares[-1]._replace(members=(*shares[-1].members, member))
        elif match := _MISSING.match(line):
            section.lost += [Member(int(number)) for number in match[1].split(",") if number]
        elif part == "DEAD" and (match := _PROCESS.match(line)):
            dead.add((match[2], int(match[1])))
    return Evidence(
        _source(version[1]),
        "communicator",
        sum(number for number, _ in rows.values()),
        tuple(
            Communicator(
                f"communicator 0x{name}",
                each.size,
                {operation: tuple(shares) for operation, shares in each.counts.items()},
                tuple((member, "dead" if member[1:3] in dead else "unresponsive") for member in each.lost),
            )
            for name, each in sections.items()
        ),
    )


def _source(version: str) -> str:
    return f"NCCL {readable(version)} (RAS)" if version else "NCCL (RAS)"
