"""First screen: losses and holders of each GPU, from recorded series and the owner series."""

from __future__ import annotations

from grafana.builders import Json, answers
from grafana.builders.alerts import fired, firing, severities
from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import DEFAULT_PORT, by_name
from grafana.builders.links import runbook
from grafana.builders.panel import Panel, state_timeline, table
from grafana.builders.query import Query
from grafana.builders.verdicts import (
    by_code,
    coded,
    columns,
    runbook_by_cause,
    with_remedy,
    with_runbook,
)
from grafana.gpu_rows.gpu_queries import CURVE, NAME, ONE, PLACE, PLACE_LINKS, ROWS, TO_RANK, TO_RUN
from stallscope.model.catalogue.causes import CAUSES

ALERTS = firing('cluster=~"$cluster", instance=~"$instance", gpu=~"$gpu|"')
"""Alerts of the GPUs and of their nodes, which have no GPU."""
_OWN = "|".join(cause.name for cause in CAUSES.values() if cause.subject == "gpu" and cause.tier)
"""Causes that are of a GPU itself."""


def row() -> Row:
    """Return the row."""
    return Row(
        "",
        (
            answers.panel(
                "What these GPUs lose", "The GPU with the largest loss, its cause, its duration, and what to change."
            ),
            _alerts_over_time(),
            _verdicts(),
            _verdict_timeline(),
            _what_it_is(),
        ),
    )


def answer() -> Json:
    """Return the variable with the sentence on the GPU with the largest loss."""
    by = "cluster, instance, gpu, mig"
    selector = f"gpu:verdict:ratio5m{{{GPU}}}"
    node = f"(.*?);(.*?)(?:{DEFAULT_PORT})?;"
    own = f'gpu:verdict:ratio5m{{{GPU}, cause=~"{_OWN}"}} > 0'
    # Other GPUs may lose more while they wait for the one at fault.
    chosen = f"topk(1, {own}) or on () topk(1, {selector})"
    named = f'label_join(max by ({by}, cause) ({chosen}), "subject", ";", "gpu", "instance", "mig")'
    for pattern, words in ((node, "GPU $1 of $2"), (f"{node}(.+)", "GPU $1 MIG $3 of $2")):
        named = f'label_replace({named}, "subject", "{words}", "subject", "{pattern}")'
    return answers.variable(answers.sentence(named, selector, by), "No GPU is selected, or it does not report.")


def _alerts_over_time() -> Panel:
    return state_timeline(
        "Alerts over time",
        "Alerts on these GPUs and on their nodes that fired longest in the time range.",
        [fired(ALERTS)],
        mappings=severities(),
        width=11,
        height=6,
    )


def _verdicts() -> Panel:
    return table(
        "Verdict of each GPU",
        "Costliest cause of each GPU, the share of the last five minutes that it costs, and its remedy. The command "
        "stallscope why --gpu explains it. Click the node for its host.",
        [
            Query(
                with_runbook(
                    with_remedy(f"max by (cluster, instance, gpu, uuid, mig, cause) (gpu:verdict:ratio5m{{{GPU}}})")
                ),
                table=True,
            )
        ],
        columns={
            **PLACE,
            "cause": "Verdict",
            "Value": "Lost",
            "remedy": "What to change",
            "runbook": "Runbook",
        },
        unit="percentunit",
        height=9,
        sort="Lost",
        overrides=[
            *PLACE_LINKS,
            *columns(),
            by_name("Lost", custom__width=75, decimals=0),
            by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=185),
        ],
        no_value="No verdict: no GPU is selected, or Prometheus has not loaded the Stallscope rules.",
    )


def _verdict_timeline() -> Panel:
    verdicts = f"gpu:verdict:ratio5m{{{GPU}}}"
    largest = f"topk({ROWS}, max by ({ONE}) (max_over_time({verdicts}[$__range] @ end())))"
    chosen = f"({verdicts} and on ({ONE}) {largest})"
    return state_timeline(
        "Verdicts over time",
        f"Verdict of the {ROWS} GPUs with the largest losses. A gap means that there are no data from the GPU or its "
        "node.",
        [Query(f"{coded(chosen, 'cluster', 'instance', 'gpu', 'uuid', 'mig')}", NAME)],
        mappings=by_code(),
        height=6,
        show_values=True,
        links=CURVE,
    )


def _what_it_is() -> Panel:
    info = f"max by ({ONE}, model, driver_version, sharing) (stallscope_gpu_info{{{GPU}}})"
    held = f"topk by ({ONE}) (1, max by ({ONE}, user, pod, slurm_job) (stallscope_gpu_owner_info{{{GPU}}}))"
    claim = f'topk by ({ONE}) (1, max by ({ONE}, namespace, run, rank) (gpu_rank:pair:info{{{GPU}, run!=""}}))'
    return table(
        "GPU models, holders and runs",
        "Model, driver, allocation mode, the current holder and the run (one of them if the GPU is shared; all holders "
        "are listed below under Owners). An empty column means that the GPU has no such holder. Click the run for its "
        "phases.",
        [Query(query, table=True) for query in (info, held, claim)],
        columns={
            **PLACE,
            "model": "Model",
            "driver_version": "Driver",
            "sharing": "Allocation",
            "user": "User",
            "pod": "Pod",
            "slurm_job": "Slurm job",
            "run": "Run",
            "rank": "Rank",
        },
        unit="none",
        height=5,
        overrides=[
            *PLACE_LINKS,
            by_name("Driver", custom__width=110),
            by_name("Allocation", custom__width=110),
            by_name("Run", links=[TO_RUN]),
            by_name("Rank", links=[TO_RANK], custom__width=60),
        ],
        no_value="No GPU reports on the selected nodes.",
    )
