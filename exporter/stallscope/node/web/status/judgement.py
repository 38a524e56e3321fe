"""Prometheus' verdict on a run or GPU, in the words of the table of causes."""

from __future__ import annotations

from stallscope.common.formatting import ago, percent
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.view.verdict_words import words_of
from stallscope.model.view.verdicts import Verdict, Verdicts
from stallscope.node.web.status.markup import foreign

_REASON_LENGTH = 300


def verdict_line(verdict: Verdict, *, with_gpus: bool = True) -> str:
    """A verdict with its cost, the rank to blame and what to change first."""
    words = words_of(verdict, with_gpus=with_gpus, name=foreign)
    if verdict.cause not in CAUSES:
        return f'<p class="quiet">Verdict: {foreign(words.title)}. {words.remedy}</p>'
    css = {"critical": "bad", "warning": "warn"}.get(words.severity or "", "quiet")
    cost = f" {words.cost}" if words.cost else ""
    culprit = f" {words.culprit}" if words.culprit else ""
    line = f" {words.line}" if words.line else ""
    return f'<p class="verdict {css}"><strong>Verdict: {words.title}.</strong>{cost}{culprit}{line} {words.remedy}</p>'


def gpu_verdict_line(verdict: Verdict) -> str:
    """Return the verdict on a GPU. If its cause is its run's, the run has the remedy, perhaps for another GPU."""
    words = words_of(verdict)
    if words.of_run:
        return f'<p class="quiet">Verdict of its run: {words.title}, {percent(verdict.share)}.</p>'
    return verdict_line(verdict)


def provenance(verdicts: Verdicts | None) -> str:
    """Return the origin and age of the verdicts, or the reason why there are none."""
    if verdicts is None:
        return (
            '<p class="quiet">Verdicts and remedies are shown here where the exporter knows a Prometheus with '
            "Stallscope's rules: <code>--prometheus.url</code>.</p>"
        )
    server = foreign(verdicts.server)
    if verdicts.problem:
        if verdicts.age is None:
            rest = "No verdict is known meanwhile."
        else:
            rest = f"The verdicts shown are from {ago(verdicts.age)}."
        return (
            f'<p class="verdict warn" role="status"><strong>Verdicts can\'t be had.</strong> '
            f"{foreign(verdicts.problem, _REASON_LENGTH)}. {rest}</p>"
        )
    if verdicts.age is None:
        return f'<p class="quiet">Querying {server} for verdicts.</p>'
    return f'<p class="quiet">Verdicts: {server}, {ago(verdicts.age)}.</p>'
