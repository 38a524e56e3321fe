"""Sections built from a run's data frames, scrape by scrape, for `report.ipynb`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from stallscope.common.formatting import duration
from stallscope.tools.report.document import (
    Areas,
    Block,
    Figure,
    HeatMap,
    Histogram,
    Lines,
    Mark,
    Notice,
    Section,
    Series,
    without_nan,
)

if TYPE_CHECKING:
    from stallscope.model.analysis.data_frames import Frames

_MOMENTS = 300
_BINS = 40
_MOST_RANKS = 8
_MOST_GPUS = 64


def sections(run: Frames) -> tuple[Section, ...]:
    """Return sections on steps, phases and GPUs."""
    every = max(run.resolution, (run.end - run.start) / _MOMENTS)
    return (
        Section("steps-from-frames", "Steps, scrape by scrape", (*_notes(run), *_steps(run.steps, every))),
        Section("phases-from-frames", "Phases, scrape by scrape", _phases(run.phases, every)),
        Section("gpus-from-frames", "GPUs, scrape by scrape", _gpus(run.gpu, every)),
    )


def _notes(run: Frames) -> tuple[Notice, ...]:
    return tuple(Notice("info", note) for note in run.notes)


def _steps(frame: pd.DataFrame, every: float) -> tuple[Block, ...]:
    there = frame.dropna(subset=["step_seconds", "steps"])
    if there.empty:
        return (_no_data("step"),)
        # A row is the mean of the steps between two scrapes, so weight it by their number.
    counts, edges = np.histogram(there["step_seconds"], _BINS, weights=there["steps"])
    median = float(there["step_seconds"].median())
    by_rank = _by_time(there, "rank", "step_seconds", every)
    shown = by_rank.iloc[:, :_MOST_RANKS]
    more = (
        f" Only the first {_MOST_RANKS} of {by_rank.shape[1]} ranks are shown."
        if by_rank.shape[1] > _MOST_RANKS
        else ""
    )
    return (
        Figure(
            "Mean step time between two scrapes",
            Histogram(
                tuple(map(float, edges)), tuple(map(float, counts)), marks=(Mark(median, f"median {duration(median)}"),)
            ),
            f"{len(there):,} scrapes of {by_rank.shape[1]} ranks, with a median of {duration(median)}.",
        ),
        Figure(
            "Step time by rank",
            Lines(_times(shown), _series(shown, "rank "), "seconds", least=0.0),
            f"From {duration(float(there['step_seconds'].min()))} to "
            f"{duration(float(there['step_seconds'].max()))}.{more}",
        ),
    )


def _phases(frame: pd.DataFrame, every: float) -> tuple[Block, ...]:
    there = frame.dropna(subset=["ratio"])
    if there.empty:
        return (_no_data("phase"),)
    by_phase = _by_time(there, "phase", "ratio", every)
    shares = by_phase.div(by_phase.sum(axis="columns"), axis="index")
    mean = shares.mean().sort_values(ascending=False)
    said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in mean.items())
    return (
        Figure(
            "Share of the loop's time, by phase",
            Areas(_times(shares), _series(shares[list(mean.index)]), greatest=1.0),
            f"Means: {said}.",
        ),
    )


def _gpus(frame: pd.DataFrame, every: float) -> tuple[Block, ...]:
    there = frame.dropna(subset=["busy_ratio"])
    if there.empty:
        return (_no_data("GPU activity"),)
    named = there.assign(name=there["instance"].astype(str) + " " + there["gpu"].astype(str))
    busy = _by_time(named, "name", "busy_ratio", every)
    shown = busy[busy.mean().sort_values().index[:_MOST_GPUS]].sort_index(axis="columns")
    least, mean = str(busy.mean().idxmin()), float(busy.mean().min())
    more = f" Only the {_MOST_GPUS} least busy of {busy.shape[1]} are shown." if busy.shape[1] > _MOST_GPUS else ""
    rows = tuple(str(name) for name in shown.columns)
    return (
        Figure(
            "GPU activity",
            HeatMap(rows, _times(shown), tuple(without_nan(shown[name]) for name in shown.columns)),
            f"GPU {least} is the least busy, with a mean of {100 * mean:.0f} %.{more}",
        ),
    )


def _by_time(frame: pd.DataFrame, by: str, column: str, every: float) -> pd.DataFrame:
    """Return the mean of a column by time, with one column per value of `by`; a time without rows is a gap."""
    grid = f"{every:.0f}s"
    means = frame.groupby([pd.Grouper(freq=grid), by], observed=True)[column].mean()
    table: pd.DataFrame = means.unstack(by).asfreq(grid)
    return table


def _times(frame: pd.DataFrame) -> tuple[float, ...]:
    return tuple(pd.Timestamp(moment).timestamp() for moment in frame.index)


def _series(frame: pd.DataFrame, prefix: str = "") -> tuple[Series, ...]:
    return tuple(Series(f"{prefix}{name}", without_nan(frame[name])) for name in frame.columns)


def _no_data(what: str) -> Notice:
    return Notice("warning", f"The data frames contain no {what} data in this time.")
