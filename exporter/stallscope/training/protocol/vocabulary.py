"""Words and limits of the report, as both ends have them.

They are separate from `report`, because the training process imports them: nothing is imported here.
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
MAX_CODE_LINES = 5
"""Most lines of code of one phase of a rank."""
MAX_GPUS = 64
"""Most GPUs of one rank."""
MAX_DROP_CAUSES = 16
"""Most causes of reports that could not be sent."""
MAX_RANK = 1_000_000
MAX_RESTARTS = 1_000_000
MAX_TIMESTAMP = 1e11
"""Latest valid Unix time; milliseconds in place of seconds exceed it."""
STEP_BUCKET_COUNT = 20
"""Buckets of `step_seconds`: the catalogue's bounds, and the one above the highest."""

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
    "pipeline_stage",
    "tensor_rank",
    "data_rank",
)
SHIM_STATES = ("starting", "running", "finished", "failed", "terminated")
"""States that a process reports of itself; `lost` is the exporter's word for one that is gone."""
LAST_STATES = ("finished", "failed", "terminated")
"""States of the last report of a session."""
TERMINATION_STATUSES = (128 + 15, 128 + 1, 128 + 2)
"""Exit statuses by which a program reports that SIGTERM, SIGHUP or SIGINT ended it."""

ACTIVITIES = ("initialization", "training", "evaluation", "checkpoint", "restore", "paused", "rollout")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
JOB_CLASSES = ("production", "experiment")

DEFAULT_SOCKET = "/run/stallscope/report.sock"
LONGEST_SOCKET_PATH = 107
"""Maximum bytes of a socket's path in the kernel."""
DEFAULT_PORT = 19400
TRIAL_RUN = "stallscope-doctor"
"""A report of a run of this name tries the way to the exporter: it is checked and counted like any, and not held."""
