"""Which rank of which job this process is, by what its launcher left in the environment.

The first launcher of `LAUNCHERS` that gives a rank settles rank, local rank and world: what the user says, then what
is closest to the training process, since one launcher often runs inside another (torchrun inside Slurm). A program
that starts its ranks itself, as Lightning does, sets only a part of torchrun's variables; see `_child`. A larger
process group of PyTorch overrides a launcher that started one process for each node.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.tolerance import complain, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Environment = Mapping[str, str]

_MAX_RANK = 1_000_000


class Launcher:
    """The variables of one launcher; of several names for one number, the first that is set counts."""

    __slots__ = ("local_rank", "name", "rank", "world_size")

    def __init__(self, name: str, rank: str, local_rank: tuple[str, ...], world_size: tuple[str, ...]) -> None:
        self.name = name
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size


LAUNCHERS = (
    Launcher("STALLSCOPE_RANK", "STALLSCOPE_RANK", ("STALLSCOPE_LOCAL_RANK",), ("STALLSCOPE_WORLD_SIZE",)),
    # Also Accelerate, DeepSpeed, Ray Train's TorchTrainer, PyTorchJob, SageMaker's torch_distributed.
    Launcher("torchrun", "RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    Launcher("Horovod", "HOROVOD_RANK", ("HOROVOD_LOCAL_RANK",), ("HOROVOD_SIZE",)),
    # MPI before Slurm: mpirun starts its daemons as Slurm's tasks, whose variables the ranks inherit.
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    Launcher("MVAPICH 3", "MVP_COMM_WORLD_RANK", ("MVP_COMM_WORLD_LOCAL_RANK",), ("MVP_COMM_WORLD_SIZE",)),
    # Also Intel MPI and Cray PALS.
    Launcher("MPICH", "PMI_RANK", ("MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    Launcher("Cray PALS", "PALS_RANKID", ("PALS_LOCAL_RANKID",), ()),
    Launcher("IBM jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_LOCAL_RANK",), ("JSM_NAMESPACE_SIZE",)),
    Launcher("Flux", "FLUX_TASK_RANK", ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    Launcher("Slurm", "SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    Launcher("PMIx", "PMIX_RANK", (), ()),
    Launcher("JAX", "JAX_PROCESS_ID", (), ("JAX_NUM_PROCESSES",)),
    Launcher("LeaderWorkerSet", "LWS_WORKER_INDEX", (), ("LWS_GROUP_SIZE",)),
    Launcher("SkyPilot", "SKYPILOT_NODE_RANK", (), ("SKYPILOT_NUM_NODES",)),
    Launcher("Kubernetes Job", "JOB_COMPLETION_INDEX", (), ()),
)

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

_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


class Launch:
    """Values of a launcher; None where it sets none."""

    __slots__ = ("local_rank", "rank", "world_size")

    def __init__(self, rank: int, local_rank: int | None, world_size: int | None) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size


def ranks(environment: Environment) -> tuple[int, int | None, int]:
    """Find the global rank, the local rank (None if unknown) and the world's size.

    A process that no launcher started is rank 0 of 1. Variables that contradict each other are warned of, once.
    """
    launch = launch_of(environment)
    if not environment.get(LAUNCHERS[0].rank):
        launch = _process_group(launch)
    if launch is None:
        world = _whole(environment, "WORLD_SIZE") or 1
        if world > 1:
            warn(
                f"WORLD_SIZE is {world}, and no variable has the rank of this process; a run of one rank is reported: "
                "set STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE, or begin the run after the process group is initialized"
            )
        return 0, None, 1
    return launch.rank, launch.local_rank, launch.world_size or 1


def local_rank(environment: Environment) -> int | None:
    """Return the local rank that a launcher has set; None without one."""
    launch = launch_of(environment)
    return None if launch is None else launch.local_rank


def restarts(environment: Environment) -> int:
    """Return how often the launcher says that it restarted this rank."""
    return sum(_whole(environment, variable) or 0 for variable in _RESTARTS)


def pod_name(environment: Environment, root: str = "/") -> str:
    """Name the pod that this process runs in, empty where that is not certain."""
    if given := environment.get("POD_NAME", "").strip():
        return given
    host = environment.get("HOSTNAME", "")
    if not in_pod(environment) or len(host) >= 63:  # a longer pod's name is cut for its host
        return ""
    index = environment.get("JOB_COMPLETION_INDEX", "")
    if index and host.endswith(f"-{index}"):  # an indexed job gives hosts other names than their pods
        return ""
    with suppress(OSError), open(os.path.join(root, "etc/hosts"), encoding="utf-8", errors="replace") as file:
        return host if file.readline().strip() == "# Kubernetes-managed hosts file." else ""  # the node's says so
    return ""


def in_pod(environment: Environment) -> bool:
    """Return True if a kubelet started this process."""
    return bool(environment.get("KUBERNETES_SERVICE_HOST"))


def launch_of(environment: Environment) -> Launch | None:
    """Return what the launcher of this process has set; None without one."""
    by_variables = _by_variables(environment)
    if by_variables is None or (by_variables[0].name != "torchrun" and by_variables[0] is not LAUNCHERS[0]):
        child = _child(environment, None if by_variables is None else by_variables[1])
        if child is not None:
            return child
    if by_variables is not None:
        return _agreed(environment, *by_variables)
    return _tensorflow(environment) or _sagemaker(environment) or _tpu(environment) or _ray()


def _by_variables(environment: Environment) -> tuple[Launcher, Launch] | None:
    for launcher in LAUNCHERS:
        rank = _whole(environment, launcher.rank)
        if rank is None or (launcher.name == "Slurm" and rank == 0 and not _slurm_step(environment)):
            continue
        local = next((found for name in launcher.local_rank if (found := _whole(environment, name)) is not None), None)
        world = next((found for name in launcher.world_size if (found := _whole(environment, name))), None)
        if launcher.name == "PMIx":  # which srun --mpi=pmix sets as well
            world = _whole(environment, "SLURM_STEP_NUM_TASKS")
        return launcher, Launch(rank, local, world)
    return None


def _child(environment: Environment, outer: Launch | None) -> Launch | None:
    """Return the rank of a process that has LOCAL_RANK and no RANK.

    Lightning starts the ranks of a node itself, with LOCAL_RANK, NODE_RANK and WORLD_SIZE, and deletes WORLD_SIZE
    after the training. They inherit the variables of the process that started them, such as those of a Slurm step of
    one task. A script may also set LOCAL_RANK from a launcher that counts all ranks.

    Args:
        environment: the environment.
        outer: what another launcher set; used if its world is as large.
    """
    local, world = _whole(environment, "LOCAL_RANK"), _whole(environment, "WORLD_SIZE") or None
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


def _process_group(launch: Launch | None) -> Launch | None:
    """Return the rank in PyTorch's default process group if it is larger than the launcher's world."""
    with suppress(Exception):
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
            if world > (1 if launch is None else launch.world_size or 1) and 0 <= rank < world:
                return Launch(rank, rank if launch is None else launch.local_rank, world)
    return launch


def _agreed(environment: Environment, launcher: Launcher, launch: Launch) -> Launch:
    """Return a launcher's values without impossible ones; warn if another launcher started a larger world."""
    rank, local, world = launch.rank, launch.local_rank, launch.world_size
    if world is not None and max(rank, local or 0) >= world:
        warn(f"{launcher.name} sets rank {rank}, local rank {local}, in a world of {world}; the world stays unknown")
        world = None
    for other in LAUNCHERS[1:] if world == 1 and launcher is not LAUNCHERS[0] else ():
        if environment.get(other.rank) and (other.name != "Slurm" or _slurm_step(environment)):
            more = next((found for name in other.world_size if (found := _whole(environment, name))), 1)
            if more > 1:
                warn(
                    f"{launcher.name} sets a world of 1, {other.name} of {more}; the former is used: unset stale "
                    "variables, or set STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE"
                )
    return Launch(rank, local, world)


def _slurm_step(environment: Environment) -> bool:
    """Return True if srun started this process; a batch script is process 0 of a job of many tasks, and yet single."""
    return any(environment.get(name) for name in ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"))


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
    rank = _whole(environment, "TPU_WORKER_ID")
    hosts = len(environment.get("TPU_WORKER_HOSTNAMES", "").split(","))
    if rank is None or rank >= hosts:
        return None
    slices = _whole(environment, "MEGASCALE_NUM_SLICES") or 1
    return Launch((_whole(environment, "MEGASCALE_SLICE_ID") or 0) * hosts + rank, None, hosts * slices)


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


def _whole(environment: Environment, variable: str) -> int | None:
    text = environment.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= _MAX_RANK):
        complain(f"{variable} is {text!r:.80}; expected a whole number from 0 to {_MAX_RANK}, it is not used")
        return None
    return int(text)
