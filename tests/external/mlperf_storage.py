"""Output of MLPerf Storage: `RANK_output.json` of the DLIO benchmark, with seconds of loading and computing by step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.external.aligned import aligned, checked_duration
from tests.external.errors import ExternalError
from tests.external.json_stream import members
from tests.external.recording import Recording

SOURCE = "output of MLPerf Storage (DLIO)"
_FILE = re.compile(r"(\d+)_output\.json(\.gz)?")


def converted(paths: Sequence[Path]) -> Recording:
    """Return the recording of one file for each rank; evaluation is left out.

    Raises:
        ExternalError: a file is not such an output.
    """
    ranks: dict[int, Mapping[int, Mapping[str, float]]] = {}
    for path in paths:
        named = _FILE.fullmatch(path.name)
        if named is None:
            raise ExternalError(
                f"{path.name}: expected RANK_output.json; summary.json has no steps, name the other files"
            )
        steps = dict(enumerate(_steps(path)))
        if not steps:
            raise ExternalError(f"{path.name}: no step with load and compute; use the output of a training workload")
        ranks[int(named[1])] = steps
    return aligned(paths[0].name, SOURCE, ranks)


def _steps(path: Path) -> Iterator[Mapping[str, float]]:
    for epoch, entry in members(path):
        if not epoch.isdigit() or not isinstance(entry, dict):
            continue
        loads, computes = entry.get("load"), entry.get("compute")
        if not isinstance(loads, dict) or not isinstance(computes, dict):
            continue
        for block, waits in loads.items():
            if block == "eval":
                continue
            for number, (wait, compute) in enumerate(zip(waits, computes.get(block, ()), strict=False)):
                where = f"{path.name}: epoch {epoch}: {block}[{number}]"
                yield {"data_wait": _seconds(where, wait), "other": _seconds(where, compute)}


def _seconds(where: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise ExternalError(f"{where}: expected seconds, got {value!r}; use the output as it was written")
    return checked_duration(where, float(value))
