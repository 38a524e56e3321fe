"""A report as data: sections of blocks that hold raw numbers, so that every format shows the same values.

Code that fills a document does not depend on its format; code that renders it does not depend on runs. In every number,
None means unknown, which is never shown as zero; `without_nan` replaces NaN. Texts may come from outside: each format
escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from typing import Literal

Kind = Literal[
    "text",
    "cause",  # name of a cause or remainder in `stallscope.model.catalogue.causes`, shown with its title and colour
    "count",  # a whole number of things
    "number",  # without a unit
    "share",  # a ratio: 0.25 is 25 %
    "times",  # a quotient: 1.8 is 1.8 times
    "seconds",  # a duration
    "gpu_hours",
    "time",  # Unix time in seconds
    "joules",
    "watts",
    "celsius",
    "hertz",
    "bytes",
    "bytes_per_second",
    "per_second",
    "money",  # in the document's currency
]
"""The quantity and unit of a value."""
Value = str | float | int | None
Numbers = tuple[float | None, ...]
"""Values of a series; None is a gap."""
Level = Literal["good", "info", "warning", "critical"]


class InconsistentBlock(ValueError):
    """The parts of a block do not fit together; the message names them."""


@dataclass(frozen=True)
class Fact:
    """A value with its name."""

    name: str
    value: Value
    kind: Kind = "text"
    note: str = ""
    """A few words next to the value: how it is computed, or why it is unknown."""
    key: str = ""
    """Name of the value in JSON, with its unit; empty for a value that JSON has under another name."""


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Notice:
    """An important message: missing data, or a doubt about the numbers."""

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
    """Explanation, if the name is not enough."""
    key: str = ""
    """Name of the values in JSON, with their unit; empty to leave them out."""


@dataclass(frozen=True)
class Table:
    """Rows of values. The first column names its row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    note: str = ""
    """A sentence below the table: the source of the values, or what is omitted."""
    total: tuple[Value, ...] | None = None
    """A last row with sums."""
    key: str = ""
    """Name of the list of rows in JSON; empty to leave the table out."""

    def __post_init__(self) -> None:
        """Check the length of the rows."""
        for row in (*self.rows, *([self.total] if self.total else [])):
            if len(row) != len(self.columns):
                raise InconsistentBlock(
                    f"table {self.title!r}: a row has {len(row)} values for {len(self.columns)} columns"
                )

    def without_empty_columns(self) -> Table:
        """Return the table without columns that are empty in every row, such as the cluster of a single cluster."""
        keep = [place for place in range(len(self.columns)) if any(row[place] != "" for row in self.rows)]

        def kept(row: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple(row[place] for place in keep)

        return replace(
            self,
            columns=tuple(self.columns[place] for place in keep),
            rows=tuple(map(kept, self.rows)),
            total=None if self.total is None else kept(self.total),
        )


@dataclass(frozen=True)
class Recommendation:
    """A change with its reason and its gain."""

    rank: int
    """From 1, by gain."""
    cause: str
    gain: tuple[Fact, ...]
    """Upper limits of the gain, the most important first: share of time, GPU-hours, energy, cost."""
    arithmetic: str
    """Calculation of the gain."""
    advice: str
    """The first thing to do."""
    evidence: str = ""
    """Where and when the cause was observed."""


@dataclass(frozen=True)
class Series:
    """A named series of values."""

    name: str
    """Causes, remainders and phases have fixed colours; other names are assigned a colour."""
    values: Numbers
    label: str = ""
    """Label of the legend; by default the cause's title or the name."""
    style: Literal["line", "points", "dashed"] = "line"
    """How `Lines` draws the series."""


@dataclass(frozen=True)
class Mark:
    """A labelled value on the horizontal axis, such as an event or a percentile."""

    at: float
    label: str
    colour_of: str = ""
    """Cause whose colour the mark has."""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of stacked parts, one bar per row."""

    rows: tuple[str, ...]
    parts: tuple[Series, ...]
    """One value per row; an unknown part takes no room."""
    kind: Kind = "share"

    def __post_init__(self) -> None:
        """Check the length of the parts."""
        _same_length("rows", self.rows, self.parts)


@dataclass(frozen=True)
class Areas:
    """Stacked areas over time; a time without values is a gap."""

    times: tuple[float, ...]
    """Unix times, ascending and evenly spaced."""
    parts: tuple[Series, ...]
    kind: Kind = "share"
    greatest: float | None = None
    """Upper limit of the vertical axis; None fits it to the values."""

    def __post_init__(self) -> None:
        """Check the length of the parts."""
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
    """State bars over time, one per row; a time without a span is unknown."""

    rows: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    """Spans of each row."""
    start: float
    end: float
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        """Check the number of rows."""
        if len(self.spans) != len(self.rows):
            raise InconsistentBlock(f"state bars: {len(self.spans)} groups of spans for {len(self.rows)} rows")


@dataclass(frozen=True)
class HeatMap:
    """Values by row and time, shown as colours."""

    rows: tuple[str, ...]
    times: tuple[float, ...]
    """Unix times at which columns begin, ascending and evenly spaced."""
    values: tuple[Numbers, ...]
    """For each row one value per time."""
    kind: Kind = "share"
    least: float = 0.0
    greatest: float | None = 1.0
    """Limits of the colour scale; None fits it to the values."""

    def __post_init__(self) -> None:
        """Check the numbers of rows and times."""
        if len(self.values) != len(self.rows) or any(len(row) != len(self.times) for row in self.values):
            raise InconsistentBlock(f"heat map: values do not fit {len(self.rows)} rows of {len(self.times)} times")


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges."""

    edges: tuple[float, ...]
    """One more than counts, finite and ascending, not necessarily evenly spaced."""
    counts: tuple[float, ...]
    kind: Kind = "seconds"
    """Kind of the edges."""
    marks: tuple[Mark, ...] = ()
    logarithmic: bool = False
    """True for a logarithmic horizontal axis, for edges that differ by orders of magnitude."""

    def __post_init__(self) -> None:
        """Check the numbers of edges and counts."""
        if len(self.edges) != len(self.counts) + 1:
            raise InconsistentBlock(f"histogram: {len(self.counts)} counts between {len(self.edges)} edges")
        if not all(isfinite(low) and low < high < inf for low, high in pairwise(self.edges)):
            raise InconsistentBlock(f"histogram: edges are not finite and ascending: {self.edges}")


@dataclass(frozen=True)
class Lines:
    """Lines or points over time or another quantity; None is a gap in the line."""

    x: tuple[float, ...]
    """Ascending."""
    series: tuple[Series, ...]
    kind: Kind
    x_kind: Kind = "time"
    x_name: str = ""
    """Label of the horizontal axis, if it is not time."""
    marks: tuple[Mark, ...] = ()
    least: float | None = None
    greatest: float | None = None
    """Limits of the vertical axis; None fits them to the values."""

    def __post_init__(self) -> None:
        """Check the length of the series."""
        _same_length("x", self.x, self.series)


Plot = Bars | Areas | States | HeatMap | Histogram | Lines


@dataclass(frozen=True)
class Figure:
    """A plot with a text alternative."""

    title: str
    plot: Plot
    alternative: str
    """A sentence with the plot's main numbers, for screen readers and Markdown."""


Block = Paragraph | Notice | Facts | Table | Figure | Recommendation


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    key: str
    """Its unique anchor: lower-case letters, digits and hyphens."""
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False
    """True if a page shows the title alone until a reader opens the section."""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    made_at: float
    """Unix time, as all times."""
    start: float
    end: float
    """The time range of the report."""
    sections: tuple[Section, ...]
    highlights: tuple[Fact, ...] = ()
    """The main numbers at the top."""
    live: bool = False
    """True if the subject was still live when the report was made."""
    standstill_timestamp_seconds: float | None = None
    """Last step of a run that was at a standstill when the report was made; None for any other."""
    zone: str = "UTC"
    """IANA name of the time zone in which times are shown."""
    currency: str = ""
    """Currency code, such as EUR."""
    incomplete: tuple[str, ...] = ()
    """Parts whose query failed, each with the reason."""

    def __post_init__(self) -> None:
        """Check that anchors are unique."""
        keys = [section.key for section in self.sections]
        if len(set(keys)) != len(keys):
            raise InconsistentBlock(f"sections share an anchor: {', '.join(sorted(keys))}")

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all sections."""
        return (block for section in self.sections for block in section.blocks)

    @property
    def first_recommendation(self) -> Recommendation | None:
        """The recommendation with the greatest gain."""
        found = (block for block in self.blocks if isinstance(block, Recommendation))
        return min(found, key=lambda each: each.rank, default=None)


def unavailable(reason: str) -> Notice:
    """Return the notice that stands in for a part whose query failed."""
    return Notice("critical", f"This section is unavailable: {reason}")


def without_nan(values: Iterable[float | None]) -> Numbers:
    """Convert the values of a data frame's column for a series: NaN and infinity become gaps."""
    return tuple(float(value) if value is not None and isfinite(value) else None for value in values)


def _same_length(name: str, axis: Sequence[object], series: Iterable[Series]) -> None:
    for each in series:
        if len(each.values) != len(axis):
            raise InconsistentBlock(f"series {each.name!r}: {len(each.values)} values for {len(axis)} {name}")
