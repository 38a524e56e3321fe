"""Conditions of `--fail-on`: a value that a run must not exceed, such as `lost>20%` or `step>250ms`."""

from __future__ import annotations

import re
from typing import NamedTuple

from stallscope.model.catalogue.metrics import OUTSIDE_PHASES, PHASES

EXCEEDED = 90
"""Exit status if a program succeeds and a value is exceeded."""
UNKNOWN = 91
"""Exit status if a program succeeds and a value is unknown."""
STEP = "step"
LOST = "lost"
_NAMES = tuple(dict.fromkeys((STEP, LOST, *PHASES, *OUTSIDE_PHASES)))
_FORM = re.compile(r"\s*([^\s<>=]+)\s*>\s*(\d+(?:\.\d+)?)\s*(%|ms|s|)\s*")
_DIVISORS = {"%": 100.0, "ms": 1000.0, "s": 1.0, "": 1.0}


class Condition(NamedTuple):
    """A condition."""

    text: str
    """As on the command line."""
    name: str
    """`lost`, `step` or a phase."""
    limit: float
    """A share of the time, or seconds for `step`."""


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        ValueError: it is invalid; the message is one line.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f'expected NAME>VALUE such as lost>20%, data_wait>0.1 or step>250ms, got "{text}"')
    name, number, unit = found.groups()
    is_time = unit in ("ms", "s")
    if is_time and name not in _NAMES:
        import difflib  # only this error needs it

        near = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{name}: expected one of {', '.join(_NAMES)}, or a phase of the program{hint}")
    if is_time != (name == STEP):
        expected = "a time such as 250ms" if name == STEP else "a share such as 20% or 0.2"
        raise ValueError(f'{name}: expected {expected}, got "{number}{unit}"')
    limit = float(number) / _DIVISORS[unit]
    if name != STEP and limit >= 1.0:
        raise ValueError(f'{name}: expected a share below 100%, got "{number}{unit}"; write 20% or 0.2')
    return Condition(text.strip(), name, limit)
