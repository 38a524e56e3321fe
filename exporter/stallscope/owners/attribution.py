"""Attributes GPUs to owners: joins the data of the driver, the orchestrator and `/proc`. No state, no files.

Only separable values are split. Memory belongs to its process; a value of the whole GPU is never assigned to each of
several owners. Values without an owner have empty labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stallscope.drivers.occupancy import Occupancy
from stallscope.owners.pod_resources import Container
from stallscope.owners.processes import Process

MOST_OWNERS = 64
"""Owners of one GPU that are shown; values of further ones have no owner."""
_TOLERANCE = 2**20
"""Bytes in use beyond those of all processes that are too few for a series."""
_SHORT_ID = 12
"""Digits of a container's id, as its runtime shows it."""
_LONGEST_HOST_NAME = 63
"""Kubernetes cuts a longer pod name for the host name."""


class Owner(NamedTuple):
    """Who holds a GPU; the parts that do not apply are empty. The order is that of the labels."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    slurm_job: str = ""
    user: str = ""


NOBODY = Owner()
"""The owner of values without a known owner."""

Problem = tuple[str, str]
"""A reason, as in `attribution_errors_total`, and what it befell."""


class Share(NamedTuple):
    """One owner's use of one GPU."""

    owner: Owner
    pids: tuple[int, ...]
    memory: int | None
    """Bytes; None if the owner has no process, or the driver does not report the memory of one."""


class Attribution(NamedTuple):
    """Everything found out of one GPU."""

    shares: tuple[Share, ...]
    """Who holds it."""
    unattributed: int | None
    """Bytes in use that are in no share; None where that is nothing, or not known."""
    problems: frozenset[Problem]


def pods_by_uid(containers: Iterable[Container], processes: Iterable[Process]) -> Mapping[str, tuple[Container, ...]]:
    """Learn which pod an id in cgroups stands for, from those processes that say their pod's name.

    Returns:
        The pod's containers by its id; ambiguous pods are left out.
    """
    containers = tuple(containers)
    named: dict[str, tuple[Container, ...]] = {}
    for process in processes:
        if process.pod_uid and process.pod_uid not in named:
            mine = tuple(each for each in containers if _says(process, each))
            if mine and len({each[:2] for each in mine}) == 1:
                named[process.pod_uid] = mine
    return named


def attribute(
    occupancy: Occupancy,
    holders: Sequence[Container],
    processes: Mapping[int, Process],
    pods: Mapping[str, tuple[Container, ...]],
) -> Attribution:
    """Say who holds one GPU.

    Args:
        occupancy: what the driver says.
        holders: the containers that the orchestrator gave the GPU to.
        processes: what is known of processes; those that can't be seen are missing.
        pods: see `pods_by_uid`.
    """
    memory = _memory_by_pid(occupancy)
    uuid = occupancy.identity.uuid
    problems: set[Problem] = set()
    pids: dict[Owner, list[int]] = {Owner(*container): [] for container in holders}
    unknown: list[int] = []
    for pid in memory:
        process = processes.get(pid)
        if process is None:
            problems.add(("pid_not_visible", str(pid)))
        owner = _owner(process, holders, pods)
        (unknown if owner is None else pids.setdefault(owner, [])).append(pid)
    shown = sorted(pids, key=lambda owner: (not owner.pod, owner))
    problems |= {("too_many_owners", f"{uuid} {'/'.join(owner)}") for owner in shown[MOST_OWNERS:]}
    shares: list[Share] = []
    attributed = 0
    for owner in shown[:MOST_OWNERS]:
        mine = pids[owner]
        reported = [each for pid in mine if (each := memory[pid]) is not None]
        complete = len(reported) == len(mine)
        problems |= {("memory_not_told", f"{uuid} {pid}") for pid in mine if memory[pid] is None}
        attributed += sum(reported) if complete else 0
        if owner.pod:
            users = {processes[pid].user if pid in processes else "" for pid in mine}
            owner = owner._replace(user=users.pop() if len(users) == 1 else "")
        shares.append(Share(owner, tuple(mine), sum(reported) if complete and mine else None))
    if unknown and not shares:
        shares.append(Share(NOBODY, tuple(unknown), None))
    used = occupancy.memory_used
    remaining = sum(memory[pid] or 0 for pid in unknown) if used is None else used - attributed
    return Attribution(tuple(shares), remaining if remaining >= _TOLERANCE else None, frozenset(problems))


def _memory_by_pid(occupancy: Occupancy) -> dict[int, int | None]:
    """Memory of each process: one that computes and draws is listed twice, both times with all it has."""
    memory: dict[int, int | None] = {}
    for process in occupancy.processes:
        before = memory.get(process.pid)
        memory[process.pid] = process.memory if before is None else max(before, process.memory or 0)
    return memory


def _owner(
    process: Process | None, holders: Sequence[Container], pods: Mapping[str, tuple[Container, ...]]
) -> Owner | None:
    """Return a pod's owner without its user, or any other with it; None if unknown."""
    if len({holder[:2] for holder in holders}) == 1 and (process is None or not process.outside_kubernetes):
        return _of_pod(holders)
    if process is None:
        return None
    mine = [holder for holder in holders if _says(process, holder)] or [
        holder for holder in holders if holder in pods.get(process.pod_uid, ())
    ]
    if not process.outside_kubernetes and len({holder[:2] for holder in mine}) == 1:
        return _of_pod(mine)
    if process.slurm_job:
        return Owner(slurm_job=process.slurm_job, user=process.user)
    owner = Owner(container=process.container[:_SHORT_ID], user=process.user)
    return None if owner == NOBODY else owner


def _of_pod(containers: Sequence[Container]) -> Owner:
    """The one pod; its container only where there is just one that has the GPU."""
    first = containers[0]
    return Owner(first.namespace, first.pod, first.name if len(set(containers)) == 1 else "")


def _says(process: Process, container: Container) -> bool:
    """Return True if the process' environment names the pod."""
    if process.pod_namespace and process.pod_namespace != container.namespace:
        return False
    if process.pod_name:
        return process.pod_name == container.pod
    return bool(process.host_name) and process.host_name == container.pod[:_LONGEST_HOST_NAME].rstrip("-.")
