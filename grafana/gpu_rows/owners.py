"""Current and past holders of the GPUs, and the runs on them."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import BLUE, Text, by_name, limit_line, texts
from grafana.builders.panel import Panel, state_timeline, table, time_series
from grafana.builders.query import Query, threshold
from grafana.gpu_rows.gpu_queries import CURVE, HOLDER, NAME, OWNER, PLACE, PLACE_LINKS, TO_RANK, TO_RUN, rate


def row() -> Row:
    """Return the row."""
    return Row(
        "Owners, runs and processes",
        (_holders(), _ranks(), _history(), _busy_by_owner(), _memory_by_owner(), _processes(), _sharers(), _unused()),
        collapsed=True,
    )


def _holders() -> Panel:
    by = f"cluster, instance, gpu, uuid, mig, {OWNER}"
    return table(
        "Current holders",
        "Every holder of every GPU, with the memory of its processes and their share of compute time. If a holder "
        "never computes, ask whether the GPU can be released.",
        [
            Query(f"max by ({by}) (stallscope_gpu_owner_info{{{GPU}}})", table=True),
            Query(f"sum by ({by}) (stallscope_gpu_owner_memory_used_bytes{{{GPU}}})", table=True),
            Query(f"sum by ({by}) ({rate('stallscope_gpu_owner_busy_seconds_total')})", table=True),
        ],
        columns={
            **PLACE,
            "user": "User",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "slurm_job": "Slurm job",
            "Value #B": "Memory",
            "Value #C": "Computing",
        },
        unit="none",
        height=7,
        sort="Memory",
        overrides=[
            *PLACE_LINKS,
            by_name("Memory", unit="bytes"),
            by_name("Computing", unit="percentunit"),
        ],
        no_value="No holders, or the exporter has no permission to see them.",
    )


def _ranks() -> Panel:
    return table(
        "Runs on these GPUs",
        "Each rank of a training run on these GPUs. Two runs on one GPU share its time: check that this is intended.",
        [
            Query(
                f'max by (cluster, instance, gpu, mig, namespace, run, rank) (gpu_rank:pair:info{{{GPU}, run!=""}})',
                table=True,
            )
        ],
        columns={**PLACE, "namespace": "Namespace", "run": "Run", "rank": "Rank"},
        unit="none",
        width=12,
        height=7,
        overrides=[*PLACE_LINKS, by_name("Run", links=[TO_RUN]), by_name("Rank", links=[TO_RANK])],
        no_value="No run reports from these GPUs. Add the shim to the training code.",
    )


def _history() -> Panel:
    return state_timeline(
        "Holders over time",
        "One row per GPU and holder. A row that continues while utilisation is zero shows a GPU that is held without "
        "use.",
        [
            Query(
                f"max by (cluster, instance, gpu, mig, {OWNER}) (stallscope_gpu_owner_info{{{GPU}}})",
                f"{NAME} {HOLDER}",
                least_step="1m",
            )
        ],
        mappings=texts({"1": Text("holds it", BLUE)}),
        width=12,
        height=7,
        links=CURVE,
    )


def _busy_by_owner() -> Panel:
    return time_series(
        "Utilisation by holder",
        "Share of time in which each holder's processes had kernels resident. It shows who uses a shared GPU.",
        [Query(rate("stallscope_gpu_owner_busy_seconds_total"), f"{NAME} {HOLDER}")],
        unit="percentunit",
        links=CURVE,
    )


def _memory_by_owner() -> Panel:
    return time_series(
        "Memory by holder",
        "Framebuffer memory of each holder's processes. A line without a name is memory without a known holder.",
        [Query(f"stallscope_gpu_owner_memory_used_bytes{{{GPU}}}", f"{NAME} {HOLDER}")],
        unit="bytes",
        links=CURVE,
    )


def _processes() -> Panel:
    return time_series(
        "Processes",
        "Processes with a context on the GPU. If there are more than the run's own, a dead process was left behind or "
        "another job uses the GPU.",
        [Query(f"stallscope_gpu_processes{{{GPU}}}", f"{NAME} {{{{kind}}}}")],
        unit="none",
        decimals=0,
        links=CURVE,
    )


def _sharers() -> Panel:
    return time_series(
        "GPUs with several holders",
        "Number of holders of a GPU that should be exclusive. Check CUDA_VISIBLE_DEVICES and the scheduler's "
        "allocation. Empty: no GPU is shared by mistake.",
        [Query(f"gpu:sharers:count{{{GPU}}}", NAME)],
        unit="none",
        decimals=0,
        links=CURVE,
    )


def _unused() -> Panel:
    return time_series(
        "Held but idle",
        "Time for which a GPU has been held without computing, once it exceeds the threshold (dashed). Release it, or "
        "contact its holder. Empty: no such GPU.",
        [
            Query(f"gpu:idle_allocated:seconds{{{GPU}}}", NAME),
            threshold("idle_seconds", "allowed"),
        ],
        unit="s",
        overrides=limit_line("allowed"),
        links=CURVE,
    )
