"""Current and past holders of the GPUs, and the runs on them."""

from __future__ import annotations

from grafana.builders import owners
from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import BLUE, Text, by_name, texts
from grafana.builders.lines import few
from grafana.builders.panel import Panel, state_timeline, table
from grafana.builders.query import Query, level
from grafana.gpu_rows.gpu_queries import CURVE, HOLDER, NAME, OWNER, PLACE, PLACE_LINKS, ROWS, line, rate


def row() -> Row:
    """Return the row."""
    return Row(
        "Owners and runs",
        (
            _holders(),
            _history(),
            line(
                "GPUs with several holders",
                "Number of holders of a GPU that should be exclusive. Check CUDA_VISIBLE_DEVICES and the scheduler's "
                "allocation. Empty: no GPU is shared by mistake.",
                f"gpu:sharers:count{{{GPU}}}",
                unit="none",
                decimals=0,
                width=12,
                no_value="No GPU is shared by mistake.",
            ),
            line(
                "Held but idle",
                "Time for which a GPU has been held without computing, once it exceeds the threshold (dashed). "
                "Release it, or contact its holder. Empty: no such GPU.",
                f"gpu:idle_allocated:seconds{{{GPU}}}",
                unit="s",
                limits={"allowed": level("idle_seconds")},
                width=12,
            ),
        ),
        collapsed=True,
    )


def _holders() -> Panel:
    by = f"cluster, instance, gpu, uuid, mig, {OWNER}"
    return table(
        "Current holders",
        "Every holder of every GPU, with the memory of its processes and their share of compute time; of a pod also "
        "its queue and workload, if the exporter reads the Kubernetes API. If a holder never computes, ask whether the "
        "GPU can be released.",
        [
            Query(f"max by ({by}, {owners.WORKLOAD}) ({owners.with_workload(GPU)})", table=True),
            Query(f"sum by ({by}) (stallscope_gpu_owner_memory_used_bytes{{{GPU}}})", table=True),
            Query(f"sum by ({by}) ({rate('stallscope_gpu_owner_busy_seconds_total')})", table=True),
        ],
        columns={
            **PLACE,
            "user": "User",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            **owners.COLUMNS,
            "slurm_job": "Slurm job",
            "Value #B": "Memory",
            "Value #C": "Computing",
        },
        unit="none",
        height=6,
        sort="Memory",
        overrides=[
            *PLACE_LINKS,
            *(by_name(name, custom__minWidth=90) for name in ("User", "Namespace", "Container", "Slurm job")),
            by_name("Pod", custom__minWidth=120),
            *owners.workload_columns(),
            by_name("Memory", unit="bytes", custom__width=95),
            by_name("Computing", unit="percentunit", custom__width=95),
        ],
        no_value="No holders, or the exporter has no permission to see them.",
    )


def _history() -> Panel:
    return state_timeline(
        "Holders over time",
        f"One row per GPU and holder, {ROWS} at most. A row that continues while utilisation is zero shows a GPU that "
        "is held without use.",
        [
            Query(
                few(f"max by (cluster, instance, gpu, mig, {OWNER}) (stallscope_gpu_owner_info{{{GPU}}})", ROWS),
                f"{NAME} {HOLDER}",
                least_step="1m",
            )
        ],
        mappings=texts({"1": Text("holds it", BLUE)}),
        links=CURVE,
    )
