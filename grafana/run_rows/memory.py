"""Memory of the allocator and the processes, and overhead outside the model."""

from __future__ import annotations

from grafana.builders.dashboard import Row
from grafana.builders.field import fixed_colours, limit_line, second_axis
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query
from grafana.run_rows.run_queries import RANK_HERE
from stallscope.model.catalogue.causes import colour_of


def _allocator() -> Panel:
    def most(name: str, legend: str) -> Query:
        return Query(f"max by (run) (stallscope_training_allocator_{name}_bytes{{{RANK_HERE}}})", legend)

    return time_series(
        "GPU memory of the rank with the highest use",
        "Memory allocated to tensors, reserved by the allocator, and the peak so far, against the GPU's memory. Far "
        "below it: a larger batch fits. Above the dashed line: use activation checkpointing, or a smaller micro-batch.",
        [
            most("used", "tensors"),
            most("reserved", "reserved by the allocator"),
            most("peak", "peak"),
            Query(f"min by (run) (rank:gpu_memory:bytes{{{RANK_HERE}}})", "GPU memory"),
            Query(
                f"min by (run) (rank:gpu_memory:bytes{{{RANK_HERE}}})"
                ' * scalar(stallscope:threshold{name="memory_near"})',
                "nearly full",
            ),
        ],
        unit="bytes",
        width=8,
        overrides=limit_line("GPU memory", "nearly full"),
    )


def _failed_allocations() -> Panel:
    def grown(name: str, legend: str) -> Query:
        return Query(
            f"sum by (run) (increase(stallscope_training_{name}_total{{{RANK_HERE}}}[$__rate_interval]))", legend
        )

    return time_series(
        "Allocation retries and failures",
        "A retry empties the allocator's cache and costs time: use expandable segments, and avoid changing shapes. A "
        "final failure (out of memory) ends most trainings.",
        [grown("allocator_retries", "retries"), grown("out_of_memory", "out of memory")],
        unit="short",
        bars=True,
        width=8,
        overrides=fixed_colours({"retries": colour_of("callback_stall"), "out of memory": colour_of("xid_hw")}),
    )


def _work_beside() -> Panel:
    def share(name: str, legend: str) -> Query:
        return Query(f"max by (run) (rate(stallscope_training_{name}{{{RANK_HERE}}}[$__rate_interval]))", legend)

    return time_series(
        "Overhead outside the model",
        "Seconds per second in Python's garbage collector and in the Stallscope shim, and graph compilations; the rank "
        "with the most. Continuing compilations mean that shapes change: pad them, or mark them as dynamic.",
        [
            share("garbage_collection_seconds_total", "garbage collection"),
            share("shim_overhead_seconds_total", "Stallscope"),
            Query(
                f"max by (run) (increase(stallscope_training_recompilations_total{{{RANK_HERE}}}[$__rate_interval]))",
                "compilations",
            ),
        ],
        unit="percentunit",
        soft_maximum=0.01,
        width=8,
        overrides=second_axis("compilations", unit="short"),
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Memory and overhead",
        (_allocator(), _failed_allocations(), _work_beside()),
        collapsed=True,
    )
