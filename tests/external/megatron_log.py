"""Timers of Megatron-LM in its log, with the times of all ranks (`--timing-log-option all`, `--timing-log-level 2`).

Times are means of an iteration since the line before, in milliseconds. `batch-generator` is a part of
`forward-compute`. The rest of an iteration, without the rank's own work, is communication: transfers, and waits for
other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.external.aligned import aligned, checked_duration
from tests.external.errors import ExternalError
from tests.external.json_stream import opened
from tests.external.recording import MAX_RANK_STEPS, Recording

SOURCE = "timers of Megatron-LM"
_ITERATION = re.compile(r"iteration +(\d+)/ *\d+ *\|.*?elapsed time per iteration \(ms\): ([-+0-9.eE]+)")
_TIMER = re.compile(r" {2}([\w-]+):\s*")
_RANK = re.compile(r" {4,}rank +(\d+): ([-+0-9.eE]+)\s*")
_PREFIX = re.compile(r"\A(?:\[\w+\]:|\d+: )")
"""Before each line: the rank by torchrun, as in `[default7]:`, or the task by `srun --label`."""
_LOSSY = re.compile(r"\(min, max\) time across ranks \(ms\):|max time across ranks \(ms\):")
_PHASES = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}
_DATA = "batch-generator"
_LONGEST_LINE = 1 << 16

Timers = dict[str, dict[int, float]]
"""Milliseconds by timer and rank."""


def converted(paths: Sequence[Path]) -> Recording:
    """Return the recording of one log.

    Raises:
        ExternalError: the log does not have the times of all ranks.
    """
    if len(paths) != 1:
        raise ExternalError(f"megatron: {len(paths)} files; name the log of the last rank, which has all ranks")
    ranks: dict[int, dict[int, Mapping[str, float]]] = {}
    for iteration, elapsed, timers in _iterations(paths[0]):
        for rank in sorted({rank for name in (*_PHASES, _DATA) for rank in timers.get(name, ())}):
            where = f"{paths[0].name}: iteration {iteration}: rank {rank}"
            ranks.setdefault(rank, {})[iteration] = _phases(where, rank, elapsed, timers)
    if not ranks:
        raise ExternalError(
            f"{paths[0].name}: no timer forward-compute of each rank; train with --timing-log-level 2 "
            "--timing-log-option all"
        )
    return aligned(paths[0].name, SOURCE, ranks)


def _phases(where: str, rank: int, elapsed: float, timers: Timers) -> Mapping[str, float]:
    found = {}
    data = checked_duration(where, timers.get(_DATA, {}).get(rank, 0.0)) / 1000
    if data:
        found["data_wait"] = data
    for name, phase in _PHASES.items():
        seconds = checked_duration(f"{where}: {name}", timers.get(name, {}).get(rank, 0.0)) / 1000
        if phase == "forward":
            seconds = max(seconds - data, 0.0)
        if seconds:
            found[phase] = seconds
    rest = elapsed - sum(found.values())
    if rest > 0:
        found["communication"] = rest
    return found


def _iterations(path: Path) -> Iterator[tuple[int, float, Timers]]:
    """Yield number and seconds of each logged iteration, with its timers."""
    iteration, elapsed, timers, timer = -1, 0.0, Timers(), ""
    count = 0
    with opened(path) as file:
        while line := file.readline(_LONGEST_LINE):
            line = _PREFIX.sub("", line)
            if (found := _ITERATION.search(line)) is not None:
                if timers and iteration >= 0:
                    yield iteration, elapsed, timers
                    count += 1
                iteration, elapsed, timers, timer = int(found[1]), _number(path, found[2]) / 1000, {}, ""
                checked_duration(f"{path.name}: iteration {iteration}", elapsed)
                if count > MAX_RANK_STEPS:
                    return
            elif _LOSSY.search(line):
                raise ExternalError(
                    f"{path.name}: only the shortest and longest time of all ranks; train with --timing-log-option all"
                )
            elif (found := _TIMER.fullmatch(line.rstrip("\n"))) is not None:
                timer = found[1]
            elif timer and (found := _RANK.fullmatch(line.rstrip("\n"))) is not None:
                timers.setdefault(timer, {})[int(found[1])] = _number(path, found[2])
    if timers and iteration >= 0:
        yield iteration, elapsed, timers


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ExternalError(f"{path.name}: {text!r} is no number; use the log as it was written") from None
