"""Figures as the lines of a terminal have them."""

from __future__ import annotations

from stallscope.common.formatting import size_of
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
