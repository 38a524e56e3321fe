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
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"""font: ([\d.]+px) [^;"]*""", r"font-size: \1", svg)
    svg = re.sub(r' d="([^"]*)"', _short_path, svg)
    for sentinel, colour in _PAGE_COLOURS.items():
        svg = svg.replace(sentinel, colour)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    for name in used:
        svg = re.sub(rf'(id="|url\(#|href="#){re.escape(name)}(?=[")])', rf"\g<1>{key}-{name}", svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _short_path(path: re.Match[str]) -> str:
    """A path with a decimal place and without needless space."""
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[1])
    dense = re.sub(r"\s*([MLCQz])\s*", r"\1", rounded)
    return f' d="{dense.strip()}"'
