"""The request for the stacks of a running job, in the form that travels from the exporter to the training.

Training that reports through the UNIX socket finds it in a file next to the socket, as a request for traces:

    {"version": 1, "run": "resnet50", "samples": 5, "interval": 1.0, "ranks": [0, 3], "expires": 1700000700.0,
     "begins": 1700000689.0, "lines": false}

Each rank takes `samples` stacks of its training thread, one in each interval of `interval` seconds from `begins` on.
The moments are the same for all ranks, so that their samples belong together. With `lines`, each rank samples its lines
of code for a burst instead. No ranks are all ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stallscope.training.protocol import step_request
from stallscope.training.protocol.stacks import MAX_SAMPLES

MAX_INTERVAL = 60.0
"""Most seconds of an interval with one sample."""
LINES_SECONDS = 75.0
"""Seconds within which the lines of a rank arrive: workers may take a minute to begin."""
_HIGHEST = 2**53


class StackRequest(NamedTuple):
    """The stacks that some ranks are to take."""

    run: str
    samples: int
    interval: float
    ranks: tuple[int, ...]
    """Empty for all ranks."""
    expires: float
    """Unix time after which the request is void."""
    begins: float = 0.0
    """Unix time from which on samples are taken, a multiple of the interval; 0 for at once."""
    lines: bool = False
    """True for the lines of code of a burst, in place of stacks."""


def encode(request: StackRequest) -> bytes:
    """Encode a request."""
    return step_request.encoded(request._asdict())


def parse(data: bytes) -> StackRequest:
    """Parse and check a request.

    Raises:
        ValueError: it is invalid; the message has the reason.
    """
    document = step_request.document_of(data)
    return StackRequest(
        run=document["run"],
        samples=step_request.whole(document.get("samples"), "samples", 1, MAX_SAMPLES),
        interval=seconds(document.get("interval"), "interval", MAX_INTERVAL),
        ranks=step_request.rank_numbers(document.get("ranks", [])),
        expires=seconds(document.get("expires"), "expires", _HIGHEST),
        begins=seconds(document["begins"], "begins", _HIGHEST) if document.get("begins") else 0.0,
        lines=flag(document.get("lines", False), "lines"),
    )


def seconds(value: Any, name: str, highest: float) -> float:
    """Take a number of seconds above 0.

    Raises:
        ValueError: it is not one.
    """
    if type(value) not in (int, float) or not 0 < value <= highest:
        raise ValueError(f"{name} is {value!r:.80}; expected seconds, above 0 and at most {highest:g}")
    return float(value)


def flag(value: Any, name: str) -> bool:
    """Take true or false.

    Raises:
        ValueError: it is neither.
    """
    if type(value) is not bool:
        raise ValueError(f"{name} is {value!r:.80}; expected true or false")
    return value
