"""The report: the one document that a training process sends, and that the exporter takes in.

It is one JSON object, the same as UNIX datagram, UDP datagram and POST body, and it holds **cumulative** state of one
session (one process' life as one rank), so that a lost report loses nothing. Unknown keys are ignored, so that an
older exporter understands a newer shim; an unknown version is refused.

    {
      "version": 1,
      "run": "resnet50", "rank": 0,            the job's name, the global rank
      "session": "6f1c…", "sequence": 17,      this process' life; grows by one with every report
      "pid": 4242,
      "start": 1700000000.0,                   Unix time of the session's start
      "sent": 1700000100.0,                    Unix time of this report
      "state": "running", "activity": "training",
      "info": {"local_rank": "0", "world_size": "8", "framework": "pytorch", "hostname": "…", "namespace": "",
               "pod": "", "slurm_job": "", "user": "…", "git_commit": "", "job_class": "production"},
      "gpus": [{"gpu": "0", "uuid": "GPU-…"}],
      "first_step": 1700000005.0, "last_step": 1700000099.9,      Unix time; left out before the first step
      "step_seconds": {"counts": [0, …], "sum": 93.1, "count": 100},   counts as long as STEP_BUCKETS plus one
      "phases": {"data_wait": {"seconds": 3.2, "occurrences": 100, "max": 0.4, "gpu_seconds": 3.0}},
      "counters": {"samples": 6400, …},        keys: COUNTERS
      "gauges": {"loss": 0.3, …},              keys: GAUGES
      "values": {"accuracy": 0.9},             the user's own gauges
      "precision": ["bf16"],
      "dropped": {"queue_full": 2}             reports that could not be sent, by cause
    }

`phases` sum to the loop's wall time: those inside steps (with `other` as their rest) and those of
`catalogue.OUTSIDE_PHASES`. An open phase is booked up to `sent`. `max` is the longest occurrence of the last minute,
an open one included; `gpu_seconds` is left out where it can't be measured.

Both ends share this file; it needs the standard library alone.
"""

from __future__ import annotations

VERSION = 1

MAX_BYTES = 32_768
"""Longest report in bytes: fits one datagram on both kinds of socket with the kernel's default buffers."""
MAX_NAME_LENGTH = 128
"""Longest run name, in characters."""
MAX_LABEL_LENGTH = 128
"""Longest value of anything else that becomes a label, in characters."""
MAX_VALUES = 32
"""Most custom values of one rank."""
MAX_PHASES = 32
"""Most phases of one rank."""
MAX_GPUS = 64
"""Most GPUs of one rank."""
MAX_RANK = 1_000_000

INFO_KEYS = (
    "local_rank",
    "world_size",
    "framework",
    "hostname",
    "namespace",
    "pod",
    "slurm_job",
    "user",
    "git_commit",
    "job_class",
)
COUNTERS = (
    "slow_steps",
    "slow_step_excess_seconds",
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
    "dataloader_workers",
    "process_memory_bytes",
    "cpu_limit_cores",
    "allocator_reserved_bytes",
    "allocator_used_bytes",
    "allocator_peak_bytes",
)
"""Each is `stallscope_training_<key>`."""
SHIM_STATES = ("starting", "running", "finished", "failed")
"""States that a process tells of itself; `lost` is the exporter's word for one that is gone."""

DEFAULT_SOCKET = "/run/stallscope/report.sock"
DEFAULT_PORT = 19400
