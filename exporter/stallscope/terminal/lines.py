"""Lines of text with roles: what a terminal shows, before anybody knows whether it has colours."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallscope.common.formatting import readable
from stallscope.view.phase_shares import PhaseShare


class Span(NamedTuple):
    """A piece of a line."""

    text: str
    role: str = ""
    """What it is, which a terminal with colours shows: title, head, good, warn, bad, quiet, stale, bar, track, chosen,
    or `phase:` and the phase's name."""


Line = tuple[Span, ...]

ASCII = str.maketrans("█▏▎▍▌▋▊▉·…°│←→↑↓", "########.~ |<>^v")
"""For terminals that know nothing else."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_UNTOLD = Span("-", "quiet")
_LEAST_WIDTH = 20
"""Cells that a sentence takes even on a narrower screen."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    right: bool = False
    least: int = 0
    """Cells to which it may shrink; 0 where it must not."""
    dispensable: int = 0
    """Where there is no room, those with the greatest number are left out first; 0 for never."""


def line(*pieces: Span | str) -> Line:
    """A line of pieces; texts have no role."""
    return tuple(piece if isinstance(piece, Span) else Span(piece) for piece in pieces)


def plain(each: Line) -> str:
    """A line as text alone."""
    return "".join(span.text for span in each).rstrip()


def width_of(text: str) -> int:
    """Cells that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def length_of(each: Line) -> int:
    """Cells that a line takes."""
    return sum(width_of(span.text) for span in each)


def fit(each: Line, width: int, *, right: bool = False) -> Line:
    """Exactly so many cells of a line: cut with a mark where it is longer, else filled up."""
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
    """A sentence over as many lines as it takes; a number is not parted from its percent sign."""
    wide = width_of(text) - len(text)  # which textwrap does not know of
    pieces = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        max(_LEAST_WIDTH, width - wide),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [(Span(piece.replace("\u00a0%", " %"), role),) for piece in pieces]


def flow(items: Iterable[Line], width: int, indent: str = "", gap: str = "   ") -> list[Line]:
    """Items side by side, over as many lines as it takes."""
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
    """A head and the rows, in as many columns as there is room for."""
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
    """A bar of so many cells."""
    eighths = round(min(1.0, max(0.0, ratio)) * width * 8)
    filled = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return Span(filled, "bar"), Span("·" * (width - len(filled)), "track")


def share(ratio: float) -> str:
    """A share in five cells; what is there never reads as nothing."""
    return " <1 %" if 0 < ratio < 0.005 else f"{100 * ratio:3.0f} %"


def or_untold(text: str | None, role: str = "") -> Line:
    """A value, or the mark of one that is not told: absent must not look like zero."""
    return (_UNTOLD,) if text is None else (Span(text, role),)


def phase_bar(shares: Sequence[PhaseShare], width: int) -> tuple[Line, str]:
    """Phases side by side, each with its name and share as far as they fit in; and in words those that don't."""
    spans: list[Span] = []
    left_out = []
    end = 0.0
    taken = 0
    for phase in shares:
        end += phase.share
        cells = min(width, round(end * width)) - taken
        taken += cells
        name, percent = phase_name(phase), share(phase.share).strip()
        label = next((each for each in (f"{name} {percent}", percent) if width_of(each) < cells), "")
        if not label.startswith(name):
            left_out.append(f"{name} {percent}")
        if cells > 0:
            spans += [
                Span(text, f"phase:{phase.name}") for text in [plain(fit((Span(f"│{label}"),), cells)).ljust(cells)]
            ]
    return tuple(spans), ", ".join(left_out)


def phase_name(phase: PhaseShare) -> str:
    """What a phase is called."""
    return readable(phase.name, 24).replace("_", " ") or "the rest"
