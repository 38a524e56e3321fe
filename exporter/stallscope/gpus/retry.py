"""When a query that the driver refused is due again.

A refusal (not supported, no permission, no such function) may be for good or for a moment, and nothing tells which. A
refused query is therefore repeated after `FIRST_PAUSE`, then after pauses that double up to `LONGEST_PAUSE`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

FIRST_PAUSE = 10.0
"""Seconds."""
LONGEST_PAUSE = 300.0
EARLY = 1.0
"""Seconds, for `Retry`: a query inside of another one is due before it, so that both are made at the same time."""

_Key = TypeVar("_Key", bound=Hashable)


class _Refusal(NamedTuple):
    pause: float
    due_at: float


class Retry(Generic[_Key]):
    """The refused queries of one GPU or source, by key. Times are monotonic seconds."""

    def __init__(self, early: float = 0.0) -> None:
        """Begin with nothing refused.

        Args:
            early: seconds by which every retry is due earlier.
        """
        self._early = early
        self._refused: dict[_Key, _Refusal] = {}
        self._answered: dict[_Key, _Refusal] = {}
        """Queries that were refused before they were answered: one that is refused again soon keeps its pause."""

    def __contains__(self, key: _Key) -> bool:
        """Return whether the query was refused when it was last made."""
        return key in self._refused

    def due(self, key: _Key, now: float) -> bool:
        """Return whether the query may be made now."""
        refusal = self._refused.get(key)
        return refusal is None or now >= refusal.due_at

    def select(self, keys: Iterable[_Key], now: float) -> tuple[_Key, ...]:
        """Return the keys of the queries that may be made now, in their order."""
        refused = self._refused.get
        return tuple(key for key in keys if (refusal := refused(key)) is None or now >= refusal.due_at)

    def refused(self, key: _Key, now: float) -> None:
        """Note that the query was refused."""
        before = self._refused.get(key) or self._answered.pop(key, None)
        pause = FIRST_PAUSE
        if before is not None and now - before.due_at < LONGEST_PAUSE:
            pause = min(2 * before.pause, LONGEST_PAUSE)
        self._refused[key] = _Refusal(pause, now + pause - self._early)

    def answered(self, *keys: _Key) -> None:
        """Note that the queries were answered."""
        for key in self._refused.keys() & keys if self._refused else ():
            self._answered[key] = self._refused.pop(key)

    def forget(self) -> None:
        """Have every query due now."""
        self._refused.clear()
        self._answered.clear()
