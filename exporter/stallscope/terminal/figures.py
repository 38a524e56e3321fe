"""Figures as the lines of a terminal have them."""

from __future__ import annotations

from stallscope.common.formatting import ago, count, duration, size_of
from stallscope.terminal.lines import Line, Span, bar, or_untold, share

BAR = 8
"""Cells of a bar."""


def drawn(ratio: float | None) -> Line:
    """A share as a bar and a number."""
    return or_untold(None) if ratio is None else (*bar(ratio, BAR), Span(f" {share(ratio)}"))


def part_of(used: float, total: float) -> str:
    """Bytes out of bytes, as wide whatever the part is."""
    part, whole = size_of(used, total).split(" of ")
    return f"{part:>{whole.index(' ')}}/{whole}"


def rate_of(number: float) -> str:
    """Work a second."""
    return count(number) if number >= 100 else f"{number:.3g}"


def several(number: int, what: str, plural: str = "") -> str:
    """A number of things."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def whole_time(seconds: float) -> str:
    """A time in no more than whole seconds."""
    return duration(round(seconds)) if seconds >= 9.5 else f"{seconds:.0f} s"


def time_since(now: float | None, when: float | None) -> str | None:
    """How long ago something was, where both are told."""
    return None if now is None or when is None else ago(now - when)
