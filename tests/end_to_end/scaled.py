"""The bundle's rules and alerts in a faster time: every duration shortened by one factor, and nothing else changed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from stallscope.common.bundle import bundle_folder

_MILLISECONDS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"
_QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`'
# A range, a subquery with or without its step, an offset; what is quoted or commented is passed over.
_IN_EXPRESSION = re.compile(
    rf"{_QUOTED}|#[^\n]*|(?P<range>\[\s*{_DURATION}\s*(?::\s*(?:{_DURATION})?\s*)?\])"
    rf"|\boffset\s+-?\s*(?P<offset>{_DURATION})"
)
# Seconds as plain numbers: an age beside `time()`, the longest gap between two samples, what is added to a threshold.
_AGE = re.compile(
    r"(?P<before>\btime\(\) - |\bclamp_max\(time\(\) - timestamp\([^()]*\), |_seconds\"\}\) [+-] )(?P<seconds>\d+)\b"
)
_TIMINGS = frozenset({"for", "keep_firing_for", "interval", "group_wait", "group_interval", "repeat_interval"})
_THRESHOLD = "stallscope:threshold"
_SECONDS = re.compile(r"vector\(\s*(\d+(?:\.\d+)?)\s*\)")


def scaled(folder: Path, factor: int, *, unscaled: frozenset[str] = frozenset()) -> None:
    """Write the bundle's folders `prometheus` and `alerts` with every duration divided by a factor.

    Ranges, subqueries, offsets, `for`, `keep_firing_for`, intervals of groups, Alertmanager's timings, thresholds in
    seconds, and ages in seconds (`time() - 60`); a name such as `ratio5m` stays, and so does every other number.

    Args:
        folder: where to write; an empty one.
        factor: how many times faster.
        unscaled: thresholds in seconds that measure the job's own steps and operations, not the time to judge them.
    """
    for name in ("prometheus", "alerts"):
        shutil.copytree(bundle_folder(name), folder / name)
        for file in sorted((folder / name).rglob("*.yml")):
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            text = yaml.safe_dump(_rescaled(content, factor, unscaled), sort_keys=False, allow_unicode=True)
            file.write_text(text, encoding="utf-8")


def shortened(duration: str, factor: int) -> str:
    """A duration divided by a factor, in whole milliseconds: `5m` by 15 is `20000ms`."""
    parts = re.findall(r"(\d+)(ms|[smhdwy])", duration)
    return f"{max(round(Fraction(sum(int(count) * _MILLISECONDS[unit] for count, unit in parts), factor)), 1)}ms"


def rescaled_expression(expression: str, factor: int) -> str:
    """An expression with every range, subquery step, offset and age divided by a factor."""

    def replaced(match: re.Match[str]) -> str:
        if match["range"] is None and match["offset"] is None:
            return match[0]
        return re.sub(_DURATION, lambda duration: shortened(duration[0], factor), match[0])

    return _AGE.sub(
        lambda age: f"{age['before']}{int(age['seconds']) / factor:g}", _IN_EXPRESSION.sub(replaced, expression)
    )


def _rescaled(content: Any, factor: int, unscaled: frozenset[str]) -> Any:
    if isinstance(content, list):
        return [_rescaled(entry, factor, unscaled) for entry in content]
    if not isinstance(content, dict):
        return content
    in_seconds = content.get("record") == _THRESHOLD and content["labels"]["name"].endswith("_seconds")
    if in_seconds and content["labels"]["name"] not in unscaled:
        number = _SECONDS.fullmatch(content["expr"].strip())
        assert number, f"a threshold in seconds is to be vector(number), not {content['expr']!r}"
        return {**content, "expr": f"vector({float(number[1]) / factor:g})"}
    changes: dict[str, Callable[[str], str]] = {
        "expr": lambda text: rescaled_expression(text, factor),
        **dict.fromkeys(_TIMINGS, lambda text: shortened(text, factor)),
    }
    return {
        key: changes[key](value) if key in changes and isinstance(value, str) else _rescaled(value, factor, unscaled)
        for key, value in content.items()
    }
