"""Pieces of the page: texts from outside, numbers as people read them, bars and lines as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from stallscope.web.status.history import NOT_TOLD, POINT_SECONDS, POINTS

NOT_TOLD_TEXT = '<span class="none">not told</span>'
"""Where there is no value: absent must not look like zero."""
_NAME_LENGTH = 80
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_LINE_HEIGHT = 24
_CENTURY = 3.2e9
_MOST_DIGITS = 1e15


class Part(NamedTuple):
    """A part of a stacked bar."""

    css: str
    share: float


def foreign(text: str, longest: int = _NAME_LENGTH) -> str:
    """A text from outside, as HTML: cut, with what can't be seen spelt out, and kept from turning its surroundings."""
    return f"<bdi>{attribute(text, longest)}</bdi>"


def attribute(text: str, longest: int = _NAME_LENGTH) -> str:
    """A text from outside for a quoted attribute; likewise."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if not text.isprintable():  # line breaks, marks that turn the direction, halves of characters
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return escape(text)


def percent(ratio: float) -> str:
    """A share; what is there never reads as nothing."""
    if 0 < ratio < 0.005:
        return "under 1 %"
    return f"{100 * ratio:.0f} %"


def count(number: float) -> str:
    """A number of things, with few digits where it can't be meant."""
    return f"{number:,.0f}" if abs(number) < _MOST_DIGITS else f"{number:.3g}"


def size(number: float) -> str:
    """Bytes with a binary unit."""
    power = 0
    while number >= 1024 and power < len(_SIZES) - 1:
        number, power = number / 1024, power + 1
    return f"{number:.1f} {_SIZES[power]}" if power else f"{number:.0f} B"


def size_of(used: float, total: float) -> str:
    """Bytes out of bytes, in the larger one's unit."""
    power, unit = 0, total
    while unit >= 1024 and power < len(_SIZES) - 1:
        unit, power = unit / 1024, power + 1
    return f"{used / 1024**power:.1f} of {unit:.1f} {_SIZES[power]}"


def duration(seconds: float) -> str:
    """A time as two units at most."""
    if not seconds < _CENTURY:  # what somebody reported, or a quotient of it
        return "over a century"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms" if seconds > 0 else "0 s"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    for name, below, length in (("d", "h", 86_400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= length:
            rest = whole % length // {"h": 3600, "min": 60, "s": 1}[below]
            return f"{whole // length} {name} {rest} {below}" if rest else f"{whole // length} {name}"
    return f"{whole} s"


def ago(seconds: float) -> str:
    """How long since."""
    whole = max(0, round(seconds))
    return f"{duration(whole) if whole >= 10 else f'{whole} s'} ago"


def bar(ratio: float | None, css: str = "fill") -> str:
    """A bar beside a number that says the same; a dashed empty one where there is none."""
    if ratio is None:
        return '<svg class="bar untold" aria-hidden="true"></svg>'
    return stacked((Part(css, ratio),))


def stacked(parts: Iterable[Part]) -> str:
    """Parts of a whole, side by side; what they are stands beside it as text."""
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
    """A line of percentages over the last minutes with gaps where nothing was told, and beneath it what it shows."""
    told = [point for point in points if point != NOT_TOLD]
    if len(told) < 2:
        return ""
    path = []
    drawing = False
    for place, point in enumerate(points, POINTS - len(points)):
        if point != NOT_TOLD:
            # A line of no length after each beginning, so that a point alone is seen too.
            path.append(f"{'L' if drawing else 'M'}{place} {_LINE_HEIGHT - point * _LINE_HEIGHT / 100:.3g}")
            path.append("" if drawing else "h0")
        drawing = point != NOT_TOLD
    minutes = duration(len(points) * POINT_SECONDS)
    words = f"{minutes}: mean {sum(told) / len(told):.0f} %, {min(told)} to {max(told)} %"
    return (
        f'<svg class="line" viewBox="0 -1 {POINTS - 1} {_LINE_HEIGHT + 2}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path d="{"".join(path)}"/></svg><p class="under">{words}</p>'
    )


def entry(name: str, value: str) -> str:
    """A line of a description list."""
    return f"<div><dt>{name}</dt><dd>{value}</dd></div>"
