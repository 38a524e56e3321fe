"""Lines of text with roles, independent of the terminal's colours."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallscope.common.formatting import percent, size_of
from stallscope.model.view.phase_shares import PhaseShare, title_of_share


class Span(NamedTuple):
    """A piece of a line."""

    text: str
    role: str = ""
    """Style in a terminal with colours: title, head, good, warn, bad, quiet, stale, bar, track, chosen, or `phase:` and
    the phase's name."""


Line = tuple[Span, ...]

ASCII = str.maketrans("█▏▎▍▌▋▊▉·…°│←→↑↓", "########.~ |<>^v")
"""Replacements for terminals without Unicode."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_DASH = Span("-", "quiet")
_MIN_WIDTH = 20
"""Minimum width of sentences, even on a narrower screen."""
BAR = 8
"""Width of a bar in tables."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    right: bool = False
    least: int = 0
    """Minimum width to which the column may shrink; 0 if it must not shrink."""
    dispensable: int = 0
    """Columns with the highest number are omitted first if there is no room; 0 is never omitted."""


def line(*pieces: Span | str) -> Line:
    """Build a line; strings have no role."""
    return tuple(piece if isinstance(piece, Span) else Span(piece) for piece in pieces)


def plain(each: Line) -> str:
    """Return the text of a line."""
    return "".join(span.text for span in each).rstrip()


def width_of(text: str) -> int:
    """Return the width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def length_of(each: Line) -> int:
    """Return the width of a line in terminal cells."""
    return sum(width_of(span.text) for span in each)


def fit(each: Line, width: int, *, right: bool = False) -> Line:
    """Cut or pad a line to a width; a cut line ends with an ellipsis."""
    room = width - length_of(each)
    if room >= 0:
        filler = Span(" " * room)
        return (filler, *each) if right else (*each, filler)
    kept: list[Span] = []
    left = width - 1
    for span in each:
        text = _cut(span.text, left)
        kept.append(Span(text, span.role))
        left -= width_of(text)
        if len(text) < len(span.text):
            kept.append(Span("…" + " " * left, span.role))
            break
    return tuple(kept)


def _cut(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for place, each in enumerate(text):
        taken += width_of(each)
        if taken > width:
            return text[:place]
    return text


def wrapped(text: str, width: int, role: str = "", indent: str = "") -> list[Line]:
    """Wrap a sentence; a number and its percent sign stay together."""
    wide = width_of(text) - len(text)  # textwrap counts characters, not cells
    pieces = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        max(_MIN_WIDTH, width - wide),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [(Span(piece.replace("\u00a0%", " %"), role),) for piece in pieces]


def flow(items: Iterable[Line], width: int, indent: str = "") -> list[Line]:
    """Place items next to each other, on as many lines as needed."""
    gap = "   "
    lines: list[Line] = []
    now: Line = (Span(indent),)
    taken = len(indent)
    room = width - len(indent)
    for each in items:
        item = each if length_of(each) <= room else fit(each, room)
        length = length_of(item)
        first = taken == len(indent)
        if not first and taken + len(gap) + length > width:
            lines.append(now)
            now, taken, first = (Span(indent),), len(indent), True
        now = (*now, *item) if first else (*now, Span(gap), *item)
        taken += length + (0 if first else len(gap))
    return [*lines, now] if taken > len(indent) else lines


def table(columns: Sequence[Column], rows: Sequence[Sequence[Line]], width: int, indent: str = "") -> list[Line]:
    """Return the header and rows of a table, with as many columns as fit."""
    natural = [
        max([len(column.title), *(length_of(row[place]) for row in rows)]) for place, column in enumerate(columns)
    ]
    least = [min(natural[place], column.least) or natural[place] for place, column in enumerate(columns)]
    room = width - len(indent)
    shown = list(range(len(columns)))
    while sum(least[place] + 1 for place in shown) - 1 > room:
        spare = max(shown, key=lambda place: columns[place].dispensable)
        if not columns[spare].dispensable:
            break
        shown.remove(spare)
    gap = 2 if sum(natural[place] + 2 for place in shown) - 2 <= room else 1
    surplus = sum(natural[place] + gap for place in shown) - gap - room
    while surplus > 0:
        widest = max(shown, key=lambda place: natural[place] - least[place])
        if natural[widest] <= least[widest]:
            break
        natural[widest] -= 1
        surplus -= 1

    def laid(cells: Sequence[Line]) -> Line:
        spans: list[Span] = [Span(indent)]
        for place in shown:
            spans += fit(cells[place], natural[place], right=columns[place].right)
            spans.append(Span(" " * gap))
        row = tuple(spans[:-1])
        return row if length_of(row) <= width else fit(row, width)

    head = laid([(Span(column.title, "head"),) for column in columns])
    return [head, *(laid(row) for row in rows)]


def bar(ratio: float, width: int) -> Line:
    """Draw a bar of `width` cells."""
    eighths = round(min(1.0, max(0.0, ratio)) * width * 8)
    filled = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return Span(filled, "bar"), Span("·" * (width - len(filled)), "track")


def share(ratio: float) -> str:
    """Format a share in five cells, or in as many as it needs."""
    return f"{percent(ratio):>5}"


def share_bar(ratio: float | None) -> Line:
    """Return a share as a bar and a number."""
    return or_dash(None) if ratio is None else (*bar(ratio, BAR), Span(f" {share(ratio)}"))


def usage(used: float, total: float) -> str:
    """Format used and total bytes with a constant width."""
    part, whole = size_of(used, total).split(" of ")
    return f"{part:>{whole.index(' ')}}/{whole}"


def or_dash(text: str | None) -> Line:
    """Return a value, or a dash for an unknown value, which must not look like zero."""
    return (_DASH,) if text is None else (Span(text),)


def phase_bar(shares: Sequence[PhaseShare], width: int) -> tuple[Line, str]:
    """Draw phases as a stacked bar with labels; also return the labels that do not fit."""
    spans: list[Span] = []
    left_out = []
    end = 0.0
    taken = 0
    for phase in shares:
        end += phase.share
        cells = min(width, round(end * width)) - taken
        taken += cells
        name, part = phase_name(phase), percent(phase.share)
        label = next((each for each in (f"{name} {part}", part) if width_of(each) < cells), "")
        if not label.startswith(name):
            left_out.append(f"{name} {part}")
        if cells > 0:
            spans += [
                Span(text, f"phase:{phase.name}") for text in [plain(fit((Span(f"│{label}"),), cells)).ljust(cells)]
            ]
    return tuple(spans), ", ".join(left_out)


def phase_name(phase: PhaseShare) -> str:
    """Return the display name of a phase."""
    return title_of_share(phase.name)
