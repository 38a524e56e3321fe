"""Which runs and ranks the page has room for, so that a thousand ranks make it no longer than fifty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stallscope.catalogue.metrics import GONE_STATES
from stallscope.intake.runs import Held

MAX_RUNS = 12
MAX_RANKS_OF_A_RUN = 16
MAX_RANKS = 48
"""Of all runs together; each run that is shown has one at least."""


class ShownRun(NamedTuple):
    """One run."""

    name: str
    ranks: tuple[Held, ...]
    """All that are held."""
    shown: tuple[Held, ...]
    """Those that there is room for, by number."""


class Selection(NamedTuple):
    """What is shown."""

    runs: tuple[ShownRun, ...]
    left_out: int
    """Runs that there is no room for."""


def select(held: Iterable[Held]) -> Selection:
    """Choose: runs that live before those that ended, then by name; of a run, ranks in trouble before the others."""
    by_run: dict[str, list[Held]] = {}
    for each in held:
        by_run.setdefault(each.report.run, []).append(each)
    names = sorted(by_run, key=lambda name: (all(each.ended is not None for each in by_run[name]), name))
    runs = []
    room = MAX_RANKS
    for name in names[:MAX_RUNS]:
        ranks = sorted(by_run[name], key=lambda each: (each.state not in GONE_STATES, each.report.rank))
        shown = ranks[: max(1, min(room, MAX_RANKS_OF_A_RUN))]
        room -= len(shown)
        shown.sort(key=_number)
        runs.append(ShownRun(name, tuple(sorted(ranks, key=_number)), tuple(shown)))
    return Selection(tuple(runs), max(0, len(names) - MAX_RUNS))


def _number(held: Held) -> int:
    return held.report.rank
