"""Values that the launcher of this process has set.

The first launcher of `LAUNCHERS` that gives a rank settles rank, local rank and world: what the user says, then what
is closest to the training process, since one launcher often runs inside another (torchrun inside Slurm). A program
that starts its ranks itself, as Lightning does, sets only a part of torchrun's variables (`other_launchers`). A larger
process group of PyTorch overrides a launcher that started one process for each node.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.launch import Launch, whole
from stallscope.training.shim.launch_variables import OTHER_VARIABLES, RESTART_VARIABLES
from stallscope.training.shim.tolerance import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stallscope.training.shim.launch import Environment


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


def ranks(environment: Environment) -> tuple[int, int | None, int]:
    """Find the global rank, the local rank (None if unknown) and the world's size.

    A process without a rank is rank 0 of 1. Variables that contradict each other are warned of, once.
    """
    launch = launch_of(environment)
    if not environment.get(LAUNCHERS[0].rank):
        launch = _process_group(launch)
    if launch is None:
        world = whole(environment, "WORLD_SIZE") or 1
        if world > 1:
            warn(
                f"WORLD_SIZE is {world}, and no variable has the rank of this process; a run of one rank is reported: "
                "set STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE, or begin the run after the process group is initialized"
            )
        return 0, None, 1
    return launch.rank, launch.local_rank, launch.world_size or 1


def restarts(environment: Environment) -> int:
    """Return how often the launcher says that it restarted this rank."""
    return sum(whole(environment, variable) or 0 for variable in RESTART_VARIABLES)


def launch_of(environment: Environment) -> Launch | None:
    """Return what the launcher of this process has set; None without one."""
    found = _by_variables(environment)
    is_child = environment.get("LOCAL_RANK") and (found is None or found[0] not in LAUNCHERS[:2])
    is_other = found is None and (
        "ray.train" in sys.modules or any(environment.get(variable) for variable in OTHER_VARIABLES)
    )
    if is_child or is_other:
        with standard_library():
            from stallscope.training.shim import other_launchers

        outer = None if found is None else found[1]
        if is_child and (child := other_launchers.child(environment, outer)) is not None:
            return child
        if is_other:
            return other_launchers.launch_of(environment)
    return None if found is None else _agreed(environment, *found)


def _by_variables(environment: Environment) -> tuple[Launcher, Launch] | None:
    for launcher in LAUNCHERS:
        rank = whole(environment, launcher.rank)
        if rank is None or (launcher.name == "Slurm" and rank == 0 and not _slurm_step(environment)):
            continue
        local = next((found for name in launcher.local_rank if (found := whole(environment, name)) is not None), None)
        world = next((found for name in launcher.world_size if (found := whole(environment, name))), None)
        if launcher.name == "PMIx":  # which srun --mpi=pmix sets as well
            world = whole(environment, "SLURM_STEP_NUM_TASKS")
        return launcher, Launch(rank, local, world)
    return None


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
            more = next((found for name in other.world_size if (found := whole(environment, name))), 1)
            if more > 1:
                warn(
                    f"{launcher.name} sets a world of 1, {other.name} of {more}; the former is used: unset stale "
                    "variables, or set STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE"
                )
    return Launch(rank, local, world)


def _slurm_step(environment: Environment) -> bool:
    """Return True if srun started this process; a batch script is process 0 of a job of many tasks, and yet single."""
    return any(environment.get(name) for name in ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"))
