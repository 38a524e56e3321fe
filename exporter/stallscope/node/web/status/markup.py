"""Pieces of the page: texts from outside as HTML, bars and lines as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from stallscope.common.formatting import NAME_LENGTH, duration, readable
from stallscope.node.web.status.history import POINT_SECONDS, POINTS, UNKNOWN

UNKNOWN_TEXT = '<span class="none">unknown</span>'
"""Text without a value: absent must not look like zero."""
_LINE_HEIGHT = 24


class Part(NamedTuple):
    """A part of a stacked bar."""

    css: str
    share: float


def foreign(text: str, longest: int = NAME_LENGTH) -> str:
    """A text from outside, as HTML: cut, with what can't be seen spelt out, and kept from turning its surroundings."""
    return f"<bdi>{attribute(text, longest)}</bdi>"


def attribute(text: str, longest: int = NAME_LENGTH) -> str:
    """A text from outside for a quoted attribute; likewise."""
    return escape(readable(text, longest))


def bar(ratio: float | None, css: str = "fill") -> str:
    """A bar next to a number with the same value; dashed and empty without one."""
    if ratio is None:
        return '<svg class="bar untold" aria-hidden="true"></svg>'
    return stacked((Part(css, ratio),))


def stacked(parts: Iterable[Part]) -> str:
    """Parts of a whole, next to each other, with their names as text."""
    rectangles = []
    left = 0.0
    for part in parts:
        width = min(max(0.0, part.share), 1 - left) * 1000
        if width >= 0.5:
            rectangles.append(f'<rect class="{part.css}" x="{1000 * left:.0f}" width="{width:.0f}" height="8"/>')
        left += width / 1000
    return (
        '<svg class="bar" viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(rectangles)}</svg>"
    )


def line(points: bytes) -> str:
    """A line of percentages over the last minutes, with gaps where no value is known, and its caption."""
    known = [point for point in points if point != UNKNOWN]
    if len(known) < 2:
        return ""
    path = []
    drawing = False
    for place, point in enumerate(points, POINTS - len(points)):
        if point != UNKNOWN:
            # A line of no length after each beginning, so that a point alone is seen too.
            path.append(f"{'L' if drawing else 'M'}{place} {_LINE_HEIGHT - point * _LINE_HEIGHT / 100:.3g}")
            path.append("" if drawing else "h0")
        drawing = point != UNKNOWN
    minutes = duration(len(points) * POINT_SECONDS)
    words = f"{minutes}: mean {sum(known) / len(known):.0f} %, {min(known)} to {max(known)} %"
    return (
        f'<svg class="line" viewBox="0 -1 {POINTS - 1} {_LINE_HEIGHT + 2}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path d="{"".join(path)}"/></svg><p class="under">{words}</p>'
    )


def entry(name: str, value: str) -> str:
    """A line of a description list."""
    return f"<div><dt>{name}</dt><dd>{value}</dd></div>"
