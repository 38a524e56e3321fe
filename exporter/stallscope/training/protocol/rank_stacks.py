"""The stacks and lines of one rank, in the form in which an exporter returns them to `stallscope stacks`.

    {"rank": 3, "pid": 4242, "world_size": "8", "reported": 1700000700.0, "taken": 1700000699.0, "standstill": false,
     "stacks": [[["/job/train.py", 7, "step"]]], "samples": [0, 0], "reachable": true, "lines": null}

Each distinct stack is sent once; `samples` has its index for each sample. Times are in Unix seconds by the exporter's
clock. Older exporters send no `pid`, `world_size`, `reachable` and `lines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stallscope.training.protocol.stacks import Frame, SampledPhase, Stack, sampled_phases


class RankStacks(NamedTuple):
    """Stacks and lines of one rank, and when it wrote them."""

    rank: int
    reported: float
    """Unix time of the newest report."""
    taken: float | None
    """Unix time of the stacks or lines; None without any."""
    standstill: bool
    """True if the stack was written because the rank sent no report for too long."""
    samples: tuple[Stack, ...]
    """The stack of each sample, the oldest first."""
    lines: Mapping[str, SampledPhase] | None = None
    """The lines of a requested burst by phase; None if there are none."""
    reachable: bool = True
    """False if the rank takes no requests."""
    pid: int | None = None
    world_size: str = ""
    has_lines: bool = True
    """False if the exporter is too old for lines."""

    @property
    def takes_requests(self) -> bool:
        """True if the rank takes stacks on request now."""
        return self.reachable and not self.standstill

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        stacks = list(dict.fromkeys(self.samples))
        lines = None if self.lines is None else {phase: sampled._asdict() for phase, sampled in self.lines.items()}
        return {
            "rank": self.rank,
            **({} if self.pid is None else {"pid": self.pid}),
            "world_size": self.world_size,
            "reported": self.reported,
            "taken": self.taken,
            "standstill": self.standstill,
            "stacks": [[list(frame) for frame in stack] for stack in stacks],
            "samples": [stacks.index(stack) for stack in self.samples],
            "reachable": self.reachable,
            **({"lines": lines} if self.has_lines else {}),
        }


def parse(document: Any) -> RankStacks:
    """Parse the JSON form of an untrusted server.

    Raises:
        ValueError: the format is invalid.
    """
    try:
        stacks = [tuple([_frame(*frame) for frame in stack]) for stack in document["stacks"]]
        if not all(stacks):
            raise ValueError("a stack has no frame")
        lines, taken, pid = document.get("lines"), document["taken"], document.get("pid")
        return RankStacks(
            rank=_of_type(document["rank"], int),
            reported=float(_of_type(document["reported"], int, float)),
            taken=None if taken is None else float(_of_type(taken, int, float)),
            standstill=_of_type(document["standstill"], bool),
            samples=tuple([stacks[_index(number)] for number in document["samples"]]),
            lines=None if lines is None else sampled_phases(lines),
            reachable=_of_type(document.get("reachable", True), bool),
            pid=None if pid is None else _of_type(pid, int),
            world_size=_of_type(document.get("world_size", ""), str),
            has_lines="lines" in document,
        )
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"a rank has an invalid format: {error!r:.200}") from None


def _frame(file: Any, line: Any, function: Any) -> Frame:
    return Frame(_of_type(file, str), _of_type(line, int), _of_type(function, str))


def _index(value: Any) -> int:
    if _of_type(value, int) < 0:
        raise ValueError("the index of a stack is negative")
    return int(value)


def _of_type(value: Any, *types: type) -> Any:
    # Not by isinstance: true is an int.
    if type(value) not in types:
        raise ValueError(f"{value!r:.80} is not of the expected type")
    return value
