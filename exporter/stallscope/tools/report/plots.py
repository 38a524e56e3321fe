"""Plots drawn by Matplotlib as inline SVG, in the page's colours and with text as text.

A legend is not part of a drawing: the page shows it next to the drawing. Drawings stay small however much data a figure
has: details too narrow to see are merged, but extremes and gaps are kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from stallscope.tools.report.axes import (
    CHARACTER,
    DAY,
    SETTINGS,
    WIDE,
    Sheet,
    canvas,
    draw_marks,
    draw_picture,
    number_axis,
    row_axis,
    row_height,
    shortened,
    time_axis,
    wrapped,
)
from stallscope.tools.report.colours import FURTHER, colour_of
from stallscope.tools.report.document import Areas, Bars, HeatMap, Histogram, Lines, Plot, Series, States
from stallscope.tools.report.svg import CARD, INK, SOFT, inline_svg
from stallscope.tools.report.thinning import Matrix, bucketed, extremes, intervals, mean_of, merged, prevailing, spacing
from stallscope.tools.report.words import Words, plain, title_of, unit_of

_MOST_BUCKETS = 240
"""Points of a line: more than one in three units are not visible."""
_MOST_VERTICES = 3000
_MOST_CELLS = 60_000
_MOST_ROWS = 256
_MOST_SPANS = 1200
_SCALE = mpl.colormaps["viridis"].resampled(16)


class Key(NamedTuple):
    """An entry of a legend."""

    label: str
    colour: str
    style: str = "area"
    """Style of a series, or area."""


class Drawing(NamedTuple):
    """A rendered figure."""

    svg: str
    """Empty if there are no values."""
    legend: tuple[Key, ...]


NOTHING = Drawing("", ())


def draw(plot: Plot, key: str, words: Words, sheet: Sheet = WIDE) -> Drawing:
    """Draw a plot.

    Args:
        plot: the plot to draw.
        key: a name unique on the page, of letters, digits and hyphens.
        words: formatter of values and times.
        sheet: width and margins of the drawing.
    """
    with mpl.rc_context(SETTINGS | {"svg.hashsalt": key}), warnings.catch_warnings():
        # Names may have characters that Matplotlib's font lacks; the reader's browser has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        if isinstance(plot, Bars):
            return _bars(plot, key, words, sheet)
        if isinstance(plot, Areas):
            return _areas(plot, key, words, sheet)
        if isinstance(plot, States):
            return _states(plot, key, words, sheet)
        if isinstance(plot, HeatMap):
            return _heat_map(plot, key, words, sheet)
        if isinstance(plot, Histogram):
            return _histogram(plot, key, words, sheet)
        return _lines(plot, key, words, sheet)


def colours_of(names: Sequence[str]) -> list[str]:
    """Return the colour of each name; names without a colour of their own get distinct ones."""
    further = cycle(FURTHER)
    found: dict[str, str] = {}
    for name in names:
        if name not in found:
            found[name] = colour_of(name) or next(further)
    return [found[name] for name in names]


def _bars(plot: Bars, key: str, words: Words, sheet: Sheet) -> Drawing:
    values = np.nan_to_num(_matrix(part.values for part in plot.parts))
    if not values.size or not values.any():
        return NOTHING
    longest = sheet.bar_label * sheet.bar_lines - sheet.bar_lines + 1
    labels = ["\n".join(wrapped(shortened(title_of(row), longest), sheet.bar_label)) for row in plot.rows]
    left = max(60, 14 + int(CHARACTER * max(len(line) for label in labels for line in label.split("\n"))))
    drawing, axes = canvas(sheet, (18 + 8 * sheet.bar_lines) * len(labels), left=left, right=70, named=False)
    totals = values.sum(axis=0)
    scale, unit = unit_of(plot.kind, float(totals.max()), words.currency)
    alone = len(plot.parts) == 1
    named = {part.label or title_of(part.name) for part in plot.parts} <= {title_of(row) for row in plot.rows}
    colours = colours_of([part.name for part in plot.parts])
    starts = np.zeros(len(labels))
    for colour, widths in zip(colours, values / scale, strict=True):
        shown = [colour_of(row) or colour for row in plot.rows] if alone else colour
        axes.barh(range(len(labels)), widths, 0.72, starts, color=shown, edgecolor=CARD, linewidth=1)
        starts += widths
    for place, total in enumerate(totals):
        axes.annotate(
            words.of(float(total), plot.kind),
            (total / scale, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(0, float(totals.max()) / scale)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    number_axis(axes.xaxis, plot.kind, unit)
    return Drawing(inline_svg(drawing, key), () if alone or named else _legend(plot.parts, colours))


def _areas(plot: Areas, key: str, words: Words, sheet: Sheet) -> Drawing:
    values = _matrix(part.values for part in plot.parts)
    if not np.isfinite(values).any():
        return NOTHING
    times, values = bucketed(np.array(plot.times, dtype=float), values, _MOST_BUCKETS)
    drawing, axes = canvas(sheet, 190)
    there = np.asarray(np.isfinite(values).any(axis=0), dtype=np.bool_)
    tops = np.cumsum(np.nan_to_num(values), axis=0)
    greatest = plot.greatest or float(tops[-1].max()) or 1.0
    scale, unit = unit_of(plot.kind, greatest, words.currency)
    colours = colours_of([part.name for part in plot.parts])
    half = spacing(times) / 2
    bottoms = np.vstack([np.zeros(len(times)), tops[:-1]])
    for bottom, top, colour in zip(bottoms / scale, tops / scale, colours, strict=True):
        polygons = []
        for first, last in intervals(there):
            here = slice(first, last)
            # A point is as wide as the time it represents, so that a single one is visible.
            x = np.concatenate([[times[first] - half], times[here], [times[last - 1] + half]])
            low = np.concatenate([bottom[first : first + 1], bottom[here], bottom[last - 1 : last]])
            high = np.concatenate([top[first : first + 1], top[here], top[last - 1 : last]])
            if (high > low).any():
                days = np.concatenate([x, x[::-1]]) / DAY
                polygons.append(np.column_stack([days, np.concatenate([low, high[::-1]])]))
        axes.add_collection(PolyCollection(polygons, facecolor=colour, edgecolor=CARD, linewidth=0.3), autolim=False)
    time_axis(axes, float(times[0] - half), float(times[-1] + half), words)
    axes.set_ylim(0, greatest / scale)
    number_axis(axes.yaxis, plot.kind, unit)
    return Drawing(inline_svg(drawing, key), tuple(reversed(_legend(plot.parts, colours))))


def _states(plot: States, key: str, words: Words, sheet: Sheet) -> Drawing:
    spans = [merged(row, plot.start, plot.end) for row in plot.spans]
    names = list(dict.fromkeys(span.state for row in spans for span in row))
    if not names:
        return NOTHING
    height = row_height(len(spans))
    drawing, axes = canvas(sheet, height * len(spans), plot.marks)
    colours = dict(zip(names, colours_of(names), strict=True))
    if sum(map(len, spans)) > _MOST_SPANS:
        columns = _columns(len(spans))
        picture = [
            [to_rgba(colours[state]) if state else (0.0, 0.0, 0.0, 0.0) for state in states]
            for states in (prevailing(row, plot.start, plot.end, columns) for row in spans)
        ]
        draw_picture(axes, np.array(picture), plot.start, plot.end)
    else:
        for name, colour in colours.items():
            boxes = [
                _box(span.start / DAY, span.end / DAY, row)
                for row, here in enumerate(spans)
                for span in here
                if span.state == name
            ]
            axes.add_collection(PolyCollection(boxes, facecolor=colour, linewidth=0), autolim=False)
    time_axis(axes, plot.start, plot.end, words)
    row_axis(axes, plot.rows, height, sheet.label)
    draw_marks(axes, plot.marks, lambda at: at / DAY)
    return Drawing(inline_svg(drawing, key), tuple(Key(title_of(name), colour) for name, colour in colours.items()))


def _heat_map(plot: HeatMap, key: str, words: Words, sheet: Sheet) -> Drawing:
    values = _matrix(plot.values)
    if not np.isfinite(values).any():
        return NOTHING
    rows = list(plot.rows)
    together = -(-len(rows) // _MOST_ROWS)
    if together > 1:
        values = mean_of([values[place::together] for place in range(together)])
        rows = [f"{rows[place]} …" for place in range(0, len(rows), together)]
    times, values = bucketed(np.array(plot.times, dtype=float), values, _columns(len(rows)))
    least, greatest = plot.least, plot.greatest
    if greatest is None:
        greatest = float(np.nanmax(values))
    if not greatest > least:
        greatest = least + 1.0
    height = row_height(len(rows))
    drawing, axes = canvas(sheet, height * len(rows))
    picture = _SCALE(np.ma.masked_invalid((values - least) / (greatest - least)))
    picture[~np.isfinite(values)] = 0.0
    end = float(times[0] + spacing(times) * len(times))
    draw_picture(axes, picture, float(times[0]), end)
    axes.spines[:].set(visible=True, color=SOFT)  # the ends of the scale resemble a dark or a light page
    time_axis(axes, float(times[0]), end, words)
    row_axis(axes, rows, height, sheet.label)
    legend = [
        Key(words.of(least + part * (greatest - least), plot.kind), to_hex(_SCALE(part)))
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    return Drawing(inline_svg(drawing, key), tuple(legend))


def _histogram(plot: Histogram, key: str, words: Words, sheet: Sheet) -> Drawing:
    edges, counts = np.array(plot.edges, dtype=float), np.array(plot.counts, dtype=float)
    filled = np.flatnonzero(counts > 0)
    if not len(filled):
        return NOTHING
    # Drop empty buckets at the ends.
    edges, counts = edges[filled[0] : filled[-1] + 2], counts[filled[0] : filled[-1] + 1]
    if plot.logarithmic and edges[0] <= 0:
        edges[0] = edges[1] / 2
    scale, unit = unit_of(plot.kind, float(edges[-1]), words.currency)
    marks = [mark for mark in plot.marks if edges[0] <= mark.at <= edges[-1]]
    drawing, axes = canvas(sheet, 170, marks, named=False)
    axes.stairs(counts, edges / scale, fill=True, color=FURTHER[0], edgecolor=CARD, linewidth=0.6)
    if plot.logarithmic:
        axes.set_xscale("log")
    axes.set_xlim(edges[0] / scale, edges[-1] / scale)
    axes.set_ylim(0, 1.05 * float(counts.max()))
    number_axis(axes.xaxis, plot.kind, unit)
    if plot.logarithmic:
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{plain(value)} {unit}"))
        axes.xaxis.set_minor_locator(NullLocator())
    number_axis(axes.yaxis, "count", "")
    draw_marks(axes, marks, lambda at: at / scale)
    return Drawing(inline_svg(drawing, key), ())


def _lines(plot: Lines, key: str, words: Words, sheet: Sheet) -> Drawing:
    x = np.array(plot.x, dtype=float)
    values = _matrix(series.values for series in plot.series)
    if not np.isfinite(values).any():
        return NOTHING
    least, greatest = _range(values, plot.least, plot.greatest)
    scale, unit = unit_of(plot.kind, greatest, words.currency)
    drawing, axes = canvas(sheet, 190, plot.marks)
    on_time = plot.x_kind == "time"
    x_scale, x_unit = (DAY, "") if on_time else unit_of(plot.x_kind, float(x[-1]), words.currency)
    colours = colours_of([series.name for series in plot.series])
    buckets = max(30, min(_MOST_BUCKETS, _MOST_VERTICES // (2 * len(plot.series))))
    for series, colour, line in zip(plot.series, colours, values, strict=True):
        here, heights = extremes(x, line, buckets)
        there = np.isfinite(heights)
        if series.style == "points":
            axes.plot(here[there] / x_scale, heights[there] / scale, "o", color=colour, markersize=5, mew=0)
            continue
        dashes = "--" if series.style == "dashed" else "-"
        alone = []
        for first, last in intervals(there):
            alone += [first] if last - first == 1 else []
            piece = slice(first, last)
            axes.plot(here[piece] / x_scale, heights[piece] / scale, dashes, color=colour, linewidth=1.6)
        axes.plot(here[alone] / x_scale, heights[alone] / scale, "o", color=colour, markersize=3.5, mew=0)
    axes.set_ylim(least / scale, greatest / scale)
    number_axis(axes.yaxis, plot.kind, unit)
    if on_time:
        time_axis(axes, float(x[0]), float(x[-1]), words)
    else:
        margin = 0.02 * float(x[-1] - x[0]) or 1.0
        axes.set_xlim((float(x[0]) - margin) / x_scale, (float(x[-1]) + margin) / x_scale)
        number_axis(axes.xaxis, plot.x_kind, x_unit)
        axes.set_xlabel(shortened(plot.x_name, min(60, int(sheet.width / CHARACTER))))
    draw_marks(axes, plot.marks, lambda at: at / x_scale)
    legend = _legend(plot.series, colours, lines=True)
    return Drawing(inline_svg(drawing, key), legend if len(legend) > 1 or plot.series[0].label else ())


def _columns(rows: int) -> int:
    """Return the number of time columns for a picture with `rows` rows."""
    return max(48, _MOST_CELLS // max(rows, 125))


def _legend(series: Iterable[Series], colours: Iterable[str], *, lines: bool = False) -> tuple[Key, ...]:
    return tuple(
        Key(each.label or title_of(each.name), colour, each.style if lines else "area")
        for each, colour in zip(series, colours, strict=True)
    )


def _matrix(rows: Iterable[Sequence[float | None]]) -> Matrix:
    return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)


def _range(values: Matrix, least: float | None, greatest: float | None) -> tuple[float, float]:
    """Return the limits of the vertical axis: from zero if values are near it, and with room at the top."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if least is None:
        least = 0.0 if 0 <= low < 0.6 * high else low - (0.06 * (high - low) or abs(low) / 2 or 1.0)
    if greatest is None:
        greatest = high + 0.06 * (high - least)
    return least, greatest if greatest > least else least + 1.0


def _box(left: float, right: float, row: int) -> list[tuple[float, float]]:
    return [(left, row - 0.42), (left, row + 0.42), (right, row + 0.42), (right, row - 0.42)]
