"""GPUs of the selected ranks, one line each."""

from __future__ import annotations

from grafana.builders.choices import HOST
from grafana.builders.dashboard import Row
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query
from grafana.run_rows.run_queries import BY_GPU, RANK_HERE, TO_GPU, few


def _gpu_curves(title: str, description: str, expression: str, unit: str) -> Panel:
    labels = "cluster, instance, gpu, run, rank"
    return time_series(
        title,
        description,
        [Query(few(f"max by ({labels}) ({expression})", labels), "rank {{rank}}, {{instance}} GPU {{gpu}}")],
        unit=unit,
        width=8,
        links=[TO_GPU],
    )


def _chosen_gpus() -> tuple[Panel, ...]:
    claim = f"rank_gpu:claim:info{{{RANK_HERE}}}@@ * on ({BY_GPU}) group_left () max by ({BY_GPU}) "
    return (
        _gpu_curves(
            "GPU busy",
            "Share of time with a kernel resident, of the selected ranks (the busiest if there are many). Click a line "
            "for its GPU.",
            claim + f"(rate(stallscope_gpu_busy_seconds_total{{{HOST}}}[$__rate_interval]@@))",
            "percentunit",
        ),
        _gpu_curves(
            "Time below 10 % utilisation",
            "Share of time with utilisation below 10 %, of the ranks with the most. The GPU waited for the host in "
            "that time.",
            claim + f'(rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval]@@))',
            "percentunit",
        ),
        _gpu_curves(
            "SM clock",
            "SM clock relative to its maximum, of the selected ranks. A clock lower than its peers is throttled: see "
            "the GPU's dashboard for the reason.",
            claim + f"(gpu:sm_clock:ratio5m{{{HOST}}}@@)",
            "percentunit",
        ),
    )


def row() -> Row:
    """Return the row."""
    return Row("GPUs of the selected ranks", _chosen_gpus(), collapsed=True)
