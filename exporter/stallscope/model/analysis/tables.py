"""Convert series to columns: increases of counters by interval, and all values of a subject by time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stallscope.model.clients.prometheus import RangeSeries

Floats = NDArray[np.float64]
Labels = tuple[tuple[str, str], ...]


class Track(NamedTuple):
    """The values of one series at the ends of intervals."""

    labels: Mapping[str, str]
    times: Floats
    """Unix seconds."""
    values: Floats
    """Values of a gauge, or increases of a counter over the interval."""
    seconds: Floats | float = 1.0
    """Length of each interval; meaningless for a gauge."""


class Block(NamedTuple):
    """All values of one subject."""

    times: Floats
    """Times with at least one value, ascending."""
    columns: dict[str, NDArray[Any]]
    """One value for each time; a missing one is NaN, or -1 if the column holds codes."""


def track(series: RangeSeries) -> Track:
    """Return the samples of a gauge."""
    return Track(series.labels, np.frombuffer(series.times), np.frombuffer(series.values))


class Increases:
    """Increases of counters between samples, also across the border of two windows.

    A decreasing counter was reset and has increased by its new value, as in Prometheus. The increase at a series' very
    first sample is NaN.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, Labels], tuple[float, float]] = {}

    def of(self, name: str, series: RangeSeries) -> Track:
        """Return the increases of a counter at the end of each interval.

        Args:
            name: name of the counter.
            series: its samples, following those of the last call.
        """
        times, values = np.frombuffer(series.times), np.frombuffer(series.values)
        if not len(times):
            return Track(series.labels, times, values, times)
        key = name, tuple(sorted(series.labels.items()))
        last_time, last_value = self._last.get(key, (np.nan, np.nan))
        self._last[key] = float(times[-1]), float(values[-1])
        change = np.diff(values, prepend=last_value)
        return Track(series.labels, times, np.where(change < 0, values, change), np.diff(times, prepend=last_time))


class _Part(NamedTuple):
    """The values of one series for one column."""

    column: str
    times: Floats
    values: NDArray[Any]
    combined: str


class Table:
    """Collects the values of many subjects."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, list[_Part]] = {}

    def put(self, subject: Hashable, column: str, times: Floats, values: NDArray[Any], combined: str = "sum") -> None:
        """Add values to a column; several values at one time are combined by their sum or maximum."""
        if not len(times):
            return
        parts = self._parts.setdefault(subject, [])
        if parts and np.array_equal(parts[-1].times, times):
            times = parts[-1].times  # share the array: all series of an exporter have the times of its scrapes
        parts.append(_Part(column, times, values, combined))

    def take(self) -> Iterator[tuple[Any, Block]]:
        """Yield each subject with its values, and release them here."""
        while self._parts:
            subject, parts = self._parts.popitem()
            yield subject, _block(parts)


def _block(parts: list[_Part]) -> Block:
    """Combine the values of one subject."""
    times = parts[0].times
    for each in parts[1:]:
        if each.times is not times and not np.array_equal(each.times, times):
            times = np.union1d(times, each.times)
    columns: dict[str, NDArray[Any]] = {}
    for each in parts:
        values = _aligned(each, times)
        known = columns.get(each.column)
        if known is None:
            columns[each.column] = values
        elif each.combined == "max" or values.dtype.kind != "f":
            columns[each.column] = np.fmax(known, values)
        else:
            columns[each.column] = np.where(np.isnan(known), values, known + np.nan_to_num(values))
    return Block(times, columns)


def _aligned(part: _Part, times: Floats) -> NDArray[Any]:
    """Return the values at all times of the subject; those that the series lacks are marked as missing."""
    if len(part.times) == len(times):
        return part.values
    absent = np.nan if part.values.dtype.kind == "f" else -1
    aligned = np.full(len(times), absent, part.values.dtype)
    aligned[np.searchsorted(times, part.times)] = part.values
    return aligned


def at(block: Block | None, column: str, times: Floats) -> Floats:
    """Return a column's values at exactly these times; NaN if missing."""
    found = np.full(len(times), np.nan)
    if block is None or column not in block.columns or not len(block.times):
        return found
    places = np.minimum(np.searchsorted(block.times, times), len(block.times) - 1)
    there = block.times[places] == times
    found[there] = block.columns[column][places[there]]
    return found
