"""Owners of GPUs, as columns of tables."""

from __future__ import annotations

from grafana.builders.field import Override, by_name

WORKLOAD = "queue, workload"
"""Labels that `with_workload` adds; a pod whose queue or workload is unknown lacks the label."""
COLUMNS = {"queue": "Queue", "workload": "Workload"}


def with_workload(matchers: str) -> str:
    """Return PromQL for the owners of GPUs, with queue and workload of their pods, such as `PyTorchJob/resnet50`.

    Args:
        matchers: matchers of the GPUs, such as `choices.GPU`.
    """
    owners = f"stallscope_gpu_owner_info{{{matchers}}}"
    by = "cluster, job, instance, gpu, uuid, mig, namespace, pod"
    joined = (
        f'label_join(stallscope_gpu_owner_workload_info{{{matchers}}}, "workload", "/", "workload_kind", "workload")'
    )
    known = f'topk by ({by}) (1, label_replace({joined}, "workload", "", "workload", "/"))'
    return f"({owners} * on ({by}) group_left ({WORKLOAD}) {known} or on ({by}) {owners})"


def workload_columns() -> list[Override]:
    """Return the overrides of the columns `Queue` and `Workload`."""
    return [by_name("Queue", custom__minWidth=90), by_name("Workload", custom__minWidth=160)]
