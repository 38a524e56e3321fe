"""The name of a run where the program gives none: the script, and what sets this job apart."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import MAX_NAME_LENGTH
from stallscope.training.shim.identity import in_pod
from stallscope.training.shim.launched import launch_of
from stallscope.training.shim.other_launchers import json_value, ray_context, script_name
from stallscope.training.shim.tolerance import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stallscope.training.shim.launch import Environment

_JOBS = (
    ("SLURM_JOB_ID_HET_GROUP_0",),  # a job of several components has one number for each
    ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    ("SLURM_JOB_ID",),
    ("LSB_JOBID",),
    ("PBS_JOBID",),
    ("FLUX_JOB_ID",),
    ("TRAINING_JOB_NAME",),  # SageMaker
    ("AZUREML_RUN_ID",),
    ("CLOUD_ML_JOB_ID",),  # Vertex AI
    ("TORCHELASTIC_RUN_ID",),  # unless torchrun made it up
)
"""Variables that together name the job, the same on all ranks and in no other job."""

_MEETING_POINTS = (
    ("PMIX_NAMESPACE",),
    ("MASTER_ADDR", "MASTER_PORT"),
    ("JAX_COORDINATOR_ADDRESS",),
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ("TF_CONFIG cluster",),
    ("TPU_WORKER_HOSTNAMES",),
)
"""Where all ranks meet, and so the last resort: the same on all of them, if it says nothing to people."""

_ROLES = r"-(?:(?:master|worker|chief|ps|evaluator|server|scheduler)-\d+|launcher(?:-[a-z0-9]{5})?)$"
"""How Kubeflow's PyTorchJob, TFJob, MPIJob and their like name a job's pods."""
_GENERATED = r"-[bcdfghjklmnpqrstvwxz2456789]{5}$"
"""Suffix of a pod's name in Kubernetes; it contains no vowels."""
_REPLICA_SET = r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}$"
_ORDINAL = r"-\d+$"


def run_name(environment: Environment, world_size: int, script: str, start: float) -> str:
    """Find the run's name where the program gave none: STALLSCOPE_RUN, or the script and what sets this job apart.

    All ranks of a run must agree on it. So it is the job's number or name; for ranks without either, a short hash of
    where they meet; and only for a process that is alone, its start and number, which are the same for every run that
    this process begins.
    """
    if given := label(environment.get("STALLSCOPE_RUN", ""), MAX_NAME_LENGTH):
        return given
    name = _program(environment, script)
    launch = launch_of(environment)
    alone = world_size <= 1 and (launch is None or launch.world_size is not None)
    job = _job(environment, alone) or _torchrun(environment) or ("" if alone else _meeting_point(environment))
    if job:
        return f"{name}-{job}"
    return f"{name}-{_life(start)}" if alone else name


def _program(environment: Environment, script: str) -> str:
    """Return the command line, for people; empty where a Ray worker hides it."""
    folder, name = os.path.split(script)
    if name == "__main__.py":
        name = os.path.basename(folder)
    name = name.removesuffix(".py").strip("-") or "python"
    if name == "ipykernel_launcher":
        notebook = os.path.basename(environment.get("JPY_SESSION_NAME", ""))
        return os.path.splitext(notebook)[0] or "notebook"
    if name == "default_worker":
        with suppress(Exception):
            return str(ray_context().get_experiment_name() or "ray")
        return "ray"
    return "python" if name == "c" else name


def _job(environment: Environment, alone: bool) -> str:
    for variables in _JOBS:
        parts = [environment.get(variable, "").strip() for variable in variables]
        if all(part not in ("", "none") and not _is_uuid(part) for part in parts):
            job = "_".join(parts)
            step = environment.get("SLURM_STEP_ID", "")
            if alone and variables[0].startswith("SLURM_") and len(step) < 7 and step.isdecimal():
                job = f"{job}.{step}"  # steps of one rank each are a sweep
            return job
    return _ray_job() or _pod_job(environment, alone)


def _torchrun(environment: Environment) -> str:
    """Return the identifier of one torchrun launch, constant through its restarts, without a job name."""
    identity = environment.get("TORCHELASTIC_RUN_ID", "").strip()
    if _is_uuid(identity):
        return identity[:8]
    folder, attempt, _ = environment.get("TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")
    alone = environment.get("GROUP_WORLD_SIZE", "") == "1"  # else every node has a folder of its own
    return _hashed(folder) if alone and attempt else ""


def _is_uuid(text: str) -> bool:
    return len(text) == 36 and [len(part) for part in text.split("-")] == [8, 4, 4, 4, 12]


def _hashed(text: str) -> str:
    with standard_library():
        import binascii

    return f"{binascii.crc32(text.encode(errors='replace')):08x}"


def _ray_job() -> str:
    with suppress(Exception):
        context: Any = ray_context()
        if context is not None and (trial := context.get_trial_id()):
            return str(trial)
    with suppress(Exception):
        if script_name() == "default_worker":
            return str(sys.modules["ray"].get_runtime_context().get_job_id())
    return ""


def _pod_job(environment: Environment, alone: bool) -> str:
    """Return the job of this pod, if the pod's name contains it."""
    with standard_library():
        import re  # rarely needed, and not quick to import

    if leader := environment.get("LWS_LEADER_ADDRESS", "").strip():
        return leader.partition(".")[0]
    if not in_pod(environment):
        return ""
    pod = environment.get("POD_NAME", "").strip() or environment.get("HOSTNAME", "").strip()
    if re.search(_ROLES, pod):
        return re.sub(_ROLES, "", pod)
    # Jobs of a JobSet, and pods of a StatefulSet, share with the host where they meet what is the set's name.
    host, _, rest = environment.get("MASTER_ADDR", "").partition(".")
    domain = rest.partition(".")[0]
    if domain and not domain.isdecimal() and pod.startswith(f"{domain}-"):
        return domain
    index = environment.get("JOB_COMPLETION_INDEX", "")
    named = re.sub(_GENERATED, "", pod)
    if index and named.endswith(f"-{index}"):
        return named.removesuffix(f"-{index}")
    if named != pod:
        return "" if re.search(_REPLICA_SET, named) else named  # a Deployment's pod is where people try things
    if not alone and re.search(_ORDINAL, pod) and re.sub(_ORDINAL, "", pod) == re.sub(_ORDINAL, "", host):
        return re.sub(_ORDINAL, "", pod)
    return ""


def _meeting_point(environment: Environment) -> str:
    for variables in _MEETING_POINTS:
        if variables == ("TF_CONFIG cluster",):
            place = str(json_value(environment, "TF_CONFIG", dict).get("cluster") or "")
        else:
            place = ":".join(environment.get(variable, "").strip() for variable in variables).strip(":")
        if not place:
            continue
        if place.startswith(("127.", "localhost", "::1", "[::1]")):  # every machine has such a place
            with standard_library():
                import socket

            place = f"{socket.gethostname()} {place}"
        return _hashed(place)
    return ""


_lives: dict[int, str] = {}


def _life(start: float) -> str:
    """Return an identifier of this process that stays the same when a notebook's cell runs again."""
    pid = os.getpid()
    if pid not in _lives:
        _lives[pid] = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(start))}-{pid}"
    return _lives[pid]
