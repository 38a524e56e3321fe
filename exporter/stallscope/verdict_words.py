"""A verdict in the words of the table of causes: what it is, what it costs, and what to change first."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.analysis.verdicts import Verdict
from stallscope.causes import CAUSES, REMAINDERS, Severity
from stallscope.readable import percent


class VerdictWords(NamedTuple):
    """A verdict in words."""

    title: str
    """Of a cause that is not known here, its name."""
    cost: str
    """A sentence; empty where nothing is lost."""
    remedy: str
    """A sentence."""
    severity: Severity | None
    of_run: bool
    """Whether it is no GPU's own cause but its run's, which may have it on another GPU."""


def words_of(verdict: Verdict, *, with_gpus: bool = True) -> VerdictWords:
    """The words of a verdict; what it costs is a run's own time where it has no GPU."""
    cause = CAUSES.get(verdict.cause)
    if cause is None:
        title, remedy = REMAINDERS.get(verdict.cause, (verdict.cause, ""))
        return VerdictWords(title, "", remedy, None, False)
    cost = ""
    if verdict.share > 0:
        cost = f"It costs {percent(verdict.share)} of {'the GPU' if with_gpus else 'its'} time"
        if verdict.lost is not None and verdict.lost - verdict.share >= 0.01:
            cost += f", all causes together {percent(verdict.lost)}"
        cost += "."
    return VerdictWords(cause.title, cost, cause.remedy, cause.severity, cause.subject != "gpu")
