"""Convert a Matplotlib drawing to compact inline SVG with the page's colours and fonts."""

from __future__ import annotations

import re
from io import StringIO

from matplotlib.figure import Figure

INK, SOFT, RULE, CARD = "#010203", "#040506", "#070809", "#0a0b0c"
"""Placeholders for the page's colours, which depend on the reader's colour scheme."""
_PAGE_COLOURS = {INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)", CARD: "var(--card)"}


def inline_svg(canvas: Figure, key: str) -> str:
    """Return the drawing for inclusion in a page, without XML header and with unique identifiers.

    Args:
        canvas: the drawing, with placeholders such as `INK` for the page's colours.
        key: prefix of its identifiers, unique on the page.
    """
    written = StringIO()
    canvas.savefig(written, format="svg", metadata={"Date": None}, facecolor="none")
    svg = written.getvalue()
    svg = re.sub(r"<(metadata|style).*?</\1>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # The page sets the width and provides the text alternative.
    svg = re.sub(r'<svg[^>]*? (viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true">', svg, count=1)
    used = frozenset(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    # Change tags only: texts come from outside.
    svg = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], key, used), svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _tag(tag: str, key: str, used: frozenset[str]) -> str:
    """Shorten a tag: the page's colours and font, few digits, and only identifiers that are used."""
    tag = re.sub(r' d="([^"]*)"', _short_path, tag).replace("xlink:href", "href")
    tag = re.sub(r"""font: ([\d.]+px) [^;"]*""", r"font-size: \1", tag)
    for sentinel, colour in _PAGE_COLOURS.items():
        tag = tag.replace(sentinel, colour)
    tag = re.sub(r' id="([^"]*)"', lambda own: f' id="{key}-{own[1]}"' if own[1] in used else "", tag)
    return re.sub(r'(url\(|href=")#', rf"\g<1>#{key}-", tag)


def _short_path(path: re.Match[str]) -> str:
    """Round a path to one decimal place and remove needless spaces."""
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[1])
    dense = re.sub(r"\s*([MLCQz])\s*", r"\1", rounded)
    return f' d="{dense.strip()}"'
