"""Identity of this process, except its rank and its GPU: the `info` of the report."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.tolerance import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax"}
MEGATRON = ("megatron.core.parallel_state", "megatron.mpu.initialize")
"""The second is Megatron-LM's before Megatron Core."""
DIVIDING = (*MEGATRON, "deepspeed.utils.groups", "torch.distributed.distributed_c10d")
"""Modules that divide the ranks into groups; see `pipeline`."""
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Environment variables with the GPUs of a process; see `devices`."""
_MAX_FOLDERS = 32
"""Folders above the program's in which a repository is looked for."""


def information(environment: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """Return the report's `info`, without ranks."""
    job_class = environment.get("STALLSCOPE_JOB_CLASS", "").strip() or "production"
    if job_class not in ("production", "experiment"):
        complain(f"STALLSCOPE_JOB_CLASS is {job_class!r:.80}; expected production or experiment, production is taken")
        job_class = "production"
    namespace, pod = _pod(environment, root)
    return {
        "framework": framework(),
        "hostname": socket.gethostname(),
        "namespace": namespace,
        "pod": pod,
        "slurm_job": environment.get("SLURM_JOB_ID", ""),
        "user": environment.get("USER", "") or environment.get("LOGNAME", "") or _account(),
        "git_commit": environment.get("STALLSCOPE_GIT_COMMIT", "").strip() or _commit(),
        "job_class": job_class,
        "pipeline_stage": environment.get("STALLSCOPE_PIPELINE_STAGE", "").strip(),
        "tensor_rank": "",
        "data_rank": "",
    }


def framework() -> str:
    """Return the framework that the program has imported, empty without one."""
    return next((name for module, name in _FRAMEWORKS.items() if module in sys.modules), "")


def gpu_framework() -> Any:
    """Return PyTorch once it uses a GPU, else None. Querying it earlier would make it use one."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while it is being imported
    return torch if cuda is not None and cuda.is_initialized() else None


def gpu_position() -> int | None:
    """Return which of its GPUs PyTorch computes on; None until it uses one."""
    torch = gpu_framework()
    return None if torch is None else int(torch.cuda.current_device())


def in_pod(environment: Mapping[str, str]) -> bool:
    """Return True if a kubelet started this process."""
    return bool(environment.get("KUBERNETES_SERVICE_HOST"))


def _pod(environment: Mapping[str, str], root: str) -> tuple[str, str]:
    """Return namespace and name of the pod that this process runs in, empty where they are not certain."""
    namespace, name = (environment.get(variable, "").strip() for variable in ("POD_NAMESPACE", "POD_NAME"))
    if in_pod(environment) and not (namespace and name):
        with standard_library():
            from stallscope.training.shim import pod

        namespace, name = namespace or pod.namespace(root), name or pod.name(environment, root)
    return namespace, name


def _commit() -> str:
    """Return the commit of the program's folder, or of the working folder if the program is not a file."""
    script = (getattr(sys, "argv", None) or [""])[0]
    return commit(os.path.dirname(script) if os.path.isfile(script) else ".")


def commit(folder: str) -> str:
    """Return the checked-out commit of the repository with this folder; empty without one, or if it can't be read."""
    with suppress(OSError, ValueError):
        folder = os.path.realpath(folder)
        for _ in range(_MAX_FOLDERS):
            if os.path.exists(place := os.path.join(folder, ".git")):
                with standard_library():
                    from stallscope.training.shim.repository import checked_out

                return checked_out(place)
            if folder == (folder := os.path.dirname(folder)):
                break
    return ""


def _account() -> str:
    try:
        with standard_library():
            import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # a container's user often has no entry
        return ""
