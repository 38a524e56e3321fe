"""Range queries over long times and many series, split into parts that a server accepts, with retries.

    reader = Ranges(server)
    busy = SplittableQuery(lambda part: f"rate(stallscope_gpu_busy_seconds_total{{{part}}}[5m])", "instance", instances)
    for series in joined(reader.stepped(busy, start, end, 300)):
        ...

A server rejects more than 11,000 points of a series, and more samples than its limit. A query that is too large is
halved: by series, and at one value of the label by time. Transient failures (HTTP 429 and 5xx, a timeout, a broken
connection) are retried after a pause, with a warning in the log. Errors in the query itself are raised at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import NamedTuple, Protocol

from stallscope.model.clients.expressions import any_of
from stallscope.model.clients.prometheus import PrometheusError, RangeSeries

MAX_POINTS = 10_000
"""Points of a series in one query; Prometheus rejects more than 11,000."""
MAX_SECONDS = 86_400.0
"""Longest time for which one query requests scrapes."""
ATTEMPTS = 5
"""Consecutive failures after which the error is raised."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_SHRINK_AFTER_TIMEOUT = 0.75
"""Factor that limits the size of queries after a timeout."""
_GROW_AFTER_RESPONSE = 1.02
"""Factor by which each response raises that limit, so that queries do not stay small after a slow spell."""
_STEPS = (1, 2, 5, 10, 15, 30, *(60 * each for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440)))
"""Round step lengths in seconds."""

_logger = logging.getLogger(__name__)

Advance = Callable[[float], object]
"""Called after each part with its share of the query; over a whole query the shares sum to 1."""


def ignore_progress(share: float) -> None:
    """Do nothing with the progress."""
    del share


class Server(Protocol):
    """A server that evaluates queries; `stallscope.model.clients.prometheus.Prometheus` is one."""

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Evaluate an expression over a range."""

    def samples(self, selector: str, start: float, end: float) -> list[RangeSeries]:
        """Return the raw samples of series."""


@dataclass(frozen=True)
class SplittableQuery:
    """An expression that can be evaluated for some of its series at a time.

    The combined results for the parts must equal the result for all, so an aggregation over the label can't be split.
    """

    expression: Callable[[str], str]
    """Returns PromQL for a matcher to insert into its selectors: `instance=~"a|b"`, or nothing."""
    label: str = ""
    """Label by whose values the query is split."""
    values: Sequence[str] = ()
    """All values of that label to query."""

    def for_values(self, values: Sequence[str]) -> str:
        """Return the expression for some of the values."""
        return self.expression(f"{self.label}=~{any_of(values)}" if self.label else "")


class _Piece(NamedTuple):
    """A part of a query."""

    first: int
    """In steps or milliseconds after the start."""
    last: int
    values: Sequence[str]

    @property
    def size(self) -> int:
        """Approximate cost of the part."""
        return (self.last - self.first + 1) * max(1, len(self.values))

    def halves(self) -> tuple[_Piece, ...]:
        """Return two halves, or only itself if it can't be split."""
        if len(self.values) > 1:
            middle = len(self.values) // 2
            return self._replace(values=self.values[:middle]), self._replace(values=self.values[middle:])
        if self.last > self.first:
            place = (self.first + self.last) // 2
            return self._replace(last=place), self._replace(first=place + 1)
        return (self,)


