"""Which runs and ranks the page has room for, so that a thousand ranks make it no longer than fifty."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from stallscope.model.view.model import RankRow, Run

MAX_RUNS = 12
MAX_RANKS_OF_A_RUN = 16
MAX_RANKS = 48
"""Of all runs together; each run that is shown has one at least."""


class Selection(NamedTuple):
    """Contents of the page."""

    runs: tuple[tuple[Run, tuple[RankRow, ...]], ...]
    """Runs with those of their ranks that there is room for."""
    left_out: int
    """Number of runs above the limit."""


def select(runs: Sequence[Run], odd: Mapping[str, Collection[int]]) -> Selection:
    """Choose the first runs, and of each run ranks in trouble before the others.

    Args:
        runs: all runs.
        odd: by run, the ranks that differ from most ranks at a standstill.
    """
    shown = []
    room = MAX_RANKS
    for run in runs[:MAX_RUNS]:
        ranks = run.rows(max(1, min(room, MAX_RANKS_OF_A_RUN)), odd.get(run.name.run, ()))
        room -= len(ranks)
        shown.append((run, ranks))
    return Selection(tuple(shown), max(0, len(runs) - MAX_RUNS))
