"""What Prometheus says of a run or GPU, in the words of the table of causes."""

from __future__ import annotations

from stallscope.analysis.verdicts import Verdict, Verdicts
from stallscope.causes import CAUSES, REMAINDERS
from stallscope.readable import ago, percent
from stallscope.web.status.markup import foreign

_REASON_LENGTH = 300


def verdict_line(verdict: Verdict, *, with_gpus: bool = True) -> str:
    """A verdict with its cost, which is a run's own time where it has no GPU, and what to change first."""
    cause = CAUSES.get(verdict.cause)
    if cause is None:
        title, remedy = REMAINDERS.get(verdict.cause, (foreign(verdict.cause), ""))
        return f'<p class="quiet">Verdict: {title}. {remedy}</p>'
    css = {"critical": "bad", "warning": "warn"}.get(cause.severity or "", "quiet")
    cost = ""
    if verdict.share > 0:
        cost = f" It costs {percent(verdict.share)} of {'the GPU' if with_gpus else 'its'} time"
        if verdict.lost is not None and verdict.lost - verdict.share >= 0.01:
            cost += f", all causes together {percent(verdict.lost)}"
        cost += "."
    return f'<p class="verdict {css}"><strong>Verdict: {cause.title}.</strong>{cost} {cause.remedy}</p>'


def gpu_verdict_line(verdict: Verdict) -> str:
    """The same of a GPU. Where the cause is that of its run, the run says what to change, perhaps on another GPU."""
    cause = CAUSES.get(verdict.cause)
    if cause is None or cause.subject == "gpu":
        return verdict_line(verdict)
    return f'<p class="quiet">Verdict of its run: {cause.title}, {percent(verdict.share)}.</p>'


def provenance(verdicts: Verdicts | None) -> str:
    """Where verdicts come from and how old they are, or why there are none."""
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
            rest = f"The verdicts shown were told {ago(verdicts.age)}."
        return (
            f'<p class="verdict warn" role="status"><strong>Verdicts can\'t be had.</strong> '
            f"{foreign(verdicts.problem, _REASON_LENGTH)}. {rest}</p>"
        )
    if verdicts.age is None:
        return f'<p class="quiet">Asking {server} for verdicts.</p>'
    return f'<p class="quiet">Verdicts: {server}, told {ago(verdicts.age)}.</p>'
