"""Reduce data to what a drawing can show, and keep extremes and gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stallscope.tools.report.document import Span

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]


def bucketed(times: Matrix, values: Matrix, most: int) -> tuple[Matrix, Matrix]:
    """Reduce values to at most `most` times by averaging neighbours."""
    together = -(-len(times) // most)
    if together <= 1:
        return times, values
    number = -(-len(times) // together)
    lacking = number * together - len(times)
    padded = np.pad(values, ((0, 0), (0, lacking)), constant_values=np.nan)
    return times[::together], mean_of([padded[:, place::together] for place in range(together)])


def mean_of(parts: Sequence[Matrix]) -> Matrix:
    """Return the mean of the known values; parts may lack their last rows."""
    total, count = np.zeros(parts[0].shape), np.zeros(parts[0].shape)
    for part in parts:
        there = np.isfinite(part)
        total[: len(part)][there] += part[there]
        count[: len(part)] += there
    with np.errstate(invalid="ignore"):
        mean: Matrix = total / count
    return mean


def extremes(x: Matrix, values: Matrix, buckets: int) -> tuple[Matrix, Matrix]:
    """Return minimum and maximum of each bucket in their order; a bucket without values is a gap."""
    if len(x) <= 2 * buckets:
        return x, values
    kept: list[int] = []
    for places in np.array_split(np.arange(len(x)), buckets):
        there = places[np.isfinite(values[places])]
        if len(there):
            ends = {int(there[np.argmin(values[there])]), int(there[np.argmax(values[there])])}
            # Keep a gap within the bucket.
            gap = [int(places[-1])] if not np.isfinite(values[places[-1]]) else []
            kept += sorted({*ends, *gap})
        else:
            kept.append(int(places[0]))
    return x[kept], values[kept]


def intervals(there: Mask) -> list[tuple[int, int]]:
    """Return the runs of adjacent known values, as the ends of slices."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def spacing(x: Matrix) -> float:
    """Return the most common distance of two neighbours."""
    return float(np.median(np.diff(x))) if len(x) > 1 else 60.0


def merged(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """Clip spans to a time range, and join spans of one state across invisible gaps."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: each.start):
        first, last = max(start, span.start), min(end, span.end)
        if last <= first:
            continue
        if found and found[-1].state == span.state and first - found[-1].end <= (end - start) / 2000:
            found[-1] = Span(found[-1].start, max(last, found[-1].end), span.state)
        else:
            found.append(Span(first, last, span.state))
    return found


def prevailing(spans: Sequence[Span], start: float, end: float, columns: int) -> list[str | None]:
    """Divide a time into columns and return the prevailing state of each; None if most of it has no span."""
    width = (end - start) / columns
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in spans:
        for place in range(int((span.start - start) / width), min(columns, 1 + int((span.end - start) / width))):
            edge = start + place * width
            overlap = min(span.end, edge + width) - max(span.start, edge)
            shares[place][span.state] = shares[place].get(span.state, 0.0) + overlap
    return [max(here, key=here.__getitem__) if sum(here.values()) >= width / 2 else None for here in shares]
