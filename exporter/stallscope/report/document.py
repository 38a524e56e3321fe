"""A report as data: sections of blocks whose numbers are numbers, so that every format says the same.

Whoever fills it knows nothing of pages and pictures; whoever draws it knows nothing of runs. In every number, None
means that it is not told, which never reads as zero; `told` makes it out of NaN. Texts may come from outside: each
format escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Literal

Kind = Literal[
    "text",
    "cause",  # name of a cause or remainder in `stallscope.catalogue.causes`, shown by its title and colour
    "count",  # of things: whole
    "number",  # without a unit
    "share",  # of one: 0.25 is 25 %
    "times",  # a quotient: 1.8 is 1.8 times
    "seconds",  # a duration
    "gpu_hours",  # hours of a GPU
    "time",  # a moment: Unix time in seconds
    "joules",
    "watts",
    "celsius",
    "hertz",
    "bytes",
    "bytes_per_second",
    "per_second",
    "money",  # in the document's currency
]
"""What a value is, and its unit."""
Value = str | float | int | None
Numbers = tuple[float | None, ...]
"""Values of a series; None is a gap."""
Level = Literal["good", "info", "warning", "critical"]


class InconsistentBlock(ValueError):
    """A block's parts don't fit together; the message says which."""


@dataclass(frozen=True)
class Fact:
    """A value with its name."""

    name: str
    value: Value
    kind: Kind = "text"
    note: str = ""
    """A few words beside it: how it comes about, or why it is not told."""


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Notice:
    """Something that a reader must not miss: what was missing, or what makes the rest doubtful."""

    level: Level
    text: str


@dataclass(frozen=True)
class Facts:
    """Pairs of names and values."""

    facts: tuple[Fact, ...]
    title: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind = "text"
    note: str = ""
    """What the column means, where its name leaves that open."""


@dataclass(frozen=True)
class Table:
    """Rows of values. The first column names its row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    note: str = ""
    """A sentence beneath: where the values come from, or what was left out."""
    total: tuple[Value, ...] | None = None
    """A last row with sums."""

    def __post_init__(self) -> None:
        """Hold rows to the columns."""
        for row in (*self.rows, *([self.total] if self.total else [])):
            if len(row) != len(self.columns):
                raise InconsistentBlock(
                    f"table {self.title!r}: a row has {len(row)} values for {len(self.columns)} columns"
                )


@dataclass(frozen=True)
class Recommendation:
    """What to change, why, and what that would win."""

    rank: int
    """From 1, the greatest gain first."""
    cause: str
    gain: tuple[Fact, ...]
    """What is won at most, the most telling first: share of time, GPU-hours, energy, money."""
    arithmetic: str
    """How the gain comes about, with its numbers."""
    advice: str
    """What to do first."""
    evidence: str = ""
    """What speaks for it: where and when it was seen."""


@dataclass(frozen=True)
class Series:
    """A named series of values."""

    name: str
    """A cause, a remainder or a phase has the colour that it has everywhere; all others get one."""
    values: Numbers
    label: str = ""
    """What the legend says; the cause's title or the name where it is empty."""
    style: Literal["line", "points", "dashed"] = "line"
    """How `Lines` draws it."""


