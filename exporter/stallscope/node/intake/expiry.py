"""Decides which ended ranks stay.

The series of a finished, failed, terminated or lost rank stay for the expiry time. Of ended runs, the newest of each
sender and in total stay; older ones are dropped before their expiry time, so that a series of short runs neither fills
the page nor prevents the next run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from stallscope.node.intake.held import Held, Holdings
from stallscope.node.intake.quotas import Key, Limits, Sender


def unexpired(
    ranks: Holdings, now: float, expiry: float, limits: Limits, sender_of: Callable[[Key], Sender]
) -> dict[Key, Held]:
    """Return the ranks that stay.

    Args:
        ranks: every rank.
        now: monotonic time.
        expiry: seconds that an ended rank stays.
        limits: numbers of ended runs.
        sender_of: returns the sender that a rank counts for.
    """
    kept = {key: held for key, held in ranks.items() if held.ended is None or now - held.ended < expiry}
    excess = _excess_runs(kept, limits, sender_of)
    return {key: held for key, held in kept.items() if key[0] not in excess} if excess else kept


def _excess_runs(ranks: Holdings, limits: Limits, sender_of: Callable[[Key], Sender]) -> Collection[str]:
    """Return the ended runs above the limits: the oldest of each sender, then of the sender with the most."""
    ended: dict[str, float] = {}
    owners: dict[str, Sender] = {}
    for (run, rank), each in ranks.items():
        ended[run] = max(ended.get(run, 0.0), math.inf if each.ended is None else each.ended)
        owners[run] = sender_of((run, rank))
    oldest_first: dict[Sender, list[str]] = {}
    for run in sorted(ended, key=lambda run: (ended[run], run)):
        if ended[run] < math.inf:
            oldest_first.setdefault(owners[run], []).append(run)
    excess: list[str] = []
    for runs in oldest_first.values():
        while len(runs) > limits.ended_runs_per_sender:
            excess.append(runs.pop(0))
    while sum(map(len, oldest_first.values())) > limits.ended_runs:
        largest = max(oldest_first.values(), key=lambda runs: (len(runs), -ended[runs[0]]))
        excess.append(largest.pop(0))
    return frozenset(excess)