@dataclass
class Ranges:
    """Queries one server. Rejected sizes are not tried again; sizes that timed out only later."""

    server: Server
    attempts: int = ATTEMPTS
    sleep: Callable[[float], None] = time.sleep
    max_points: int = MAX_POINTS
    max_seconds: float = MAX_SECONDS
    _refused: float = field(default=float("inf"), init=False)
    """Approximate samples of the smallest part that was rejected as too large."""
    _in_time: float = field(default=float("inf"), init=False)
    """Approximate samples of the largest part that is likely to be answered in time."""
    _failures: int = field(default=0, init=False)
    """Consecutive failures."""

    def stepped(
        self, query: SplittableQuery | str, start: float, end: float, step: float, advance: Advance = ignore_progress
    ) -> Iterator[RangeSeries]:
        """Evaluate an expression at each step of a range.

        Args:
            query: the query; a string can be split by time only.
            start: first Unix time.
            end: Unix time that no evaluation exceeds.
            step: seconds between two evaluations.
            advance: called with progress.

        Yields:
            Series of one part after the other. A series may come in several parts, in the order of time; `joined`
            combines them.

        Raises:
            PrometheusError: the query is invalid, or fails even in the smallest parts.
        """
        splittable = _splittable(query)

        def fetch(piece: _Piece) -> list[RangeSeries]:
            # Times are rounded to milliseconds: half a step more keeps the last evaluation.
            first, last = start + piece.first * step, start + (piece.last + 0.5) * step
            return self.server.query_range(splittable.for_values(piece.values), first, last, step)

        last = floor((end - start) / step + 1e-6)
        return self._pieces(_Piece(0, last, splittable.values), self.max_points, 1.0, fetch, advance)

    def scraped(
        self, query: SplittableQuery | str, start: float, end: float, advance: Advance = ignore_progress
    ) -> Iterator[RangeSeries]:
        """Return raw samples with their scrape times.

        Args:
            query: selectors without a range.
            start: Unix time; exclusive.
            end: Unix time; inclusive.
            advance: called with progress.

        Yields:
            Series, as in `stepped`.

        Raises:
            PrometheusError: as in `stepped`.
        """
        splittable = _splittable(query)

        def fetch(piece: _Piece) -> list[RangeSeries]:
            # Servers count in milliseconds: parts in milliseconds neither overlap nor leave gaps.
            first, last = start + piece.first / 1000, min(end, start + (piece.last + 1) / 1000)
            return self.server.samples(splittable.for_values(piece.values), first, last)

        last = ceil((end - start) * 1000) - 1
        return self._pieces(_Piece(0, last, splittable.values), int(self.max_seconds * 1000), 1e-4, fetch, advance)

    def _pieces(
        self,
        whole: _Piece,
        longest: int,
        samples: float,
        fetch: Callable[[_Piece], list[RangeSeries]],
        advance: Advance,
    ) -> Iterator[RangeSeries]:
        """Query the whole in parts of at most `longest` time units, each with roughly `samples` samples."""
        waiting = [
            whole._replace(first=first, last=min(whole.last, first + longest - 1))
            for first in range(whole.first, whole.last + 1, longest)
        ][::-1]
        while waiting:
            piece = waiting.pop()
            halves = piece.halves()
            size = piece.size * samples
            if len(halves) > 1 and (size >= self._refused or size > self._in_time):
                waiting += reversed(halves)
                continue
            try:
                found = fetch(piece)
            except PrometheusError as error:
                self._handle_failure(error, splittable=len(halves) > 1)
                if error.too_large and error.passing:
                    self._in_time = min(self._in_time, _SHRINK_AFTER_TIMEOUT * size)
                elif error.too_large:
                    self._refused = min(self._refused, size)
                waiting.append(piece)
                continue
            self._failures = 0
            self._in_time *= _GROW_AFTER_RESPONSE
            yield from found
            advance(piece.size / whole.size)

    def _handle_failure(self, error: PrometheusError, *, splittable: bool) -> None:
        """Raise a permanent error; pause after a transient one."""
        if not error.passing:
            if not (error.too_large and splittable):
                raise error
            return
        self._failures += 1
        if self._failures >= self.attempts:
            raise error
        # Pause before a smaller query too: an overloaded server does not recover from more queries.
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._failures - 1))
        smaller = " with a smaller query" if error.too_large and splittable else ""
        _logger.warning("%s; retrying%s in %g s", error, smaller, pause)
        self.sleep(pause)


def joined(pieces: Iterable[RangeSeries]) -> list[RangeSeries]:
    """Combine the parts of each series; they must come in the order of time."""
    found: dict[frozenset[tuple[str, str]], RangeSeries] = {}
    for piece in pieces:
        known = found.setdefault(frozenset(piece.labels.items()), piece)
        if known is not piece:
            known.times.extend(piece.times)
            known.values.extend(piece.values)
    return list(found.values())


def natural_step(seconds: float, points: int) -> float:
    """Return the shortest round step that divides a time into at most `points` points."""
    needed = seconds / max(1, points)
    return next((float(step) for step in _STEPS if step >= needed), 86_400.0 * ceil(needed / 86_400))


def _splittable(query: SplittableQuery | str) -> SplittableQuery:
    return query if isinstance(query, SplittableQuery) else SplittableQuery(lambda _part: query)
