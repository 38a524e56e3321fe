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
from collections.abc import Iterable, Mapping, Sequence
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
    """Intervals in microseconds, 16 bytes each."""

    def __init__(self) -> None:
        self._begins = array("d")
        self._ends = array("d")

    def add(self, begin: float, duration: float) -> None:
        self._begins.append(begin)
        self._ends.append(begin + duration)

    def merged(self) -> Floats:
        """Return the union, as rows of begin and end."""
        begins, ends = np.array(self._begins), np.array(self._ends)
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        if not len(begins):
            return np.empty((0, 2))
        first = np.concatenate([[True], begins[1:] > ends[:-1]])
        last = np.concatenate([first[1:], [True]])
        return np.stack([begins[first], ends[last]], axis=1)


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
    return rank, _phases(steps, {name: intervals.merged() for name, intervals in found.items()})


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
    busy = _union([found["kernels"]])
    order = (
        ("data_wait", found["data_wait"]),
        ("communication", _without(found["collectives"], busy)),
        ("host_copy", _without(found["copies"], _union([busy, found["collectives"]]))),
        ("optimizer", found["optimizer"]),
        ("backward", found["backward"]),
    )
    active = _union([found["operators"], found["kernels"], found["collectives"], *(part for _, part in order)])
    result = {}
    for number, (begin, end) in sorted(steps.items()):
        taken = np.empty((0, 2))
        phases: dict[str, float] = {}
        for name, part in order:
            before = _length(taken)
            taken = _union([taken, _within(part, begin, end)])
            phases[name] = (_length(taken) - before) * _MICROSECOND
        inside = _within(active, begin, end)
        last = float(inside[-1, 1]) if len(inside) else begin
        phases["forward"] = (last - begin - _length(_within(taken, begin, last))) * _MICROSECOND
        phases["other"] = (end - begin) * _MICROSECOND - sum(phases.values())
        result[number] = {name: seconds for name, seconds in phases.items() if seconds > 0.5 * _MICROSECOND}
    return result


def _length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _union(parts: Iterable[Floats]) -> Floats:
    union = _Intervals()
    for part in parts:
        for begin, end in part.tolist():
            union.add(begin, end - begin)
    return union.merged()


def _within(intervals: Floats, begin: float, end: float) -> Floats:
    """Return the parts of disjoint, ordered intervals between two moments."""
    first = int(np.searchsorted(intervals[:, 1], begin, side="right"))
    last = int(np.searchsorted(intervals[:, 0], end, side="left"))
    return np.clip(intervals[first:last], begin, end)


def _without(intervals: Floats, others: Floats) -> Floats:
    """Return the parts of disjoint, ordered intervals that are outside all of the others."""
    gaps = np.concatenate([[-np.inf], others.reshape(-1), [np.inf]]).reshape(-1, 2)
    parts: list[tuple[float, float]] = []
    for begin, end in intervals.tolist():
        first = int(np.searchsorted(gaps[:, 1], begin, side="right"))
        last = int(np.searchsorted(gaps[:, 0], end, side="left"))
        parts += [(max(begin, left), min(end, right)) for left, right in gaps[first:last].tolist()]
    return np.array(parts, dtype=np.float64).reshape(-1, 2)
