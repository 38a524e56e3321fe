"""Step logs with `time` and `data_time`: mmcv, mmengine and detectron2, as JSON lines or as text.

Both values are means over the steps since the line before, in seconds; `time` includes `data_time`. A line is one step
of the recording. The time without `data_time` is the phase `other`. In the text of detectron2, `time` is the mean of
the whole training, so `data_time` can be longer; the step then has the length of `data_time`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

from tests.external.aligned import aligned, checked_duration
from tests.external.errors import ExternalError
from tests.external.json_stream import opened
from tests.external.recording import MAX_RANK_STEPS, Recording

SOURCE = "step log with time and data_time"
_NUMBER = r"([-+0-9.eE]+)"
_TIME = re.compile(rf"(?<!\w)time: {_NUMBER}")
_DATA = re.compile(rf"(?<!\w)(?:data_time|data): {_NUMBER}")
_EVALUATION = re.compile(r"(?:Epoch|Iter)\((?:val|test)\)")
_STEP_KEYS = {"iter", "epoch", "iteration"}
"""Keys of a line about training steps in JSON without `mode`: in mmengine, evaluations have none of them."""
_LONGEST_LINE = 1 << 16


def converted(paths: Sequence[Path]) -> Recording:
    """Return the recording of one log for each rank.

    Raises:
        ExternalError: a file has no line with both times.
    """
    ranks = {}
    for rank, path in enumerate(paths):
        ranks[rank] = dict(enumerate(_steps(path)))
        if not ranks[rank]:
            raise ExternalError(f"{path.name}: no line with time and data_time; name a log of mmcv or detectron2")
    return aligned(" ".join(path.name for path in paths[:2]), SOURCE, ranks)


def _steps(path: Path) -> Iterator[Mapping[str, float]]:
    found = 0
    with opened(path) as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            times = _times(line)
            if times is None:
                continue
            whole, data = times
            where = f"{path.name}: line {number}"
            checked_duration(where, min(whole, data))
            if max(whole, data) > 0:
                yield {"data_wait": data, "other": max(whole - data, 0.0)}
                found += 1
            if found > MAX_RANK_STEPS:
                return


def _times(line: str) -> tuple[float, float] | None:
    """Return the step's time and the wait for data, if the line has both."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
        except ValueError:
            return None  # the last line of a log that is being written
        if not isinstance(entry, dict) or entry.get("mode", "train") != "train":
            return None
        if "mode" not in entry and not _STEP_KEYS & entry.keys():
            return None
        whole, data = _seconds(entry.get("time")), _seconds(entry.get("data_time"))
        return None if whole is None or data is None else (whole, data)
    if _EVALUATION.search(line):
        return None
    found = _TIME.search(line), _DATA.search(line)
    if found[0] is None or found[1] is None:
        return None
    try:
        times = float(found[0][1]), float(found[1][1])
    except ValueError:
        return None
    return times if isfinite(times[0]) and isfinite(times[1]) else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and isfinite(value) else None
