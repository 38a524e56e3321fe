"""Variables that dashboards share, and the matchers that they add to queries.

The values of every variable come from an info metric, narrowed by the variables before it. Alerts use the names in the
URLs of dashboards: `var-run`, `var-instance`, `var-gpu`.
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
    """Select clusters by the label that scraping adds; without the label, `All` matches."""
    return labels_of(
        "cluster",
        "cluster",
        "stallscope_build_info",
        title="cluster",
        description="Cluster label of the scrape configuration, if one Prometheus serves several clusters.",
        all_value=".*",
    )


def instance(*, everything: bool = True) -> Json:
    """Select nodes by the address of their exporter."""
    return labels_of(
        "instance",
        "instance",
        f"stallscope_build_info{{{CLUSTER}}}",
        title="instance",
        description="Node, as the address of its exporter.",
        everything=everything,
    )


def gpu() -> Json:
    """Select GPUs of the nodes by index."""
    return labels_of(
        "gpu",
        "gpu",
        f"stallscope_gpu_info{{{HOST}}}",
        title="gpu",
        description="Index of the GPU on its node, as in nvidia-smi.",
    )


def namespace(*, hide: bool = False) -> Json:
    """Select namespaces of runs, if they have any: runs in two namespaces may have the same name."""
    return labels_of(
        "namespace",
        "namespace",
        f"stallscope_training_rank_info{{{CLUSTER}}}",
        title="namespace",
        description="Kubernetes namespace of the run's pods.",
        all_value=".*",
        hide=hide,
    )


def run(*, everything: bool = True) -> Json:
    """Select training runs by name."""
    return labels_of(
        "run",
        "run",
        f"stallscope_training_rank_info{{{NAMESPACE}}}",
        title="run",
        description="Name of the training run.",
        everything=everything,
    )


def rank() -> Json:
    """Select ranks of the runs."""
    return labels_of(
        "rank",
        "rank",
        f"stallscope_training_rank_info{{{RUN}}}",
        title="rank",
        description="Global rank of a process of the run.",
    )
