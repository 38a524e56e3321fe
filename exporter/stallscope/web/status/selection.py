"""Which runs and ranks the page has room for, so that a thousand ranks make it no longer than fifty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stallscope.view.model import Rank, Run

MAX_RUNS = 12
MAX_RANKS_OF_A_RUN = 16
MAX_RANKS = 48
"""Of all runs together; each run that is shown has one at least."""


class Selection(NamedTuple):
    """The rows to show."""

    runs: tuple[tuple[Run, tuple[Rank, ...]], ...]
    """Runs with those of their ranks that there is room for, by number."""
    left_out: int
    """Runs that there is no room for."""


def select(runs: Sequence[Run]) -> Selection:
    """Choose the first runs, and of each run ranks in trouble before the others."""
    shown = []
    room = MAX_RANKS
    for run in runs[:MAX_RUNS]:
        ranks = run.shown(max(1, min(room, MAX_RANKS_OF_A_RUN)))
        room -= len(ranks)
        shown.append((run, ranks))
    return Selection(tuple(shown), max(0, len(runs) - MAX_RUNS))
