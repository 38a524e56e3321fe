"""Choice of the verdicts to print: each once it is stable, and again once it has changed by a quarter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stallscope.model.view.verdicts import Culprit, Verdict

STABLE_SECONDS = 10.0
"""Two evaluations of the rules."""
_CHANGE = 0.25
"""Relative change of the share that counts."""
_LEAST_CHANGE = 0.02
"""Smallest change of the share that counts."""


class _Seen(NamedTuple):
    since: float
    verdict: Verdict


class VerdictLog:
    """Remembers the verdicts that were printed."""

    def __init__(self) -> None:
        self._printed: dict[str, Verdict] = {}
        self._seen: dict[str, _Seen] = {}

    def due(self, verdicts: Mapping[str, Verdict], now: float) -> Iterator[tuple[str, Verdict]]:
        """Yield run and verdict of each verdict to print.

        Args:
            verdicts: the present verdict of each run.
            now: monotonic time in seconds.
        """
        for run, verdict in verdicts.items():
            seen = self._seen.get(run)
            if seen is None or _differs(verdict, seen.verdict):
                seen = self._seen[run] = _Seen(now, verdict)
            if now - seen.since < STABLE_SECONDS:
                continue
            if _differs(verdict, self._printed.get(run, _UNKNOWN)):
                self._printed[run] = verdict
                yield run, verdict


_UNKNOWN = Verdict("insufficient_data", 0.0)
"""The verdict on a new run: printed only where a run had another one."""


def _differs(verdict: Verdict, other: Verdict) -> bool:
    change = abs(verdict.share - other.share)
    return (
        verdict.cause != other.cause
        or _subject(verdict.culprit) != _subject(other.culprit)
        or change > max(_CHANGE * other.share, _LEAST_CHANGE)
    )


def _subject(culprit: Culprit | None) -> tuple[str, str] | None:
    return None if culprit is None else (culprit.rank, culprit.cause)
