"""A request to the ranks of a run, in the form that travels from the exporter to the training.

Training that reports over UNIX or UDP datagrams gets no answer. It reads a file next to the exporter's socket, one for
each action. Training that reports over HTTP finds the requests in the response to its report, one in each line. Both
have the same JSON object:

    {"version": 1, "action": "trace", "run": "resnet50", "first_step": 20012, "steps": 5, "ranks": [0, 3],
     "created": 1700000100.0, "expires": 1700000700.0}

Steps have the number of steps done before them. No ranks are all ranks. Both ends share this file; it needs the
standard library alone.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from stallscope.training.protocol.request_name import STOP, TRACE

VERSION = 1
ACTIONS = (TRACE, STOP)
"""Requests that ranks may receive: write traces of some steps; end before the first step."""
MAX_BYTES = 8192
"""Longest request."""
MAX_STEPS = 100
"""Largest number of steps in a request."""
MAX_RANKS = 1024
"""Largest number of ranks in a request."""
_HIGHEST = 2**53


class StepRequest(NamedTuple):
    """An action, and the steps and ranks of a run that it applies to."""

    action: str
    run: str
    first_step: int
    steps: int
    ranks: tuple[int, ...]
    """Empty for all ranks."""
    created: float
    """Unix time of the request."""
    expires: float
    """Unix time after which the request is void."""


def encode(request: StepRequest) -> bytes:
    """Encode a request."""
    return encoded(request._asdict())


def parse(data: bytes) -> StepRequest:
    """Parse and check a request.

    Raises:
        ValueError: it is invalid; the message has the reason.
    """
    document = document_of(data)
    action = document.get("action")
    if action not in ACTIONS:
        raise ValueError(f"action is {action!r:.80}; expected one of {', '.join(ACTIONS)}")
    return StepRequest(
        action=action,
        run=document["run"],
        first_step=whole(document.get("first_step"), "first_step", 0, _HIGHEST),
        steps=whole(document.get("steps"), "steps", 1, MAX_STEPS),
        ranks=rank_numbers(document.get("ranks", [])),
        created=_unix_time(document.get("created"), "created"),
        expires=_unix_time(document.get("expires"), "expires"),
    )


def encoded(fields: dict[str, Any]) -> bytes:
    """Encode the fields of a request of any kind."""
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def document_of(data: bytes) -> dict[str, Any]:
    """Return the fields of an encoded request of any kind; only `version` and `run` are checked.

    Raises:
        ValueError: it is no request; the message has the reason.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if type(document) is not dict or document.get("version") != VERSION:
        raise ValueError(f"no JSON object of version {VERSION}")
    run = document.get("run")
    if type(run) is not str or not run:
        raise ValueError("run is not a string")
    return document


def _unix_time(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 < value < _HIGHEST:
        raise ValueError(f"{name} is not a Unix time")
    return float(value)


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
