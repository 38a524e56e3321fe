"""Operation traces of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25).

The columns are documented in the readme of ByteDance-Seed/StragglerAnalysis. Compute operations are the rank's own
work. The rest of its step is communication: transfers, and waits for other ranks.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.external.aligned import aligned, checked_duration
from tests.external.errors import ExternalError
from tests.external.recording import Recording

SOURCE = "operation trace in the format of ByteDance-Seed/StragglerAnalysis"
_PHASES = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "optimizer": "optimizer",
    "optimizer-clip-main-grad": "optimizer",
}
_COLUMNS = ("rank", "stage", "step", "optype", "start_ts", "duration")
_BATCH = 1 << 16

Row = tuple[int, int, int, str, float, float]
"""Values of `_COLUMNS`."""


def converted(paths: Sequence[Path]) -> Recording:
    """Return the recording of one Parquet file.

    Raises:
        ExternalError: the file is not such a trace.
    """
    if len(paths) != 1:
        raise ExternalError(f"operations: {len(paths)} files; name one, which has all ranks")
    return summed(paths[0].name, _rows(paths[0]))


def summed(name: str, rows: Iterator[Row]) -> Recording:
    """Sum operations to seconds by rank, step and phase.

    A step lasts as long as the longest interval that one rank's clock measures, because clocks of ranks may differ.
    """
    work: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    span: dict[tuple[int, int], tuple[float, float]] = {}
    stages: dict[int, int] = {}
    for rank, stage, step, kind, start, duration in rows:
        checked_duration(f"{name}: step {step}: rank {rank}: {kind}", duration)
        key = (rank, step)
        if kind in _PHASES:
            work[key][_PHASES[kind]] += duration
        first, last = span.get(key, (start, start))
        span[key] = (min(first, start), max(last, start + duration))
        stages[rank] = stage
    lengths: dict[int, float] = defaultdict(float)
    for (_, step), (first, last) in span.items():
        lengths[step] = max(lengths[step], last - first)
    ranks: dict[int, dict[int, Mapping[str, float]]] = defaultdict(dict)
    for rank, step in span:
        phases = dict(work[rank, step])
        wait = lengths[step] - sum(phases.values())
        if wait > 0:
            phases["communication"] = wait
        ranks[rank][step] = phases
    return aligned(name, SOURCE, ranks, stages=stages)


def _rows(path: Path) -> Iterator[Row]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ExternalError(f"{path.name}: pyarrow is not installed; pip install pyarrow") from None
    try:
        file = parquet.ParquetFile(path)
        missing = [column for column in _COLUMNS if column not in file.schema_arrow.names]
        if missing:
            raise ExternalError(f"{path.name}: {missing[0]}: the column is missing; name an operation trace")
        for batch in file.iter_batches(batch_size=_BATCH, columns=list(_COLUMNS)):
            yield from zip(*(batch.column(column).to_pylist() for column in _COLUMNS), strict=True)
    except OSError as problem:
        raise ExternalError(f"{path.name}: {problem.strerror or problem}; name a Parquet file") from None
    except ValueError as problem:  # pyarrow.ArrowInvalid is one
        raise ExternalError(f"{path.name}: {str(problem).splitlines()[0]}; name a Parquet file") from None
