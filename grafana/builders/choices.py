"""The choices that dashboards share, and the conditions that they put into queries.

Every choice is read from an info metric and narrowed by those before it. Their names are those that alerts put into
the addresses of dashboards: `var-run`, `var-instance`, `var-gpu`.
"""

from __future__ import annotations

from grafana.builders import Json
from grafana.builders.variables import labels_of

CLUSTER = 'cluster=~"$cluster"'
HOST = f'{CLUSTER}, instance=~"$instance"'
GPU = f'{HOST}, gpu=~"$gpu"'
NAMESPACE = f'{CLUSTER}, namespace=~"$namespace"'
RUN = f'{NAMESPACE}, run=~"$run"'
RANK = f'{RUN}, rank=~"$rank"'


def cluster() -> Json:
    """Choose clusters, where scraping adds that label; else `All` matches what has none."""
    return labels_of(
        "cluster",
        "cluster",
        "stallscope_build_info",
        title="cluster",
        description="Cluster label of the scrape configuration, if one Prometheus serves several clusters.",
        all_value=".*",
    )


def instance(*, everything: bool = True) -> Json:
    """Choose nodes, by the address at which Prometheus scrapes their exporter."""
    return labels_of(
        "instance",
        "instance",
        f"stallscope_build_info{{{CLUSTER}}}",
        title="instance",
        description="Node, as the address of its exporter.",
        everything=everything,
    )


def gpu() -> Json:
    """Choose GPUs of the nodes, by their index there."""
    return labels_of(
        "gpu",
        "gpu",
        f"stallscope_gpu_info{{{HOST}}}",
        title="gpu",
        description="Index of the GPU on its node, as in nvidia-smi.",
    )


def namespace() -> Json:
    """Choose namespaces of runs, where they have any: two may have a run of one name."""
    return labels_of(
        "namespace",
        "namespace",
        f"stallscope_training_rank_info{{{CLUSTER}}}",
        title="namespace",
        description="Kubernetes namespace of the run's pods.",
        all_value=".*",
    )


def run(*, everything: bool = True) -> Json:
    """Choose training runs, by the name that their code gave them."""
    return labels_of(
        "run",
        "run",
        f"stallscope_training_rank_info{{{NAMESPACE}}}",
        title="run",
        description="Name of the training run.",
        everything=everything,
    )


def rank() -> Json:
    """Choose ranks of the runs."""
    return labels_of(
        "rank",
        "rank",
        f"stallscope_training_rank_info{{{RUN}}}",
        title="rank",
        description="Global rank of a process of the run.",
    )
