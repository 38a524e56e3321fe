"""A report as GitHub-flavoured Markdown: text and tables for a merge request, an issue or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stallscope.common.formatting import readable
from stallscope.tools.report.document import (
    Areas,
    Block,
    Document,
    Fact,
    Facts,
    Figure,
    Histogram,
    Lines,
    Notice,
    Paragraph,
    Recommendation,
    Table,
    Value,
)
from stallscope.tools.report.words import LONGEST_TEXT, Words, limits, runbook_of, title_of

_ALERTS = {"good": "TIP", "info": "NOTE", "warning": "WARNING", "critical": "CAUTION"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKS = 48
_MOST_SPARKLINES = 6


def write(document: Document) -> str:
    """Return the report as Markdown."""
    words = Words(document)
    length = words.of(document.end - document.start, "seconds")
    if document.standstill_timestamp_seconds is not None:
        length += f", at a standstill since {words.moment(document.standstill_timestamp_seconds)}"
    elif document.live:
        length += ", still running"
    when = f"{words.moment(document.start)} to {words.moment(document.end)} ({length})"
    parts = [
        f"# {escaped(document.title)}",
        escaped(document.subtitle),
        f"{when}. Created {words.moment(document.made_at)}; times are {escaped(words.zone_name)}.",
        _facts(document.highlights, words),
    ]
    for section in document.sections:
        parts.append(f"## {escaped(section.title)}")
        for block in section.blocks:
            parts += _block(block, words)
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """Escape a text from outside, so that Markdown renders it literally on one line."""
    text = re.sub(r"[\\`*\[\]<>|~$&]", r"\\\g<0>", readable(text.strip(), LONGEST_TEXT))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it has no effect
    # Prevent automatic links.
    text = re.sub(r"(?<=[a-zA-Z])(?=://)|(?<=www)(?=\.)", r"\\", text, flags=re.IGNORECASE)
    # GitHub and GitLab notify `@name` and close issues by `fixes #1` even if escaped.
    text = re.sub(r"[@#!](?=\w)", r"\g<0>&#8203;", text)
    # At the start of a line: a heading, a rule, a list item or a GitLab command.
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[#+=-](?:[#=\s-]|$)|/))", r"\1\\", text)


def sparkline(values: Sequence[float | None]) -> str:
    """Return values as a line of block characters, with a space for a gap; empty without values."""
    together = max(1, -(-len(values) // _SPARKS))
    means: list[float | None] = []
    for place in range(0, len(values), together):
        here = [value for value in values[place : place + together] if value is not None]
        means.append(sum(here) / len(here) if here else None)
    there = [mean for mean in means if mean is not None]
    if not there:
        return ""
    low = min(0.0, *there)
    height = max(there) - low or 1.0
    return "".join(" " if mean is None else _BLOCKS[round((mean - low) / height * 7)] for mean in means)


def _block(block: Block, words: Words) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield escaped(block.text)
    elif isinstance(block, Notice):
        yield f"> [!{_ALERTS[block.level]}]\n> {escaped(block.text)}"
    elif isinstance(block, Facts):
        yield _title(block.title)
        yield _facts(block.facts, words)
    elif isinstance(block, Table):
        yield _title(block.title)
        yield _table(block, words)
        yield escaped(block.note)
    elif isinstance(block, Figure):
        yield _title(block.title)
        yield escaped(block.alternative)
        yield "\n".join(_sparklines(block, words))
    else:
        yield _recommendation(block, words)


def _title(text: str) -> str:
    return f"### {escaped(text)}" if text else ""


def _facts(facts: Sequence[Fact], words: Words) -> str:
    return "\n".join(f"- {escaped(fact.name)}: {_fact(fact, words)}" for fact in facts)


def _fact(fact: Fact, words: Words) -> str:
    note = f" ({escaped(fact.note)})" if fact.note else ""
    return f"**{escaped(words.of(fact.value, fact.kind))}**{note}"


def _table(table: Table, words: Words) -> str:
    if not table.rows:
        return "None."
    table = table.without_empty_columns()
    names = [f"{column.name} ({column.note})" if column.note else column.name for column in table.columns]
    lines = [_row([escaped(name) for name in names])]
    lines.append(_row(["---" if column.kind in ("text", "cause", "time") else "---:" for column in table.columns]))
    lines += [_row(_cells(row, table, words)) for row in table.rows]
    if table.total is not None:
        lines.append(_row([f"**{cell}**" if cell else "" for cell in _cells(table.total, table, words)]))
    return "\n".join(lines)


def _cells(row: Sequence[Value], table: Table, words: Words) -> list[str]:
    return [
        "" if value is None else escaped(words.of(value, column.kind))
        for value, column in zip(row, table.columns, strict=True)
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sparklines(figure: Figure, words: Words) -> Iterator[str]:
    """Yield sparklines of at most a few series; other plots have only their text alternative."""
    plot = figure.plot
    if isinstance(plot, Histogram):
        if any(plot.counts):
            ends = f"{words.of(plot.edges[0], plot.kind)} to {words.of(plot.edges[-1], plot.kind)}"
            yield f"- `{sparkline(plot.counts)}` {escaped(ends)}"
    elif isinstance(plot, (Lines, Areas)):
        for series in (plot.series if isinstance(plot, Lines) else plot.parts)[:_MOST_SPARKLINES]:
            there = [value for value in series.values if value is not None]
            if there and series.style != "points":
                ends = limits(words.of(min(there), plot.kind), words.of(max(there), plot.kind)).removeprefix("from ")
                name = series.label or title_of(series.name)
                yield f"- `{sparkline(series.values)}` {escaped(name)}: {escaped(ends)}"


def _recommendation(advised: Recommendation, words: Words) -> str:
    runbook = runbook_of(advised.cause)
    advice = f"**{escaped(advised.advice)}**" + (f" [Runbook]({runbook})" if runbook else "")
    parts = [f"### {advised.rank}. {escaped(title_of(advised.cause))}", advice]
    parts.append(_facts(advised.gain, words))
    parts += [escaped(text) for text in (advised.arithmetic, advised.evidence)]
    return "\n\n".join(part for part in parts if part)