@dataclass(frozen=True)
class Mark:
    """A value on the horizontal axis that has a name: an event, a percentile."""

    at: float
    label: str
    colour_of: str = ""
    """Cause whose colour it has."""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, one a row, each of stacked parts."""

    rows: tuple[str, ...]
    parts: tuple[Series, ...]
    """One value a row; a part that is not told takes no room."""
    kind: Kind = "share"

    def __post_init__(self) -> None:
        """Hold parts to the rows."""
        _same_length("rows", self.rows, self.parts)


@dataclass(frozen=True)
class Areas:
    """Stacked areas over time; a moment at which nothing is told is a gap."""

    times: tuple[float, ...]
    """Unix times, ascending and evenly spaced."""
    parts: tuple[Series, ...]
    kind: Kind = "share"
    greatest: float | None = None
    """Upper end of the vertical axis; None fits it to the values."""

    def __post_init__(self) -> None:
        """Hold parts to the times."""
        _same_length("times", self.times, self.parts)


@dataclass(frozen=True)
class Span:
    """A time in one state."""

    start: float
    end: float
    state: str
    """A cause, a remainder, or any other name."""


@dataclass(frozen=True)
class States:
    """State bars over time, one a row; where no span is, nothing was told."""

    rows: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    """For each row."""
    start: float
    end: float
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        """Hold spans to the rows."""
        if len(self.spans) != len(self.rows):
            raise InconsistentBlock(f"state bars: {len(self.spans)} groups of spans for {len(self.rows)} rows")


@dataclass(frozen=True)
class HeatMap:
    """A value by row and time, as a colour."""

    rows: tuple[str, ...]
    times: tuple[float, ...]
    """Unix times at which a column begins, ascending and evenly spaced."""
    values: tuple[Numbers, ...]
    """For each row one value a time."""
    kind: Kind = "share"
    least: float = 0.0
    greatest: float | None = 1.0
    """Ends of the colour scale; None fits it to the values."""

    def __post_init__(self) -> None:
        """Hold values to rows and times."""
        if len(self.values) != len(self.rows) or any(len(row) != len(self.times) for row in self.values):
            raise InconsistentBlock(f"heat map: values don't fit {len(self.rows)} rows of {len(self.times)} times")


@dataclass(frozen=True)
class Histogram:
    """How often values fall between edges."""

    edges: tuple[float, ...]
    """One more than there are counts, finite and ascending; they need not be evenly spaced."""
    counts: tuple[float, ...]
    kind: Kind = "seconds"
    """Of the edges."""
    marks: tuple[Mark, ...] = ()
    logarithmic: bool = False
    """Whether the horizontal axis is; where edges lie orders of magnitude apart."""

    def __post_init__(self) -> None:
        """Hold counts to the edges."""
        if len(self.edges) != len(self.counts) + 1:
            raise InconsistentBlock(f"histogram: {len(self.counts)} counts between {len(self.edges)} edges")
        if not all(isfinite(low) and low < high < inf for low, high in pairwise(self.edges)):
            raise InconsistentBlock(f"histogram: edges are not finite and ascending: {self.edges}")


@dataclass(frozen=True)
class Lines:
    """Lines or points over time or another quantity; a gap, which is a value that is None, is not bridged."""

    x: tuple[float, ...]
    """Ascending."""
    series: tuple[Series, ...]
    kind: Kind
    x_kind: Kind = "time"
    x_name: str = ""
    """What the horizontal axis is, unless it is time."""
    marks: tuple[Mark, ...] = ()
    least: float | None = None
    greatest: float | None = None
    """Ends of the vertical axis; None fits them to the values."""

    def __post_init__(self) -> None:
        """Hold series to the horizontal values."""
        _same_length("x", self.x, self.series)


Plot = Bars | Areas | States | HeatMap | Histogram | Lines


@dataclass(frozen=True)
class Figure:
    """A plot with the words that stand for it where it can't be seen."""

    title: str
    plot: Plot
    alternative: str
    """What the plot shows, in a sentence with its numbers: for screen readers and Markdown."""


Block = Paragraph | Notice | Facts | Table | Figure | Recommendation


@dataclass(frozen=True)
class Section:
    """Part of a report."""

    key: str
    """Its anchor: lower-case letters, digits and hyphens; no other section's."""
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    made_at: float
    """Unix time, as are all."""
    start: float
    end: float
    """What it tells of."""
    sections: tuple[Section, ...]
    highlights: tuple[Fact, ...] = ()
    """The few numbers that stand at its top."""
    live: bool = False
    """Whether what it tells of went on when it was made."""
    zone: str = "UTC"
    """In which its times are shown, by its IANA name."""
    currency: str = ""
    """Of its money, as EUR."""
    incomplete: tuple[str, ...] = ()
    """Parts that could not be asked for, each with why."""

    def __post_init__(self) -> None:
        """Hold anchors apart."""
        keys = [section.key for section in self.sections]
        if len(set(keys)) != len(keys):
            raise InconsistentBlock(f"sections share an anchor: {', '.join(sorted(keys))}")

    @property
    def blocks(self) -> Iterator[Block]:
        """Those of all sections."""
        return (block for section in self.sections for block in section.blocks)

    @property
    def first_recommendation(self) -> Recommendation | None:
        """The one that wins most."""
        found = (block for block in self.blocks if isinstance(block, Recommendation))
        return min(found, key=lambda each: each.rank, default=None)


def told(values: Iterable[float | None]) -> Numbers:
    """Values of a data frame's column as a series has them: NaN and infinity become gaps."""
    return tuple(float(value) if value is not None and isfinite(value) else None for value in values)


def _same_length(name: str, axis: Sequence[object], series: Iterable[Series]) -> None:
    for each in series:
        if len(each.values) != len(axis):
            raise InconsistentBlock(f"series {each.name!r}: {len(each.values)} values for {len(axis)} {name}")
