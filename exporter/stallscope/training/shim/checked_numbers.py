"""Numbers that a program reports: Python and NumPy numbers are taken, and tensors never.

Imported with the first value, or a first setting that is not the usual one.
"""

from __future__ import annotations

import sys
from math import inf, isfinite

from stallscope.training.shim.tolerance import complain


def number(value: object) -> float | int | None:
    """Take a Python or NumPy number as it is; None for anything else.

    A tensor is anything else on purpose: turning one into a number waits for the GPU.
    """
    kind = type(value)
    if kind is float or (kind is int and -(2**53) <= value <= 2**53):  # type: ignore[operator]
        return value  # type: ignore[return-value]
    numpy = sys.modules.get("numpy")
    kinds = (float, int) if numpy is None else (float, int, numpy.floating, numpy.integer)
    if not issubclass(kind, kinds):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return inf
    except Exception:  # a subclass may do anything
        return None


def finite(name: str, value: object) -> float | int | None:
    """As `number`, with a warning for other values and for infinite ones."""
    found = number(value)
    if found is None:
        complain(
            f"{name} is a {type(value).__name__}; only Python and NumPy numbers are taken, since reading a tensor waits"
            " for the GPU: pass its .item() where that is fine",
            f"{name}: type",
        )
    elif not isfinite(found):
        complain(f"{name} is {found}; only finite numbers are reported", f"{name}: not finite")
        return None
    return found


def amount(name: str, value: object) -> float | int | None:
    """As `finite`, complaining of what is below zero as well."""
    found = finite(name, value)
    if found is not None and found < 0:
        complain(f"{name} is {found}; expected a number not below 0", f"{name}: negative")
        return None
    return found
