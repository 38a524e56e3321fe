"""Verdicts as lines."""

from __future__ import annotations

from stallscope.common.formatting import ago, readable
from stallscope.model.view.verdict_words import words_of
from stallscope.model.view.verdicts import Verdict, Verdicts
from stallscope.tools.terminal.lines import Line, wrapped

ROLES = {"critical": "bad", "warning": "warn"}


def verdict_lines(verdict: Verdict, width: int, indent: str, *, with_gpus: bool = True) -> list[Line]:
    """Return a verdict with its cost, the rank to blame and the remedy."""
    words = words_of(verdict, with_gpus=with_gpus)
    title = f"Verdict: {readable(words.title)}."
    said = " ".join(each for each in (title, words.cost, words.culprit, words.line, words.remedy) if each)
    healthy = "good" if verdict.cause == "healthy" else ""
    return wrapped(said, width, ROLES.get(words.severity or "", healthy), indent)


def verdict_source(verdicts: Verdicts | None, width: int) -> list[Line]:
    """Return the source and age of verdicts, or why there are none."""
    if verdicts is None:
        return wrapped("No verdicts: set --prometheus.url to a Prometheus with Stallscope's rules.", width, "quiet")
    if verdicts.problem:
        known = "No verdicts are known" if verdicts.age is None else f"The verdicts shown are from {ago(verdicts.age)}"
        return wrapped(f"No newer verdicts: {readable(verdicts.problem, 300)}. {known}.", width, "bad")
    state = "requested" if verdicts.age is None else f"updated {ago(verdicts.age)}"
    return wrapped(f"Verdicts: {readable(verdicts.server)}, {state}.", width, "quiet")
