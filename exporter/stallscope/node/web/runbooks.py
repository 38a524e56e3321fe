"""The bundle's runbooks as pages of the exporter, for networks without access to the internet.

The runbooks use few of Markdown's constructs, so the exporter needs no library for them: headings, paragraphs, lists of
one level, tables, fenced code, and in a line code, strong text and links to other runbooks. A test compares every page
with the output of a library.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from html import escape

from stallscope.common.bundle import bundle_folder

_logger = logging.getLogger(__name__)

_FENCE = "```"
_ITEM = re.compile(r"(?:(?P<bullet>[-*])|\d+\.) +")
_HEADING = re.compile(r"(#{1,4}) +(.*)")
_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")
_LINK = re.compile(r"\[([^\]]+)\]\(([A-Za-z0-9]+\.md|https://[^\s)\"]+)\)")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "pre{overflow-x:auto;padding:.6rem .8rem;border:1px solid #8888}td,th{padding:.2rem .8rem .2rem 0;text-align:left}"
)


def load() -> Mapping[str, bytes]:
    """Return each runbook as HTML by the name of its file, such as `GpuLost.md`, and a list of them by the empty name.

    If they cannot be read, there is none: the exporter measures without them.
    """
    try:
        files = sorted((bundle_folder("alerts") / "runbooks").glob("*.md"))
        pages = {file.name: page(file.stem, file.read_text(encoding="utf-8", errors="replace")) for file in files}
    except OSError as problem:
        _logger.warning("the runbooks can't be read: %s", problem)
        return {}
    names = "\n".join(f"- [{name.removesuffix('.md')}]({name})" for name in pages)
    return {**pages, "": page("Runbooks", f"# Runbooks\n\n{names}")}


def page(title: str, text: str) -> bytes:
    """Return a runbook as a page."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return (head + '<meta name="viewport" content="width=device-width">' + html(text)).encode()


def html(text: str) -> str:
    """Return the body of a runbook."""
    return "\n".join(_blocks(text.splitlines()))


def _blocks(lines: list[str]) -> Iterator[str]:
    position = 0
    while position < len(lines):
        line = lines[position]
        end = position + 1
        if line.startswith(_FENCE):
            end = lines.index(_FENCE, end) if _FENCE in lines[end:] else len(lines)
            yield f"<pre><code>{escape(chr(10).join(lines[position + 1 : end]))}</code></pre>"
            end += 1
        elif heading := _HEADING.match(line):
            level = len(heading[1])
            yield f"<h{level}>{_inline(heading[2])}</h{level}>"
        elif line.strip():
            while end < len(lines) and lines[end].strip() and not lines[end].startswith((_FENCE, "#")):
                end += 1
            yield _block(lines[position:end])
        position = end


def _block(lines: list[str]) -> str:
    """Return a table, a list or a paragraph."""
    if lines[0].startswith("|"):
        rows = [[_inline(cell.strip()) for cell in line.strip().strip("|").split("|")] for line in lines]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[2:])
        return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in rows[0])}</tr>{body}</table>"
    first = _ITEM.match(lines[0])
    if first is None:
        return f"<p>{_inline(' '.join(lines))}</p>"
    items: list[str] = []
    for line in lines:
        if item := _ITEM.match(line):
            items.append(line[item.end() :])
        else:
            items[-1] += " " + line.strip()
    kind = "ul" if first["bullet"] else "ol"
    return f"<{kind}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{kind}>"


def _inline(text: str) -> str:
    """Return a line's text; code is taken out first, since nothing within it has a meaning."""
    parts = _CODE.split(text)
    return "".join(f"<code>{escape(part)}</code>" if number % 2 else _marked(part) for number, part in enumerate(parts))


def _marked(text: str) -> str:
    return _LINK.sub(r'<a href="\2">\1</a>', _STRONG.sub(r"<strong>\1</strong>", escape(text)))
