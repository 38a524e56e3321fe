"""Series and memory that ranks use, and the totals of each run and of each sender.

A sender is a local user, identified by the uid that the kernel reports for the socket, or the network as a whole:
addresses of datagrams can be forged, so a quota for each address would limit nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stallscope.model.catalogue.metrics import ACTIVITIES, RUN_STATES
from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.report import Report
from stallscope.training.protocol.vocabulary import MAX_VALUES, PRECISIONS, STEP_BUCKET_COUNT

Key = tuple[str, int]
"""Run and rank."""
Sender = int | None
"""The uid of a local user; None for the network."""

_RANK_BYTES = 6_000
"""Memory of a rank apart from its series: the report, the former sessions, and their entries in tables."""
_SERIES_BYTES = 700
"""Memory of a series apart from its text: the value, the sample, and their entries in tables."""
_LINE_LENGTH = 100
"""Characters of a line on the page, except label values that the sender chooses."""
_TEXTS = 3
"""Copies of a line as text: the series' name, and its line and that of the family while a page is rendered."""
_PAGES = 6
"""Copies of a line as bytes: the new and the previous page in two formats, and a slow scrape of each."""
_SESSIONS = 10
"""Copies of a session's identifier: of the current and of former sessions."""
_FIXED_SERIES = (
    3  # rank_info, process_info and stack_info
    + len(RUN_STATES)
    + len(ACTIVITIES)
    + 5  # timestamps and restarts
    + STEP_BUCKET_COUNT
    + 2  # sum and count of the histogram
    + len(COUNTERS)
    + len(GAUGES)
    + len(PRECISIONS)
)
"""Number of series of a rank with fixed names."""


class Usage(NamedTuple):
    """Number of runs, ranks and series, and their memory: either current values or limits."""

    runs: int = 0
    ranks: int = 0
    series: int = 0
    memory: int = 0
    """Upper bound in bytes."""

    def plus(self, other: Usage) -> Usage:
        """Return the sum."""
        return Usage(*[mine + more for mine, more in zip(self, other, strict=True)])

    def minus(self, other: Usage) -> Usage:
        """Return the difference."""
        return Usage(*[mine - less for mine, less in zip(self, other, strict=True)])


@dataclass(frozen=True)
class Limits:
    """Limits of runs, ranks, series and memory."""

    runs: int = 64
    ended_runs: int = 64
    """Ended runs of all senders, whatever `runs` is."""
    ended_runs_per_sender: int = 32
    ranks_per_run: int = 256
    ranks: int = 1024
    value_names_per_run: int = MAX_VALUES
    series: int = 40_000
    """Series of all ranks. A page has up to 50,000, and the node's own series come first."""
    series_per_run: int = 36_000
    memory: int = 96 << 20
    """Bytes for all ranks, including pages."""
    memory_per_run: int = 72 << 20

    @property
    def all(self) -> Usage:
        """Limits of all ranks together."""
        return Usage(self.runs, self.ranks, self.series, self.memory)

    @property
    def run(self) -> Usage:
        """Limits of one run."""
        return Usage(1, self.ranks_per_run, self.series_per_run, self.memory_per_run)


def usage_of(report: Report) -> Usage:
    """Return the maximum usage of one rank with the names in its report, including all tables and pages.

    Series with fixed names count even if they are not in the report, so that only new names increase the usage of a
    rank. `runs` is 0: a run is counted with its first rank.
    """
    lines = _lines_of(report)
    series = _FIXED_SERIES + 4 * len(report.phases) + len(report.gpus) + len(report.values) + len(report.dropped)
    series += len(lines)
    labels = "".join(
        [*report.phases] * 4
        + [text for line in lines for text in line]
        + [*report.values, *report.dropped, *report.info.values()]
        + [text for gpu in report.gpus for text in gpu]
    )
    length = series * (_LINE_LENGTH + _escaped_length(report.run)) + _escaped_length(labels)
    # In UTF-8 an ASCII character is one byte; in memory every character is as wide as the widest one of the string.
    encoded = length + series * _encoding_excess(report.run) + _encoding_excess(labels)
    width = max(_width(report.run), _width(labels), _width(report.session))
    own = width * (len(labels) + _SESSIONS * len(report.session))
    memory = _RANK_BYTES + series * _SERIES_BYTES + own + _TEXTS * width * length + _PAGES * encoded
    return Usage(0, 1, series, memory)


