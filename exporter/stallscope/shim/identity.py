"""Who this process is: run, rank, world, host, GPUs, from its arguments and environment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from stallscope.shim.tolerance import complain

_LAUNCHERS = (
    ("STALLSCOPE_RANK", ("STALLSCOPE_LOCAL_RANK",), ("STALLSCOPE_WORLD_SIZE",)),
    ("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),  # torchrun, and most that came after
    # A batch script's own process has a PROCID too; its step, unlike SLURM_NTASKS, knows that it is alone.
    ("SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
)
_MAX_RANK = 1_000_000
_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax"}


def ranks(environment: Mapping[str, str]) -> tuple[int, int | None, int]:
    """Find the global rank, the local rank (None where nobody tells it) and the world's size.

    Asked in this order, the first that answers settles all three: STALLSCOPE_RANK, torchrun, Slurm, Open MPI. A
    process that none of them started is rank 0 of 1.
    """
    for rank_variable, local_variables, world_variables in _LAUNCHERS:
        rank = _whole(environment, rank_variable)
        if rank is None:
            continue
        local = next((found for name in local_variables if (found := _whole(environment, name)) is not None), None)
        world = next((found for name in world_variables if (found := _whole(environment, name)) is not None), None)
        return rank, local, max(world or 1, 1)
    return 0, None, 1


def run_name(environment: Mapping[str, str], world_size: int, script: str, start: float) -> str:
    """Find the run's name where the program gave none: STALLSCOPE_RUN, or the script and what sets this job apart.

    All ranks of a run must agree on it: that is the launcher's job number, or the start for a process that is alone.
    Ranks without a job number have the script's name alone.
    """
    if told := environment.get("STALLSCOPE_RUN", "").strip():
        return told
    folder, name = os.path.split(script)
    if name == "__main__.py":
        name = os.path.basename(folder)
    name = name.removesuffix(".py").strip("-") or "python"
    if name == "c":
        name = "python"
    for variable in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        job = environment.get(variable, "").strip()
        if job not in ("", "none"):  # torchrun's own default
            return f"{name}-{job}"
    if world_size > 1:
        return name
    return f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(start))}"


def information(environment: Mapping[str, str]) -> dict[str, str]:
    """Describe this process: the report's `info`, but for ranks."""
    import socket

    job_class = environment.get("STALLSCOPE_JOB_CLASS", "").strip() or "production"
    if job_class not in ("production", "experiment"):
        complain(f"STALLSCOPE_JOB_CLASS is {job_class!r:.80}; expected production or experiment, production is taken")
        job_class = "production"
    return {
        "framework": framework(),
        "hostname": socket.gethostname(),
        "namespace": environment.get("POD_NAMESPACE", ""),
        "pod": environment.get("POD_NAME", ""),
        "slurm_job": environment.get("SLURM_JOB_ID", ""),
        "user": environment.get("USER", "") or environment.get("LOGNAME", "") or _account(),
        "git_commit": environment.get("STALLSCOPE_GIT_COMMIT", ""),
        "job_class": job_class,
    }


def framework() -> str:
    """Name the framework that the program has imported, empty where there is none."""
    return next((name for module, name in _FRAMEWORKS.items() if module in sys.modules), "")


def gpus(environment: Mapping[str, str], local_rank: int | None, root: str = "/") -> list[dict[str, str]]:
    """Find the GPU this rank computes on; empty where that would be a guess.

    The framework knows best, once it uses one. Before, CUDA_VISIBLE_DEVICES tells: its only entry, or the one at the
    local rank; without the variable, a launched rank has the GPU of its local rank where there is such a device.
    """
    visible_variable = environment.get("CUDA_VISIBLE_DEVICES")
    visible = None if visible_variable is None else [entry.strip() for entry in visible_variable.split(",")]
    position: int | None = local_rank
    uuid = ""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        position = torch.cuda.current_device()
        uuid = str(getattr(torch.cuda.get_device_properties(position), "uuid", ""))
        if uuid and not uuid.startswith(("GPU-", "MIG-")):
            uuid = f"GPU-{uuid}"
        index = str(position)
        if visible is not None:
            index = visible[position] if position < len(visible) and visible[position].isdecimal() else ""
        return [{"gpu": index, "uuid": uuid}] if index or uuid else []
    if visible is None:
        if position is None or not os.path.exists(os.path.join(root, "dev", f"nvidia{position}")):
            return []
        return [{"gpu": str(position), "uuid": ""}]
    if len(visible) == 1:
        position = 0
    if position is None or position >= len(visible):
        return []
    entry = visible[position]
    if entry.isdecimal():
        return [{"gpu": entry, "uuid": ""}]
    return [{"gpu": "", "uuid": entry}] if entry.startswith(("GPU-", "MIG-")) else []


def _whole(environment: Mapping[str, str], variable: str) -> int | None:
    text = environment.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= _MAX_RANK):
        complain(f"{variable} is {text!r:.80}; expected a whole number from 0 to {_MAX_RANK}, it is not used")
        return None
    return int(text)


def _account() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # a container's user often has no entry
        return ""
