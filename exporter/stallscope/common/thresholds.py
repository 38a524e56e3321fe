"""The thresholds of the rules: their default values, and the rule file with other values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from stallscope.common.bundle import bundle_folder

# On one line as in the bundle, or on several as a YAML library writes them.
_RULE = re.compile(r"(record: stallscope:threshold,?\s+labels:\s+\{?name: (\w+)\}?,?\s+expr: vector\()([^()]+)(\))")

# A line of the comment at the end of the file: `# packing_cpu: 0.6 in gpu:jobs_that_fit:count (hours.yml)`.
_CONSTANT = re.compile(r"^# (\w+): \S+ in (\S+ \(\S+\))$", re.MULTILINE)


def threshold_file() -> Path:
    """Return the path of the bundle's rule file with all thresholds."""
    return bundle_folder("prometheus") / "rules" / "thresholds.yml"


@cache
def default_thresholds() -> Mapping[str, float]:
    """Return the bundle's thresholds by name."""
    return _values(threshold_file().read_text(encoding="utf-8"))


def former_thresholds() -> Mapping[str, str]:
    """Return the rule and file that hold each value that was a threshold and is a constant now, by its former name."""
    return dict(_CONSTANT.findall(threshold_file().read_text(encoding="utf-8")))


def _values(text: str) -> dict[str, float]:
    return {name: float(value) for _, name, value, _ in _RULE.findall(text)}


def with_values(values: Mapping[str, float], file: Path | None = None) -> str:
    """Return the text of a rule file with other values; comments stay.

    Args:
        values: values by name.
        file: the rule file; by default the bundle's.

    Raises:
        ValueError: a name is unknown, or a value is not finite; the message is one line.
    """
    text = (file or threshold_file()).read_text(encoding="utf-8")
    unknown = sorted(values.keys() - _values(text).keys())
    if unknown:
        former = former_thresholds()
        if known := [f"{name} in {former[name]}" for name in unknown if name in former]:
            raise ValueError(
                f"constants now: {', '.join(known)}; remove these names from your values, or edit the rules"
            )
        raise ValueError(f"no threshold named {', '.join(unknown)}; `stallscope thresholds --list` shows all names")
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value}")
    return _RULE.sub(
        lambda rule: f"{rule[1]}{values[rule[2]]!r}{rule[4]}" if rule[2] in values else rule[0],
        text,
    )


def changed(values: Mapping[str, float]) -> list[str]:
    """Return each value that differs from the default, with the default: `input_warning 0.15 (default 0.1)`."""
    defaults = default_thresholds()
    return [
        f"{name} {value:g} (default {defaults[name]:g})"
        for name, value in sorted(values.items())
        if name in defaults and not math.isclose(value, defaults[name], rel_tol=1e-9)
    ]
