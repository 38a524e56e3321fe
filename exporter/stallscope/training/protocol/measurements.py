"""Names of the counters and gauges of a report, as both ends have them. Nothing is imported here."""

from __future__ import annotations

COUNTERS = (
    "slow_steps",
    "slow_step_excess_seconds",
    "own_work_seconds",
    *("uneven_work_square_seconds", "even_work_square_seconds"),
    *("late_batch_steps", "late_batch_rest_seconds"),
    "samples",
    "tokens",
    "flops",
    "nonfinite_losses",
    "process_cpu_seconds",
    "main_thread_cpu_seconds",
    "cpu_throttled_seconds",
    "cpu_throttled_periods",
    "cpu_periods",
    "garbage_collection_seconds",
    "recompilations",
    "allocator_retries",
    "out_of_memory",
    "shim_overhead_seconds",
    "cgroup_oom_kills",
)
"""Each is `stallscope_training_<key>_total`."""
GAUGES = (
    "epoch",
    "step",
    "steps_planned",
    "batch_size",
    "loss",
    "learning_rate",
    "gradient_norm",
    "nonfinite_since_step",
    "dataloader_workers",
    "process_memory_bytes",
    "cpu_limit_cores",
    "allocator_reserved_bytes",
    "allocator_used_bytes",
    "allocator_peak_bytes",
)
"""Each is `stallscope_training_<key>`."""
