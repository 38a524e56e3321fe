"""Names of the files next to the socket by which requests reach training that sends datagrams."""

from __future__ import annotations

from zlib import crc32

TRACE = "trace"
STOP = "stop"
STACKS = "stacks"


def request_name(kind: str, run: str) -> str:
    """Return the name of the file with a run's request; run names may contain slashes and worse."""
    name = run.encode(errors="replace")
    return f"{kind}-{crc32(name):08x}{crc32(name[::-1]):08x}.json"