def has_new_names(before: Report, after: Report) -> bool:
    """Return True if the second report of a rank has names that the first one did not have."""
    return not (
        after.phases.keys() <= before.phases.keys()
        and after.values.keys() <= before.values.keys()
        and after.dropped.keys() <= before.dropped.keys()
        and after.info == before.info
        and after.gpus == before.gpus
        and _lines_of(after) <= _lines_of(before)
    )


def names_of(report: Report) -> dict[int, int]:
    """Return a hash of each name in a report that has its own series, with the number of these series."""
    names = {hash(("phase", name)): 4 for name in report.phases}
    names.update({hash(("value", name)): 1 for name in report.values})
    names.update({hash(("dropped", name)): 1 for name in report.dropped})
    names.update({hash(("gpu", gpu)): 1 for gpu in report.gpus})
    names.update({hash(("code", *line)): 1 for line in _lines_of(report)})
    names[hash(("info", *report.info.items()))] = 1
    return names


def without_new_names(before: Report, after: Report) -> Report:
    """Return the second report of a rank without names that the first one did not have."""
    known = _lines_of(before)
    return after._replace(
        phases={name: phase for name, phase in after.phases.items() if name in before.phases},
        values={name: value for name, value in after.values.items() if name in before.values},
        dropped={name: number for name, number in after.dropped.items() if name in before.dropped},
        info=before.info,
        gpus=before.gpus,
        code={
            phase: tuple(line for line in lines if (phase, *line[:2]) in known) for phase, lines in after.code.items()
        },
    )


def _lines_of(report: Report) -> set[tuple[str, str, str]]:
    return {(phase, line.location, line.function) for phase, lines in report.code.items() for line in lines}


class Totals:
    """Usage of every rank, and its sums by run, by sender and in total. Not thread-safe."""

    def __init__(self) -> None:
        self.all = Usage()
        self._ranks: dict[Key, tuple[Sender, Usage]] = {}
        self._by_run: dict[str, Usage] = {}
        self._by_sender: dict[Sender, Usage] = {}
        self._sender_ranks: dict[tuple[Sender, str], int] = {}

    def rank(self, key: Key) -> Usage:
        """Return the usage of a rank; zeros for an unknown rank."""
        return self._ranks[key][1] if key in self._ranks else Usage()

    def sender_of(self, key: Key) -> Sender:
        """Return the sender that a rank counts for."""
        return self._ranks[key][0]

    def run(self, run: str) -> Usage:
        """Return the usage of all ranks of a run."""
        return self._by_run.get(run, Usage())

    def sender(self, sender: Sender) -> Usage:
        """Return the usage of all ranks of a sender; `runs` is the number of runs with a rank of this sender."""
        return self._by_sender.get(sender, Usage())

    def senders_except(self, sender: Sender) -> list[Usage]:
        """Return the usage of each other sender."""
        return [usage for owner, usage in self._by_sender.items() if owner != sender]

    def set(self, key: Key, sender: Sender, usage: Usage) -> None:
        """Add a rank, or replace its usage."""
        if self._ranks.get(key) == (sender, usage):
            return
        self.remove(key)
        run = key[0]
        self._ranks[key] = (sender, usage)
        number = self._sender_ranks.get((sender, run), 0)
        self._sender_ranks[sender, run] = number + 1
        self._by_sender[sender] = self.sender(sender).plus(usage._replace(runs=int(number == 0)))
        self.all = self.all.plus(usage._replace(runs=int(run not in self._by_run)))
        self._by_run[run] = self.run(run).plus(usage._replace(runs=0))

    def remove(self, key: Key) -> None:
        """Subtract a rank from the sums; ignore an unknown rank."""
        if key not in self._ranks:
            return
        sender, usage = self._ranks.pop(key)
        run = key[0]
        number = self._sender_ranks.pop((sender, run)) - 1
        if number:
            self._sender_ranks[sender, run] = number
        left = self._by_sender.pop(sender).minus(usage._replace(runs=int(not number)))
        if left.ranks:
            self._by_sender[sender] = left
        left = self._by_run.pop(run).minus(usage._replace(runs=0))
        if left.ranks:
            self._by_run[run] = left
        self.all = self.all.minus(usage._replace(runs=int(not left.ranks)))


def _escaped_length(text: str) -> int:
    return len(text) + text.count('"') + text.count("\\")


def _encoding_excess(text: str) -> int:
    """Return the bytes of a string in UTF-8 beyond its number of characters."""
    return 0 if text.isascii() else len(text.encode()) - len(text)


def _width(text: str) -> int:
    """Return the bytes that CPython uses for each character of a string."""
    if text.isascii():
        return 1
    highest = max(text)
    return 1 if highest <= "\xff" else 2 if highest <= "\uffff" else 4
