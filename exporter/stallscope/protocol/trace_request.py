"""The request for traces of some steps, in the form that travels from the exporter to the training.

Training that reports over UNIX or UDP datagrams gets no answer, so it looks at a file beside the exporter's socket;
training that reports over HTTP finds the request in the response to its report. Both have the same JSON object:

    {"version": 1, "run": "resnet50", "first_step": 20012, "steps": 5, "ranks": [0, 3], "expires": 1700000700.0}

Steps are numbered as in traces: by how many were done before. No ranks are all ranks. Both ends share this file; it
needs the standard library alone.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from stallscope.protocol.request_name import TRACE, request_name

VERSION = 1
MAX_BYTES = 8192
"""Longest request."""
MAX_STEPS = 100
"""Largest number of steps in a request."""
MAX_RANKS = 1024
"""Largest number of ranks in a request."""
_HIGHEST = 2**53


class TraceRequest(NamedTuple):
    """Which steps of which ranks are to be traced."""

    run: str
    first_step: int
    steps: int
    ranks: tuple[int, ...]
    """Empty for all ranks."""
    expires: float
    """Unix time after which the request is void."""


def encode(request: TraceRequest) -> bytes:
    """Encode a request."""
    return json.dumps({"version": VERSION, **request._asdict()}, separators=(",", ":")).encode()


def parse(data: bytes) -> TraceRequest:
    """Parse and check a request.

    Raises:
        ValueError: it is invalid; the message has the reason.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if type(document) is not dict or document.get("version") != VERSION:
        raise ValueError(f"no JSON object of version {VERSION}")
    run, expires = document.get("run"), document.get("expires")
    if type(run) is not str or not run:
        raise ValueError("run is not a string")
    if not isinstance(expires, (int, float)) or not 0 < expires < _HIGHEST:
        raise ValueError("expires is not a Unix time")
    return TraceRequest(
        run=run,
        first_step=whole(document.get("first_step"), "first_step", 0, _HIGHEST),
        steps=whole(document.get("steps"), "steps", 1, MAX_STEPS),
        ranks=rank_numbers(document.get("ranks", [])),
        expires=float(expires),
    )


def whole(value: Any, name: str, lowest: int, highest: int) -> int:
    """Take a whole number within bounds.

    Raises:
        ValueError: it is not one.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"{name} is {value!r:.80}; expected a whole number from {lowest} to {highest}")
    return value


def rank_numbers(value: Any) -> tuple[int, ...]:
    """Take a list of ranks.

    Raises:
        ValueError: it is not one, or too long.
    """
    if type(value) is not list or len(value) > MAX_RANKS:
        raise ValueError(f"ranks is not a list of at most {MAX_RANKS} numbers")
    return tuple([whole(rank, "a rank", 0, _HIGHEST) for rank in value])


def file_name(run: str) -> str:
    """Return the name of the file next to the socket with a run's request."""
    return request_name(TRACE, run)
