"""Questions about long times and many series, in pieces that a server answers, asked again where that helps.

    reader = Ranges(server)
    busy = Question(lambda part: f"rate(stallscope_gpu_busy_seconds_total{{{part}}}[5m])", "instance", run.instances)
    for series in joined(reader.stepped(busy, start, end, 300)):
        ...

A server refuses more than 11,000 points of a series, and more samples than it is told to hold at once. What it refuses
as too large is asked for in halves: of the series, and where there is one value of the label left, of the time. What
fails otherwise but may pass (HTTP 429 and 5xx, a timeout, a connection that breaks) is asked again after a while, with
a warning in the log that says why nothing goes on meanwhile. What is wrong with the question itself is told at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import NamedTuple, Protocol

from stallscope.clients.expressions import any_of
from stallscope.clients.prometheus import PrometheusError, RangeSeries

MAX_POINTS = 10_000
"""Points of a series in one question; Prometheus refuses more than 11,000."""
MAX_SECONDS = 86_400.0
"""Scrapes of so long a time are asked for at once."""
ATTEMPTS = 5
"""So often in a row a question may fail before that is told."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_LESS = 0.75
"""What timed out is asked for in pieces of this share of it at most, ..."""
_MORE = 1.02
"""... which each answer lets grow by so much: a server that was slow for a while is not asked for crumbs ever after."""
_STEPS = (1, 2, 5, 10, 15, 30, *(60 * each for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440)))
"""Seconds between two moments that people find natural."""

_logger = logging.getLogger(__name__)

Advance = Callable[[float], object]
"""Called after each piece with its share of the question; over a whole question the shares sum to 1."""


def unwatched(share: float) -> None:
    """Where nobody wants to know of progress."""
    del share


class Server(Protocol):
    """What answers; `stallscope.clients.prometheus.Prometheus` is one."""

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """What an expression was from one moment to another."""

    def samples(self, selector: str, start: float, end: float) -> list[RangeSeries]:
        """The samples of series as they were scraped."""


@dataclass(frozen=True)
class Question:
    """An expression that can be asked of some of its series at a time.

    The answers for parts, put together, must be the answer for all: what aggregates over the label can't be split.
    """

    expression: Callable[[str], str]
    """PromQL, given a matcher to stand in its selectors: `instance=~"a|b"`, or nothing."""
    label: str = ""
    """Whose values tell the parts apart."""
    values: Sequence[str] = ()
    """Of that label: all that are asked for, and no others."""

    def of(self, values: Sequence[str]) -> str:
        """The expression for some of the values."""
        return self.expression(f"{self.label}=~{any_of(values)}" if self.label else "")


class _Piece(NamedTuple):
    """A part of a question."""

    first: int
    """In steps, or in milliseconds, after the start."""
    last: int
    values: Sequence[str]

    @property
    def size(self) -> int:
        """About what it costs to answer."""
        return (self.last - self.first + 1) * max(1, len(self.values))

    def halves(self) -> tuple[_Piece, ...]:
        """The same in two pieces; itself alone where there is nothing to split."""
        if len(self.values) > 1:
            middle = len(self.values) // 2
            return self._replace(values=self.values[:middle]), self._replace(values=self.values[middle:])
        if self.last > self.first:
            place = (self.first + self.last) // 2
            return self._replace(last=place), self._replace(first=place + 1)
        return (self,)


