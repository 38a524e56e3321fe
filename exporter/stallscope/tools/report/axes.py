"""Margins, axes, marks and fonts, the same for every plot."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator

from stallscope.common.formatting import readable
from stallscope.tools.report.colours import colour_of
from stallscope.tools.report.document import Kind, Mark
from stallscope.tools.report.svg import INK, RULE, SOFT
from stallscope.tools.report.thinning import Matrix
from stallscope.tools.report.words import LONGEST_TEXT, Words, plain, title_of


class Sheet(NamedTuple):
    """Measures of a drawing in its own units, in which the font size is 11. Plots over time share the margins."""

    width: int
    left: int
    right: int
    label: int
    """Characters of a row's label."""
    bar_label: int
    """Characters of a line of a bar's label."""
    bar_lines: int
    """Lines of a bar's label."""


WIDE = Sheet(760, 150, 30, 23, 34, 1)
NARROW = Sheet(380, 124, 18, 18, 18, 2)
"""For a phone, on which a wide drawing would be too small to read."""
_TOP, _BOTTOM = 12, 28
_LINE = 15
"""Height of a line of text."""
_TYPE = 11
CHARACTER = 6.2
"""Approximate width of a character."""
_TICK = 64
"""Width that the label of a tick needs."""
DAY = 86_400.0
"""Seconds per unit of Matplotlib's time axis."""
_MOST_DECIMALS = 9
_LONGEST_NUMBER = 1e9
"""Larger numbers are written with an exponent."""
_MARK_LINES = 2
"""Lines above a drawing for the labels of marks."""

SETTINGS: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": _TYPE,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.labelcolor": SOFT,
    "axes.labelsize": _TYPE,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "figure.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "image.composite_image": False,
    "xtick.color": RULE,
    "xtick.labelcolor": SOFT,
    "xtick.labelsize": _TYPE,
    "ytick.color": RULE,
    "ytick.labelcolor": SOFT,
    "ytick.labelsize": _TYPE,
}


def canvas(
    sheet: Sheet, height: float, marks: Sequence[Mark] = (), *, left: int = 0, right: int = 0, named: bool = True
) -> tuple[Figure, Axes]:
    """Return a figure and its axes of the given height, with room for mark labels above and the axis label below.

    Args:
        sheet: the width, and the margins where `left` and `right` are 0.
        height: height of the axes.
        marks: marks whose labels need room.
        left: left margin.
        right: right margin.
        named: True if the horizontal axis has a label.
    """
    left, right = left or sheet.left, right or sheet.right
    top = _TOP + _LINE * min(_MARK_LINES, len(marks))
    bottom = _BOTTOM + (_LINE if named else 0)
    whole = top + height + bottom
    drawing = Figure(figsize=(sheet.width / 72, whole / 72), dpi=72)
    axes = drawing.add_axes((left / sheet.width, bottom / whole, 1 - (left + right) / sheet.width, height / whole))
    return drawing, axes


def _width(axes: Any) -> float:
    """Return the width of the axes in the units of the drawing."""
    return float(axes.get_position().width * axes.figure.get_figwidth() * 72)


def time_axis(axes: Axes, start: float, end: float, words: Words) -> None:
    """Make the horizontal axis a time axis in the document's time zone, labelled with the dates."""
    if not end > start:
        start, end = start - 30, end + 30
    most = int(_width(axes) / _TICK)
    locator = AutoDateLocator(words.zone, minticks=min(4, most - 1), maxticks=most)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, words.zone, show_offset=False)  # type: ignore[no-untyped-call]
    formatter.zero_formats[3] = "%d %b"
    formatter.formats[2] = "%d %b"
    axes.xaxis.set_major_formatter(formatter)
    axes.set_xlim(start / DAY, end / DAY)
    days = dict.fromkeys(words.moment(each)[:10] for each in (start, end))
    axes.set_xlabel(f"{' to '.join(days)}, {words.zone_name}", loc="right")


def number_axis(axis: Any, kind: Kind, unit: str) -> None:
    """Format the numbers of an axis with their unit; counts get whole numbers only."""
    most = min(5, int(_width(axis.axes) / _TICK)) if axis.axis_name == "x" else 5
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=kind == "count"))
    axis.set_major_formatter(_Numbers(unit))


class _Numbers(Formatter):
    """Formats numbers with just enough decimals to distinguish adjacent ticks."""

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of the ticks."""
        apart = min((later - earlier for earlier, later in pairwise(values)), default=0.0)
        decimals = next((n for n in range(_MOST_DECIMALS) if abs(apart - round(apart, n)) < apart / 1e3), None)
        return [
            f"{plain(value) if decimals is None or abs(value) >= _LONGEST_NUMBER else f'{value:,.{decimals}f}'} "
            f"{self._unit}".rstrip()
            for value in values
        ]


def row_height(rows: int) -> float:
    """Return a row height at which labels fit next to few rows, and many rows fit on a screen."""
    return 22 if rows <= 16 else 14 if rows <= 40 else max(2.5, 560 / rows)


def row_axis(axes: Axes, rows: Sequence[str], height: float, longest: int) -> None:
    """Make the vertical axis rows of the given height, with as many labels as fit."""
    every = -(-13 // max(1, int(height)))
    places = range(0, len(rows), every)
    axes.set_yticks(places, [shortened(title_of(rows[place]), longest) for place in places])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def draw_picture(axes: Axes, picture: Matrix, start: float, end: float) -> None:
    """Draw a row of colours for each row; the columns divide the time evenly."""
    extent = (start / DAY, end / DAY, len(picture) - 0.5, -0.5)
    axes.imshow(picture, aspect="auto", interpolation="none", extent=extent)


def draw_marks(axes: Axes, marks: Sequence[Mark], place: Callable[[float], float]) -> None:
    """Draw vertical lines with their labels above, as far as there is room."""
    low, high = axes.get_xlim()
    width = _width(axes)
    free = [0.0] * _MARK_LINES
    for mark in sorted(marks, key=lambda each: each.at):
        at = place(mark.at)
        if not low <= at <= high:
            continue
        axes.axvline(at, color=colour_of(mark.colour_of) or INK, linewidth=1.2, linestyle=(0, (4, 2)))
        label = shortened(mark.label, 28)
        length = CHARACTER * len(label)
        left, _ = axes.transAxes.inverted().transform(axes.transData.transform((at, 0.0))) * width
        beyond = left + length > width
        if beyond:
            left -= length
        line = next((number for number, end in enumerate(free) if left >= end), None)
        if line is not None:
            axes.annotate(
                label,
                (at, 1.0),
                (0, 4 + _LINE * line),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="right" if beyond else "left",
                color=SOFT,
                annotation_clip=False,
            )
            free[line] = left + length + CHARACTER


def shortened(text: str, longest: int) -> str:
    """Shorten a label in the middle: names of nodes differ at their ends."""
    text = readable(text, LONGEST_TEXT)
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def wrapped(text: str, longest: int) -> list[str]:
    """Return the lines of a label, broken at spaces as far as possible."""
    return textwrap.wrap(text, longest) or [text]
