"""How the run's dashboard asks: who belongs to the run, who are the worst few, and where a click leads."""

from __future__ import annotations

from grafana.builders import Json
from grafana.builders.choices import HOST, RANK
from grafana.builders.links import to_dashboard
from grafana.builders.query import Query

RUN_HERE = f'{HOST}, run=~"$run"'
"""The run as its own nodes tell of it."""
RANK_HERE = f'{RUN_HERE}, rank=~"$rank"'
"""Ranks as their own nodes tell of them."""
BY_RUN = "cluster, namespace, run"
BY_RANK = f"{BY_RUN}, rank"
BY_GPU = "cluster, job, instance, gpu, uuid, mig"
BY_PROCESS = "cluster, job, instance, run, rank"
FEW = 8
"""Curves that a panel still can be read with."""
MANY = 32
"""Ranks in a table or a heat map."""
SHARE_COLOURS: Json = {"mode": "continuous-GrYlRd"}
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


def of_ranks(expression: str) -> str:
    """What each live rank tells, with the run's namespace."""
    return f"rank:live:info{{{RANK_HERE}}} * on ({BY_PROCESS}) group_left () max by ({BY_PROCESS}) ({expression})"


def of_gpus(expression: str) -> str:
    """What each GPU tells that the ranks claim, under the rank's labels too."""
    return f"rank_gpu:claim:info{{{RANK_HERE}}} * on ({BY_GPU}) group_left () max by ({BY_GPU}) ({expression})"


def of_nodes(expression: str, at: str = "") -> str:
    """What the nodes of the run tell, while it is there."""
    return f"{expression} and on (cluster, job, instance) run_node:known:info{{{RUN_HERE}}}{at}"


def few(expression: str, labels: str, number: int = FEW) -> str:
    """The greatest few at the end of the time shown, over all of it; `@@` stands behind every selector in them."""
    now, at_end = expression.replace("@@", ""), expression.replace("@@", " @ end()")
    return f"({now}) and on ({labels}) topk({number}, max by ({labels}) ({at_end}))"


def worst(number: int, at: str = "") -> str:
    """The ranks that others wait for; in a run where nobody is waited for, those that lose most."""
    return (
        f"topk by ({BY_RUN}) ({number}, max by ({BY_RANK}) (run_rank:straggler_score:ratio5m{{{RANK}}}{at})"
        f" or on ({BY_RUN}) max by ({BY_RANK}) (rank:verdict:ratio5m{{{RANK}}}{at}))"
    )


def among_worst(expression: str, number: int = MANY) -> str:
    """An expression by rank, of the worst ranks at the end of the time shown."""
    return f"max by ({BY_RANK}) ({expression}) and on ({BY_RANK}) {worst(number, ' @ end()')}"


def few_hosts(expression: str, legend: str, number: int = 4) -> Query:
    """Ask for the nodes with the most of something; `@@` as in `few`."""
    return Query(few(f"max by (cluster, instance) ({of_nodes(expression, '@@')})", "cluster, instance", number), legend)


def few_ranks(expression: str, legend: str, number: int = 4) -> Query:
    """Ask for the ranks with the most of something; `@@` as in `few`."""
    labels = "cluster, instance, run, rank"
    return Query(few(f"max by ({labels}) ({expression})", labels, number), legend)
