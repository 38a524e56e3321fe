"""Queries and links that the rows of the run dashboard share."""

from __future__ import annotations

from grafana.builders.choices import HOST, RANK
from grafana.builders.links import to_dashboard
from grafana.builders.query import Query

RUN_HERE = f'{HOST}, run=~"$run"'
"""Matchers of the run on its own nodes."""
RANK_HERE = f'{RUN_HERE}, rank=~"$rank"'
"""Matchers of the ranks on their own nodes."""
BY_RUN = "cluster, namespace, run"
BY_RANK = f"{BY_RUN}, rank"
BY_GPU = "cluster, job, instance, gpu, uuid, mig"
FEW = 8
"""Lines per panel."""
MANY = 16
"""Ranks in a table or a heat map."""
TO_RANK = to_dashboard(
    "stallscope-run",
    "Filter by this rank",
    {"run": "${__field.labels.run}", "rank": "${__field.labels.rank}"},
    kept=["namespace"],
)
TO_HOST = to_dashboard("stallscope-host", "Host ${__field.labels.instance}", {"instance": "${__field.labels.instance}"})
TO_GPU = to_dashboard(
    "stallscope-gpu",
    "GPU ${__field.labels.gpu} of ${__field.labels.instance}",
    {"instance": "${__field.labels.instance}", "gpu": "${__field.labels.gpu}"},
)
CELL_TO_RANK = to_dashboard(
    "stallscope-run",
    "Filter by this rank",
    {"run": "${__data.fields.run}", "rank": "${__data.fields.rank}"},
    kept=["namespace"],
)
CELL_TO_HOST = to_dashboard("stallscope-host", "Open host", {"instance": "${__data.fields.instance}"})
CELL_TO_GPU = to_dashboard(
    "stallscope-gpu", "Open GPU", {"instance": "${__data.fields.instance}", "gpu": "${__data.fields.gpu}"}
)
TO_COMPARE = to_dashboard(
    "stallscope-compare", "Compare with other runs", {"run": "${__field.labels.run}"}, kept=["namespace"]
)


def of_gpus(expression: str) -> str:
    """Return an expression by GPU, limited to GPUs of the ranks and with the rank's labels; `@@` as in `few`."""
    claim = f"rank_gpu:claim:info{{{RANK_HERE}}}{'@@' if '@@' in expression else ''}"
    return f"{claim} * on ({BY_GPU}) group_left () max by ({BY_GPU}) ({expression})"


def of_nodes(expression: str, at: str = "") -> str:
    """Return an expression by node, limited to nodes of the run while it is active."""
    return f"{expression} and on (cluster, job, instance) run_node:known:info{{{RUN_HERE}}}{at}"


def few(expression: str, labels: str, number: int = FEW, *, lowest: bool = False) -> str:
    """Return the highest or lowest series at the end of the time range, over all of it.

    Args:
        expression: PromQL with `@@` after every selector.
        labels: labels that identify a series.
        number: of series.
        lowest: return the lowest series.
    """
    now, at_end = expression.replace("@@", ""), expression.replace("@@", " @ end()")
    return f"({now}) and on ({labels}) {'bottomk' if lowest else 'topk'}({number}, max by ({labels}) ({at_end}))"


def worst(number: int, at: str = "") -> str:
    """Return the ranks that others wait for or, if there are none, those with the largest losses."""
    return (
        f"topk by ({BY_RUN}) ({number}, max by ({BY_RANK}) (run_rank:straggler_score:ratio5m{{{RANK}}}{at})"
        f" or on ({BY_RUN}) max by ({BY_RANK}) (rank:verdict:ratio5m{{{RANK}}}{at}))"
    )


def among_worst(expression: str, number: int = MANY) -> str:
    """Return an expression by rank, limited to the worst ranks at the end of the time range."""
    return f"max by ({BY_RANK}) ({expression}) and on ({BY_RANK}) {worst(number, ' @ end()')}"


def in_order(expression: str) -> str:
    """Return an expression by rank in numeric order: Prometheus sorts series by their labels, as text."""
    padded = f'label_replace({expression}, "order", "$1", "rank", "(.*)")'
    for zeros in ("0000", "000", "00", "0"):
        padded = f'label_replace({padded}, "order", "{zeros}$1", "rank", "([0-9]{{{5 - len(zeros)}}})")'
    return padded


def few_ranks(expression: str, legend: str, number: int = 4) -> Query:
    """Return a query for the ranks with the highest values; `@@` as in `few`."""
    labels = "cluster, instance, run, rank"
    return Query(few(f"max by ({labels}) ({expression})", labels, number), legend)
