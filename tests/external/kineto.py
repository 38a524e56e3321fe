"""Traces of PyTorch's profiler: Chrome trace events of Kineto, one file for each rank, compressed with gzip or not.

Each moment of a `ProfilerStep` belongs to the first of these that it is in:

- `data_wait`: `enumerate(DataLoader)…`
- `communication`: kernels of NCCL or RCCL while no other kernel runs
- `host_copy`: copies from the host while no kernel runs
- `optimizer`: `Optimizer.step…`
- `backward`: functions of the autograd engine
- `forward`: the rest of the step up to its last operator or kernel
- `other`: what is left

Ranks are compared by the numbers of their steps, never by their clocks. The file is read event by event.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.external.aligned import aligned, checked_duration
from tests.external.errors import ExternalError
from tests.external.json_stream import members
from tests.external.recording import Recording
from tests.scenarios.disturbance import Floats

SOURCE = "trace of PyTorch's profiler"
_STEP = "ProfilerStep#"
_MICROSECOND = 1e-6
_KERNELS = ("kernel", "Kernel")
_COPIES = ("gpu_memcpy", "Memcpy")
_OPERATORS = ("cpu_op", "Operator", "operator")
_COLLECTIVES = ("nccl", "rccl")
_MANY = 1 << 18
"""Intervals of a kind that are kept apart while a trace is read."""


def converted(paths: Sequence[Path]) -> Recording:
    """Return the recording of one trace for each rank.

    Raises:
        ExternalError: a file is not such a trace, or two files are of one rank.
    """
    ranks: dict[int, Mapping[int, Mapping[str, float]]] = {}
    for place, path in enumerate(paths):
        rank, steps = _trace(path)
        rank = place if rank is None else rank
        if rank in ranks:
            raise ExternalError(f"{path.name}: a second trace of rank {rank}; name one file for each rank")
        ranks[rank] = steps
    return aligned(paths[0].name, SOURCE, ranks)


class _Intervals:
    """Intervals in microseconds. They are joined where they touch or overlap, as soon as there are many."""

    def __init__(self) -> None:
        self._edges = array("d")
        self._limit = _MANY

    def add(self, begin: float, duration: float) -> None:
        self._edges.extend((begin, begin + duration))
        if len(self._edges) >= 2 * self._limit:
            joined = self.merged()
            self._edges = array("d", joined.tobytes())
            self._limit = max(_MANY, 2 * len(joined))

    def merged(self) -> Floats:
        """Return the union, as rows of begin and end."""
        return _union([np.frombuffer(self._edges).reshape(-1, 2)])


def _trace(path: Path) -> tuple[int | None, Mapping[int, Mapping[str, float]]]:
    """Return the rank, if the trace has it, and seconds by phase of each step."""
    rank: int | None = None
    origin: float | None = None
    steps: dict[int, tuple[float, float]] = {}
    names = ("data_wait", "collectives", "kernels", "copies", "optimizer", "backward", "operators")
    found = {name: _Intervals() for name in names}
    for key, value in members(path, streamed=("traceEvents",)):
        if key == "distributedInfo" and isinstance(value, dict) and type(value.get("rank")) is int:
            rank = value["rank"]
        if key != "traceEvents" or not isinstance(value, dict) or value.get("ph") != "X":
            continue
        name, at, duration = str(value.get("name", "")), value.get("ts"), value.get("dur", 0)
        if not isinstance(at, (int, float)) or not isinstance(duration, (int, float)):
            continue
        origin = at if origin is None else origin
        begin = float(at - origin)
        checked_duration(f"{path.name}: {name}", duration * _MICROSECOND)
        kind = str(value.get("cat", ""))
        if name.startswith(_STEP):
            number = name.removeprefix(_STEP)
            # The GPU has an annotation of the same name, from the first kernel of the step to the last.
            if number.isdigit() and not kind.startswith("gpu"):
                steps[int(number)] = (begin, begin + float(duration))
        elif interval := found.get(_class(name, kind)):
            interval.add(begin, float(duration))
    if not steps:
        raise ExternalError(f"{path.name}: no ProfilerStep; call step() of the profiler after each training step")
    return rank, _phases(steps, {name: found.pop(name).merged() for name in names})


def _class(name: str, kind: str) -> str:
    """Return the intervals that an event belongs to."""
    if name.startswith("enumerate(DataLoader)"):
        return "data_wait"
    if kind in _KERNELS:
        return "collectives" if any(each in name.lower() for each in _COLLECTIVES) else "kernels"
    if kind in _COPIES:
        return "copies" if "HtoD" in name or "HostToDevice" in name else "kernels"
    if name.startswith("Optimizer.step"):
        return "optimizer"
    if name.startswith("autograd::engine::"):
        return "backward"
    return "operators" if kind in _OPERATORS else ""


def _phases(steps: Mapping[int, tuple[float, float]], found: Mapping[str, Floats]) -> dict[int, dict[str, float]]:
    result = {}
    for number, (begin, end) in sorted(steps.items()):
        inside = {name: _within(part, begin, end) for name, part in found.items()}
        kernels, collectives = inside["kernels"], inside["collectives"]
        order = (
            ("data_wait", inside["data_wait"]),
            ("communication", _without(collectives, kernels)),
            ("host_copy", _without(inside["copies"], _union([kernels, collectives]))),
            ("optimizer", inside["optimizer"]),
            ("backward", inside["backward"]),
        )
        taken = np.empty((0, 2))
        phases: dict[str, float] = {}
        for name, part in order:
            before = _length(taken)
            taken = _union([taken, part])
            phases[name] = (_length(taken) - before) * _MICROSECOND
        last = max((float(part[-1, 1]) for part in inside.values() if len(part)), default=begin)
        phases["forward"] = (last - begin - _length(_within(taken, begin, last))) * _MICROSECOND
        phases["other"] = (end - begin) * _MICROSECOND - sum(phases.values())
        result[number] = {name: seconds for name, seconds in phases.items() if seconds > 0.5 * _MICROSECOND}
    return result


def _length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _union(parts: Sequence[Floats]) -> Floats:
    joined = np.concatenate(parts)
    joined = joined[np.argsort(joined[:, 0], kind="stable")]
    latest = np.maximum.accumulate(joined[:, 1])
    starts = joined[1:, 0] > latest[:-1]
    first, last = np.append(True, starts)[: len(joined)], np.append(starts, True)[: len(joined)]
    return np.stack([joined[first, 0], latest[last]], axis=1)


def _within(intervals: Floats, begin: float, end: float) -> Floats:
    """Return the parts of disjoint, ordered intervals between two moments."""
    first = int(np.searchsorted(intervals[:, 1], begin, side="right"))
    last = int(np.searchsorted(intervals[:, 0], end, side="left"))
    return np.clip(intervals[first:last], begin, end)


def _without(intervals: Floats, others: Floats) -> Floats:
    """Return the parts of disjoint, ordered intervals that are outside all of the others."""
    gaps = np.concatenate([[-np.inf], others.reshape(-1), [np.inf]]).reshape(-1, 2)
    edges = np.concatenate([intervals, gaps])
    order = np.argsort(edges.reshape(-1), kind="stable")
    moments = edges.reshape(-1)[order]
    is_in_both = np.cumsum(1 - 2 * (order[:-1] % 2)) == 2  # a begin has an even place, an end an odd one
    parts = np.stack([moments[:-1], moments[1:]], axis=1)
    return np.asarray(parts[is_in_both & (parts[:, 0] < parts[:, 1])])
