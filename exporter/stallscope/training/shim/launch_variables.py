"""Names of the variables by which a launcher's process is known."""

from __future__ import annotations

RANK_VARIABLES = (
    *("STALLSCOPE_RANK", "RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"),
    *("PMI_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "SLURM_PROCID", "PMIX_RANK"),
    *("JAX_PROCESS_ID", "LWS_WORKER_INDEX", "SKYPILOT_NODE_RANK", "JOB_COMPLETION_INDEX"),
)
"""Variables with the rank, of the launchers in `launched`."""
OTHER_VARIABLES = ("TF_CONFIG", "SM_HOSTS", "TPU_WORKER_ID")
"""Variables of the launchers in `other_launchers`, except for LOCAL_RANK."""
RESTART_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
