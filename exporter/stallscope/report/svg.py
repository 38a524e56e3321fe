"""A Matplotlib drawing as SVG that belongs to a page: small, in the page's own colours and type."""

from __future__ import annotations

import re
from io import StringIO

from matplotlib.figure import Figure

INK, SOFT, RULE, CARD = "#010203", "#040506", "#070809", "#0a0b0c"
"""Stand for the page's own colours, which are known only where it is read."""
_PAGE_COLOURS = {INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)", CARD: "var(--card)"}


def inline_svg(canvas: Figure, key: str) -> str:
    """The drawing as it may stand in a page: without what a file begins with, and with identifiers of its own.

    Args:
        canvas: the drawing; `INK` and its like stand in it for the page's own colours.
        key: begins its identifiers, so that two drawings of one page don't share any.
    """
    written = StringIO()
    canvas.savefig(written, format="svg", metadata={"Date": None}, facecolor="none")
    svg = written.getvalue()
    svg = re.sub(r"<(metadata|style).*?</\1>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # The page says how wide it is, and beside it in words what it shows.
    svg = re.sub(r'<svg[^>]*? (viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true">', svg, count=1)
    used = frozenset(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    # Only what stands in tags: texts are somebody's own words.
    svg = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], key, used), svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _tag(tag: str, key: str, used: frozenset[str]) -> str:
    """A tag in the page's colours and type, with no more digits and identifiers than are of use."""
    tag = re.sub(r' d="([^"]*)"', _short_path, tag).replace("xlink:href", "href")
    tag = re.sub(r"""font: ([\d.]+px) [^;"]*""", r"font-size: \1", tag)
    for sentinel, colour in _PAGE_COLOURS.items():
        tag = tag.replace(sentinel, colour)
    tag = re.sub(r' id="([^"]*)"', lambda own: f' id="{key}-{own[1]}"' if own[1] in used else "", tag)
    return re.sub(r'(url\(|href=")#', rf"\g<1>#{key}-", tag)


def _short_path(path: re.Match[str]) -> str:
    """A path with a decimal place and without needless space."""
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[1])
    dense = re.sub(r"\s*([MLCQz])\s*", r"\1", rounded)
    return f' d="{dense.strip()}"'
