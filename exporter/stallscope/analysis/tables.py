"""From series to columns of numbers: what grew in each interval, and all that one subject told, moment by moment."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stallscope.clients.prometheus import RangeSeries

Floats = NDArray[np.float64]
Labels = tuple[tuple[str, str], ...]


class Track(NamedTuple):
    """What one series tells, at the ends of intervals."""

    labels: Mapping[str, str]
    times: Floats
    """Unix seconds."""
    values: Floats
    """A gauge's values, or what a counter grew by in the interval."""
    seconds: Floats | float = 1.0
    """Length of each interval; of a gauge meaningless."""


class Block(NamedTuple):
    """All that one subject told."""

    times: Floats
    """When it told anything at all, ascending."""
    columns: dict[str, NDArray[Any]]
    """One value for each time; NaN where it told none, or -1 where the column is of codes."""


def track(series: RangeSeries) -> Track:
    """A gauge's samples as they are."""
    return Track(series.labels, np.frombuffer(series.times), np.frombuffer(series.values))


class Growth:
    """What counters grew by from each sample to the next, also over the border of two windows.

    Where a counter falls it began anew, and has grown by what it then shows: as Prometheus has it. Its first sample of
    all tells of no interval: it is NaN.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, Labels], tuple[float, float]] = {}

    def of(self, name: str, series: RangeSeries) -> Track:
        """What a counter grew by, at the end of each interval.

        Args:
            name: the counter's.
            series: its samples, which follow those that were given before.
        """
        times, values = np.frombuffer(series.times), np.frombuffer(series.values)
        if not len(times):
            return Track(series.labels, times, values, times)
        key = name, tuple(sorted(series.labels.items()))
        before = self._last.get(key, (np.nan, np.nan))
        self._last[key] = float(times[-1]), float(values[-1])
        grown = np.diff(values, prepend=before[1])
        return Track(series.labels, times, np.where(grown < 0, values, grown), np.diff(times, prepend=before[0]))


class _Told(NamedTuple):
    """What one series gave for one column."""

    column: str
    times: Floats
    values: NDArray[Any]
    combined: str


class Table:
    """Puts together what is told of many subjects."""

    def __init__(self) -> None:
        self._told: dict[Hashable, list[_Told]] = {}

    def put(self, subject: Hashable, column: str, times: Floats, values: NDArray[Any], combined: str = "sum") -> None:
        """Take values of a column; where several come for one moment, they are summed, or the greatest counts."""
        if not len(times):
            return
        before = self._told.setdefault(subject, [])
        if before and np.array_equal(before[-1].times, times):
            times = before[-1].times  # held once: all of an exporter's series have the times of its scrapes
        before.append(_Told(column, times, values, combined))

    def take(self) -> Iterator[tuple[Any, Block]]:
        """All that was told, subject by subject; it is not held here any more."""
        while self._told:
            subject, told = self._told.popitem()
            yield subject, _block(told)


def _block(told: list[_Told]) -> Block:
    """Put together what one subject told."""
    times = told[0].times
    for each in told[1:]:
        if each.times is not times and not np.array_equal(each.times, times):
            times = np.union1d(times, each.times)
    columns: dict[str, NDArray[Any]] = {}
    for each in told:
        whole = _at_all(each, times)
        known = columns.get(each.column)
        if known is None:
            columns[each.column] = whole
        elif each.combined == "max" or whole.dtype.kind != "f":
            columns[each.column] = np.fmax(known, whole)
        else:
            columns[each.column] = np.where(np.isnan(known), whole, known + np.nan_to_num(whole))
    return Block(times, columns)


def _at_all(told: _Told, times: Floats) -> NDArray[Any]:
    """Values for all times of a subject, of which those that were told are some."""
    if len(told.times) == len(times):
        return told.values
    absent = np.nan if told.values.dtype.kind == "f" else -1
    whole = np.full(len(times), absent, told.values.dtype)
    whole[np.searchsorted(times, told.times)] = told.values
    return whole


def at(block: Block | None, column: str, times: Floats) -> Floats:
    """A column's values at exactly those times; NaN where there is none."""
    found = np.full(len(times), np.nan)
    if block is None or column not in block.columns or not len(block.times):
        return found
    places = np.minimum(np.searchsorted(block.times, times), len(block.times) - 1)
    there = block.times[places] == times
    found[there] = block.columns[column][places[there]]
    return found
