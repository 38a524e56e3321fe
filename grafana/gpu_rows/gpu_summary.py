"""First screen: losses and holders of each GPU, from recorded series and the owner series."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import by_name
from grafana.builders.links import runbook
from grafana.builders.panel import Panel, bar_gauge, state_timeline, table
from grafana.builders.query import Query
from grafana.builders.verdicts import (
    by_code,
    cause_colours,
    coded,
    columns,
    of_gpus,
    runbook_by_cause,
    with_remedy,
    with_runbook,
)
from grafana.gpu_rows.gpu_queries import CURVE, NAME, ONE, OWNER, PLACE, PLACE_LINKS, TO_RANK, TO_RUN


def row() -> Row:
    """Return the row."""
    return Row("", (_verdicts(), _verdict_timeline(), _causes(), _what_it_is()))


def _verdicts() -> Panel:
    return table(
        "Verdict of each GPU",
        "Costliest cause of each GPU, the share of the last five minutes that it costs, its remedy, and the run on the "
        "GPU (one of them if there are several). Click the run for its phases, the node for its host.",
        [
            Query(
                with_runbook(
                    with_remedy(
                        f"max by (cluster, instance, gpu, uuid, mig, namespace, run, rank, cause) ({of_gpus(GPU)})"
                    )
                ),
                table=True,
            )
        ],
        columns={
            **PLACE,
            "cause": "Verdict",
            "Value": "Time lost",
            "remedy": "What to change",
            "runbook": "Runbook",
            "run": "Run",
            "rank": "Rank",
        },
        unit="percentunit",
        height=10,
        sort="Time lost",
        overrides=[
            *PLACE_LINKS,
            by_name("MIG instance", custom__width=110),
            *columns(),
            by_name("Time lost", custom__width=100, decimals=0),
            by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=210),
            by_name("Run", links=[TO_RUN]),
            by_name("Rank", links=[TO_RANK], custom__width=70),
        ],
        no_value="No verdict: no GPU is selected, or Prometheus has not loaded the Stallscope rules.",
    )


def _verdict_timeline() -> Panel:
    return state_timeline(
        "Verdicts over time",
        "Verdict of each GPU over time. A gap means that there are no data from the GPU or its node.",
        [Query(coded(f"gpu:verdict:ratio5m{{{GPU}}}", "cluster", "instance", "gpu", "uuid", "mig"), NAME)],
        mappings=by_code(),
        width=16,
        height=7,
        show_values=True,
        links=CURVE,
    )


def _causes() -> Panel:
    return bar_gauge(
        "Time lost by cause",
        "Share of the time of all selected GPUs that each cause costs, over the last five minutes. Start with the "
        "largest.",
        [
            Query(
                f"""
                topk(8,
                    sum by (cause) (gpu_cause:share:ratio5m{{{GPU}}} > 0)
                  /
                    scalar(count(gpu:up:max{{{GPU}}}))
                )
                """,
                "{{cause}}",
                instant=True,
            )
        ],
        unit="percentunit",
        width=8,
        height=7,
        maximum=1,
        overrides=cause_colours(),
    )


def _what_it_is() -> Panel:
    info = f"stallscope_gpu_info{{{GPU}}}"
    held = f"""
          {info}
        * on ({ONE}) group_left ({OWNER})
          topk by ({ONE}) (1, stallscope_gpu_owner_info{{{GPU}}})
      or on ({ONE})
        {info}
    """
    return table(
        "GPU models and holders",
        "Model, driver, allocation mode, and the current holder (one of them if the GPU is shared; all are listed "
        "below under Owners). An empty column means that the GPU has no such holder.",
        [Query(held, table=True)],
        columns={
            **PLACE,
            "model": "Model",
            "driver_version": "Driver",
            "cuda_version": "CUDA",
            "sharing": "Allocation",
            "user": "User",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "slurm_job": "Slurm job",
            "uuid": "UUID",
        },
        unit="none",
        height=5,
        overrides=PLACE_LINKS,
        no_value="No GPU reports on the selected nodes.",
    )
