"""Memory, as the framework's allocator and the processes tell it, and time beside the model."""

from __future__ import annotations

from grafana.builders.dashboard import Row
from grafana.builders.field import ORANGE, fixed_colours, limit_line, second_axis
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.asking import FEW, RANK_HERE, TO_RANK, few_ranks
from grafana.run_rows.spread import spread


def _allocator() -> Panel:
    def most(name: str, legend: str) -> Query:
        return Query(f"max by (run) (stallscope_training_allocator_{name}_bytes{{{RANK_HERE}}})", legend)

    return time_series(
        "GPU memory of the fullest rank",
        "What tensors use, what the allocator holds, and the highest use so far, against the GPU's memory. Far under "
        "it: a larger batch fits. Over the dashed line: checkpoint activations, or a smaller micro-batch.",
        [
            most("used", "tensors"),
            most("reserved", "held by the allocator"),
            most("peak", "highest so far"),
            Query(f"min by (run) (rank:gpu_memory:bytes{{{RANK_HERE}}})", "memory of the GPU"),
            Query(
                f"min by (run) (rank:gpu_memory:bytes{{{RANK_HERE}}})"
                ' * scalar(stallscope:threshold{name="memory_near"})',
                "nearly full",
            ),
        ],
        unit="bytes",
        legend=["max", "lastNotNull"],
        overrides=[*limit_line("memory of the GPU"), *limit_line("nearly full", colour=ORANGE)],
    )


def _allocator_by_rank() -> Panel:
    return spread(
        "Highest use across ranks",
        "Highest use by tensors over the GPU's memory. Curves that part: balance shards and stages.",
        f"rank:allocator_peak:ratio{{{RANK_HERE}}}",
        "percentunit",
        threshold("memory_near", "nearly full"),
    )


def _failed_allocations() -> Panel:
    def grown(name: str, legend: str) -> Query:
        return Query(
            f"sum by (run) (increase(stallscope_training_{name}_total{{{RANK_HERE}}}[$__rate_interval]))", legend
        )

    return time_series(
        "Allocations that failed at first, or for good",
        "A retry empties the allocator's cache and costs time: use expandable segments, and avoid changing shapes. One "
        "that fails for good ends most trainings.",
        [grown("allocator_retries", "retries"), grown("out_of_memory", "out of memory")],
        unit="short",
        bars=True,
        width=8,
        overrides=fixed_colours({"retries": "#E0B400", "out of memory": "#C4162A"}),
    )


def _process_memory() -> Panel:
    return time_series(
        "Host memory of ranks",
        "Resident memory of a rank and its workers. One that grows without end leads to the node's killer of "
        "processes: look for what is kept from step to step. The largest are shown.",
        [few_ranks(f"stallscope_training_process_memory_bytes{{{RANK_HERE}}}@@", "rank {{rank}}", FEW)],
        unit="bytes",
        width=8,
        links=[TO_RANK],
    )


def _work_beside() -> Panel:
    def share(name: str, legend: str) -> Query:
        return Query(f"max by (run) (rate(stallscope_training_{name}{{{RANK_HERE}}}[$__rate_interval]))", legend)

    return time_series(
        "Time beside the model",
        "Seconds a second in Python's garbage collector and in Stallscope's own shim, and graph compilations; of the "
        "rank with most. Compilations that go on mean that shapes change: pad them, or mark them as dynamic.",
        [
            share("garbage_collection_seconds_total", "garbage collection"),
            share("shim_overhead_seconds_total", "Stallscope"),
            Query(
                f"max by (run) (increase(stallscope_training_recompilations_total{{{RANK_HERE}}}[$__rate_interval]))",
                "compilations",
            ),
        ],
        unit="percentunit",
        width=8,
        overrides=second_axis("compilations", unit="short"),
    )


def row() -> Row:
    """Return memory, and what takes time beside the model."""
    return Row(
        "Memory, and time beside the model",
        (_allocator(), _allocator_by_rank(), _failed_allocations(), _process_memory(), _work_beside()),
        collapsed=True,
    )
