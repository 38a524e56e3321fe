"""Ranks that take more than reading variables: Lightning, TensorFlow, SageMaker, TPUs, Ray Train."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.launch import Launch, whole
from stallscope.training.shim.tolerance import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stallscope.training.shim.launch import Environment

_NODE_RANKS = (
    "NODE_RANK",  # Lightning
    "GROUP_RANK",  # torchrun
    "PET_NODE_RANK",  # Kubeflow
    "CROSS_RANK",  # DeepSpeed, Horovod
    "SKYPILOT_NODE_RANK",
    "SLURM_NODEID",
    "JOB_COMPLETION_INDEX",
)
"""Variables with the number of the node among the nodes of the job; the first that is set counts."""
_RANKS_OF_NODE = ("LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE", "LOCAL_SIZE")
_NODES = (
    "GROUP_WORLD_SIZE",
    "PET_NNODES",
    "CROSS_SIZE",
    "NNODES",
    "NUM_NODES",
    "SKYPILOT_NUM_NODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
)


def child(environment: Environment, outer: Launch | None) -> Launch | None:
    """Return the rank of a process that has LOCAL_RANK and no RANK.

    Lightning starts the ranks of a node itself, with LOCAL_RANK, NODE_RANK and WORLD_SIZE, and deletes WORLD_SIZE
    after the training. They inherit the variables of the process that started them, such as those of a Slurm step of
    one task. A script may also set LOCAL_RANK from a launcher that counts all ranks.

    Args:
        environment: the environment.
        outer: what another launcher set; used if its world is as large.
    """
    local, world = whole(environment, "LOCAL_RANK"), whole(environment, "WORLD_SIZE") or None
    if local is None or (outer is not None and (outer.world_size or 1) >= (world or 2)):
        return None
    node = _hint(environment, _NODE_RANKS)
    if world is None:
        is_launched = local > 0 or (outer is None and bool(environment.get("MASTER_ADDR")))
        return Launch(local, local, None) if is_launched and not node else None
    if local >= world:
        warn(f"LOCAL_RANK is {local}, in a world of {world}; the world stays unknown")
        return Launch(local, local, None)
    return Launch(node * _ranks_of_node(environment, world, node, local) + local, local, world)


def _ranks_of_node(environment: Environment, world: int, node: int, local: int) -> int:
    """Return the number of ranks of each node, with a warning where the variables leave it open."""

    def is_possible(size: int) -> bool:
        return size > local and world % size == 0 and world // size > node

    nodes = _hint(environment, _NODES)
    given = _hint(environment, _RANKS_OF_NODE) or (world // nodes if nodes else 0)
    if is_possible(given):
        return given
    possible = [size for size in range(1, world + 1) if is_possible(size)]
    visible = len(environment.get("CUDA_VISIBLE_DEVICES", "").split(","))
    size = visible if visible > 1 and visible in possible else max(possible, default=world)
    if node and len(possible) != 1:
        warn(
            f"LOCAL_RANK, NODE_RANK and WORLD_SIZE leave open how many ranks a node has; {size} is assumed: set "
            "LOCAL_WORLD_SIZE, or STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE"
        )
    return size


def launch_of(environment: Environment) -> Launch | None:
    """Return what TensorFlow, SageMaker, a TPU or Ray Train has set; None without one of them."""
    return _tensorflow(environment) or _sagemaker(environment) or _tpu(environment) or _ray()


def _tensorflow(environment: Environment) -> Launch | None:
    """TF_CONFIG numbers tasks by their kind: the chief comes first, then workers, then the others as it lists them."""
    content = json_value(environment, "TF_CONFIG", dict)
    try:
        task, cluster = content["task"], content["cluster"]
        first = ("chief", "master", "worker")
        kinds = [*[kind for kind in first if kind in cluster], *[kind for kind in cluster if kind not in first]]
        if task["type"] not in kinds:  # an evaluator is not part of the cluster
            return None
        before = sum(len(cluster[kind]) for kind in kinds[: kinds.index(task["type"])])
        return Launch(before + int(task["index"]), None, sum(len(cluster[kind]) for kind in kinds))
    except (KeyError, TypeError, ValueError):
        return None


def _sagemaker(environment: Environment) -> Launch | None:
    hosts, own = json_value(environment, "SM_HOSTS", list), environment.get("SM_CURRENT_HOST", "")
    return Launch(hosts.index(own), None, len(hosts)) if own in hosts else None


def _tpu(environment: Environment) -> Launch | None:
    rank = whole(environment, "TPU_WORKER_ID")
    hosts = len(environment.get("TPU_WORKER_HOSTNAMES", "").split(","))
    if rank is None or rank >= hosts:
        return None
    slices = whole(environment, "MEGASCALE_NUM_SLICES") or 1
    return Launch((whole(environment, "MEGASCALE_SLICE_ID") or 0) * hosts + rank, None, hosts * slices)


def _ray() -> Launch | None:
    """Ray Train reports its values only in Python, and only inside of its workers."""
    with suppress(Exception):
        context: Any = ray_context()
        if context is not None:
            return Launch(int(context.get_world_rank()), int(context.get_local_rank()), int(context.get_world_size()))
    return None


def ray_context() -> Any:
    """Return the context of a worker of Ray Train; None elsewhere."""
    train = sys.modules.get("ray.train")
    return train.get_context() if train is not None and script_name() == "default_worker" else None


def script_name() -> str:
    """Return the name of the program's file, without its suffix."""
    arguments: list[str] = getattr(sys, "argv", None) or [""]
    return os.path.basename(arguments[0]).removesuffix(".py")


def json_value(environment: Environment, variable: str, kind: type) -> Any:
    """A variable in JSON; an empty value of the kind where it isn't one."""
    text = environment.get(variable, "")
    if text and len(text) < 1 << 20:
        with standard_library():
            import json

        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            if isinstance(found, kind):
                return found
    return kind()


def _hint(environment: Environment, variables: tuple[str, ...]) -> int:
    """Return the first of several variables that is a number, else 0. Values such as `auto` and `1:4` are valid too."""
    values = [environment.get(variable, "").strip() for variable in variables]
    return next((int(value) for value in values if value.isascii() and value.isdecimal() and len(value) < 7), 0)
