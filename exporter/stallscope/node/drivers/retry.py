"""When a query that the driver refused is due again.

A refusal (not supported, no permission, no such function) may be permanent or temporary: the return code is the same. A
refused query is therefore repeated after a pause that doubles each time. The first pause is short for a query that was
answered before, and long for one that never was, since most GPUs lack some signals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

from stallscope.node.drivers.device import Unsupported

FIRST_PAUSE = 2.0
"""Seconds, for a query that was answered before."""
FIRST_PAUSE_UNANSWERED = 60.0
"""Seconds, for a query that never was."""
LONGEST_PAUSE = 300.0
"""Seconds."""
EARLY = 1.0
"""Seconds, for `Retry`: a query inside of another one is due before it, so that both are made at the same time."""

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Refusal(NamedTuple):
    pause: float
    due_at: float


class Retry:
    """The refused queries of one GPU or source, by key. Times are monotonic seconds."""

    def __init__(self, early: float = 0.0) -> None:
        """Begin with nothing refused.

        Args:
            early: seconds by which every retry is due earlier.
        """
        self.refusal = ""
        """The driver's words at the newest refusal of an optional query."""
        self._early = early
        self._refused: dict[Hashable, _Refusal] = {}
        self._recovered: dict[Hashable, _Refusal] = {}
        """The refusals before the newest answer: a query that is refused again soon keeps its pause."""
        self._answered: set[Hashable] = set()
        """Queries that were ever answered."""

    def __contains__(self, key: Hashable) -> bool:
        """Return whether the query was refused when it was last made."""
        return key in self._refused

    def due(self, key: Hashable, now: float) -> bool:
        """Return whether the query may be made now."""
        refusal = self._refused.get(key)
        return refusal is None or now >= refusal.due_at

    def select(self, keys: Iterable[_Key], now: float) -> tuple[_Key, ...]:
        """Return the keys of the queries that may be made now, in their order."""
        refused = self._refused
        return tuple([key for key in keys if key not in refused or now >= refused[key].due_at])

    def optional(self, key: Hashable, now: float, query: Callable[..., _Answer], *arguments: object) -> _Answer | None:
        """Make the query if it is due. Return its answer, or None while the driver refuses it."""
        if not self.due(key, now):
            return None
        try:
            answer = query(*arguments)
        except Unsupported as refusal:
            self.refusal = str(refusal)
            self.refused(key, now)
            return None
        self.answered(key)
        return answer

    def refused(self, key: Hashable, now: float) -> None:
        """Note that the query was refused."""
        before = self._refused.get(key) or self._recovered.pop(key, None)
        pause = FIRST_PAUSE if key in self._answered else FIRST_PAUSE_UNANSWERED
        if before is not None and now - before.due_at < LONGEST_PAUSE:
            pause = min(2 * before.pause, LONGEST_PAUSE)
        self._refused[key] = _Refusal(pause, now + pause - self._early)

    def answered(self, *keys: Hashable) -> None:
        """Note that the queries were answered."""
        if not self._answered.issuperset(keys):
            self._answered.update(keys)
        for key in keys:
            if key in self._refused:
                self._recovered[key] = self._refused.pop(key)

    def forget(self) -> None:
        """Have every query due now, such as after the driver was opened again."""
        self._refused.clear()
        self._recovered.clear()