@dataclass
class Ranges:
    """Asks one server. What it refused as too large is not asked for again in that size, what timed out later only."""

    server: Server
    attempts: int = ATTEMPTS
    sleep: Callable[[float], None] = time.sleep
    max_points: int = MAX_POINTS
    max_seconds: float = MAX_SECONDS
    _refused: float = field(default=float("inf"), init=False)
    """Samples, roughly, of the smallest piece that was refused as too large."""
    _in_time: float = field(default=float("inf"), init=False)
    """Samples, roughly, of the largest piece that is likely to be answered before the time is over."""
    _failures: int = field(default=0, init=False)
    """In a row."""

    def stepped(
        self, question: Question | str, start: float, end: float, step: float, advance: Advance = unwatched
    ) -> Iterator[RangeSeries]:
        """What an expression was at each step from one moment to another.

        Args:
            question: what to ask; a text is one that can be split in time only.
            start: Unix time of the first moment.
            end: Unix time that no moment exceeds.
            step: seconds from one moment to the next.
            advance: told of progress.

        Yields:
            Series, those of one part after the other; a series may come in several, in the order of time. `joined`
            makes them one again.

        Raises:
            PrometheusError: the question is wrong, or can't be answered even in the smallest pieces.
        """
        asked = _question(question)

        def ask(piece: _Piece) -> list[RangeSeries]:
            # Half a step more, since moments are told to the millisecond: the last one must not be lost by rounding.
            first, last = start + piece.first * step, start + (piece.last + 0.5) * step
            return self.server.query_range(asked.of(piece.values), first, last, step)

        last = floor((end - start) / step + 1e-6)
        return self._pieces(_Piece(0, last, asked.values), self.max_points, 1.0, ask, advance)

    def scraped(
        self, question: Question | str, start: float, end: float, advance: Advance = unwatched
    ) -> Iterator[RangeSeries]:
        """Samples as they were scraped, with the times of their scrapes.

        Args:
            question: of selectors without a range.
            start: Unix time after which they lie.
            end: Unix time of the last that counts.
            advance: told of progress.

        Yields:
            Series, as `stepped` does.

        Raises:
            PrometheusError: as with `stepped`.
        """
        asked = _question(question)

        def ask(piece: _Piece) -> list[RangeSeries]:
            # In milliseconds, as servers count: pieces then neither overlap nor leave anything out.
            return self.server.samples(
                asked.of(piece.values), start + piece.first / 1000, min(end, start + (piece.last + 1) / 1000)
            )

        last = ceil((end - start) * 1000) - 1
        return self._pieces(_Piece(0, last, asked.values), int(self.max_seconds * 1000), 1e-4, ask, advance)

    def _pieces(
        self,
        whole: _Piece,
        longest: int,
        samples: float,
        ask: Callable[[_Piece], list[RangeSeries]],
        advance: Advance,
    ) -> Iterator[RangeSeries]:
        """Ask for a whole in pieces no longer than that; `samples` is how many one unit of time has, roughly."""
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
                found = ask(piece)
            except PrometheusError as error:
                self._weigh(error, splittable=len(halves) > 1)
                if error.too_large and error.passing:
                    self._in_time = min(self._in_time, _LESS * size)
                elif error.too_large:
                    self._refused = min(self._refused, size)
                waiting.append(piece)
                continue
            self._failures = 0
            self._in_time *= _MORE
            yield from found
            advance(piece.size / whole.size)

    def _weigh(self, error: PrometheusError, *, splittable: bool) -> None:
        """Raise what can't be mended; else wait until it may be."""
        if not error.passing:
            if not (error.too_large and splittable):
                raise error
            return
        self._failures += 1
        if self._failures >= self.attempts:
            raise error
        # Before a smaller question as well: a server that has too much to do is not helped by two at once.
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._failures - 1))
        less = " for less" if error.too_large and splittable else ""
        _logger.warning("%s; it is asked again%s in %g s", error, less, pause)
        self.sleep(pause)


def joined(pieces: Iterable[RangeSeries]) -> list[RangeSeries]:
    """Each series once, however many pieces it came in; they must come in the order of time."""
    found: dict[frozenset[tuple[str, str]], RangeSeries] = {}
    for piece in pieces:
        known = found.setdefault(frozenset(piece.labels.items()), piece)
        if known is not piece:
            known.times.extend(piece.times)
            known.values.extend(piece.values)
    return list(found.values())


def natural_step(seconds: float, points: int) -> float:
    """The shortest step that people find natural with which a time has at most so many points."""
    needed = seconds / max(1, points)
    return next((float(step) for step in _STEPS if step >= needed), 86_400.0 * ceil(needed / 86_400))


def _question(question: Question | str) -> Question:
    return question if isinstance(question, Question) else Question(lambda _part: question)
