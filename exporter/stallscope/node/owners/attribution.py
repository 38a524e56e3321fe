"""Attribute GPUs to owners: join the data of the driver, the orchestrator and `/proc`, without state or files.

Only separable values are split. Memory belongs to its process; a value of the whole GPU is never assigned to each of
several owners. Values without an owner have empty labels. Owners never sum to more than the memory in use: where the
driver counts memory that processes share for each of them, every owner is reduced in proportion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.owners.pod_resources import Container
from stallscope.node.owners.processes import Process

MOST_OWNERS = 64
"""Maximum number of owners of one GPU; values of further owners have no owner."""
_TOLERANCE = 2**20
"""Unattributed bytes below this number have no series."""
_SHORT_ID = 12
"""Digits of a container's id, as its runtime shows it."""
_LONGEST_HOST_NAME = 63
"""Kubernetes truncates a longer pod name in the host name."""


class Owner(NamedTuple):
    """The holder of a GPU, in the order of the labels; fields that do not apply are empty."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    slurm_job: str = ""
    user: str = ""


UNKNOWN_OWNER = Owner()
"""The owner of values without a known owner."""

Problem = tuple[str, str]
"""A reason, as in `attribution_errors_total`, and the affected process or GPU."""


class Share(NamedTuple):
    """One owner's use of one GPU."""

    owner: Owner
    pids: tuple[int, ...]
    memory: int | None
    """Bytes; None if the owner has no process, or the driver does not report the memory of a process."""


class Attribution(NamedTuple):
    """The owners of one GPU, and the problems in determining them."""

    shares: tuple[Share, ...]
    """One for each owner."""
    unattributed: int | None
    """Bytes in use without an owner; None if there are no such bytes, or if an owner may hold them."""
    problems: frozenset[Problem]


def pods_by_uid(containers: Iterable[Container], processes: Iterable[Process]) -> Mapping[str, tuple[Container, ...]]:
    """Return the containers of each pod by its UID in cgroups, from processes whose environment names the pod.

    Ambiguous pods are omitted.
    """
    containers = tuple(containers)
    named: dict[str, tuple[Container, ...]] = {}
    for process in processes:
        if process.pod_uid and process.pod_uid not in named:
            mine = tuple(each for each in containers if _names_pod(process, each))
            if mine and len({each[:2] for each in mine}) == 1:
                named[process.pod_uid] = mine
    return named


def attribute(
    occupancy: Occupancy,
    holders: Sequence[Container],
    processes: Mapping[int, Process],
    pods: Mapping[str, tuple[Container, ...]],
    jobs: Sequence[Owner] = (),
) -> Attribution:
    """Determine the owners of one GPU.

    Args:
        occupancy: memory and processes, as the driver reports them.
        holders: the containers to which the orchestrator allocated the GPU.
        processes: visible processes by process ID.
        pods: see `pods_by_uid`.
        jobs: the Slurm jobs to which the GPU is allocated.
    """
    memory = _memory_by_pid(occupancy)
    uuid = occupancy.identity.uuid
    problems: set[Problem] = set()
    pids: dict[Owner, list[int]] = {**{Owner(*container): [] for container in holders}, **{job: [] for job in jobs}}
    unknown: list[int] = []
    for pid in memory:
        process = processes.get(pid)
        if process is None:
            problems.add(("pid_not_visible", str(pid)))
        owner = _owner(process, holders, pods)
        if owner is not None and owner.slurm_job:
            owner = next((job for job in jobs if job.slurm_job == owner.slurm_job), owner)
        (unknown if owner is None else pids.setdefault(owner, [])).append(pid)
    shown = sorted(pids, key=lambda owner: (not owner.pod, owner))
    problems |= {("too_many_owners", f"{uuid} {'/'.join(owner)}") for owner in shown[MOST_OWNERS:]}
    shares: list[Share] = []
    for owner in shown[:MOST_OWNERS]:
        mine = pids[owner]
        reported = [each for pid in mine if (each := memory[pid]) is not None]
        complete = len(reported) == len(mine)
        problems |= {("memory_not_told", f"{uuid} {pid}") for pid in mine if memory[pid] is None}
        if owner.pod:
            users = {processes[pid].user if pid in processes else "" for pid in mine}
            owner = owner._replace(user=users.pop() if len(users) == 1 else "")
        shares.append(Share(owner, tuple(mine), sum(reported) if complete and mine else None))
    if unknown and not shares:
        shares.append(Share(UNKNOWN_OWNER, tuple(unknown), None))
    remaining = sum(memory[pid] or 0 for pid in unknown)
    if occupancy.memory_used is not None:
        shares = _at_most(occupancy.memory_used, shares)
        free = occupancy.memory_used - sum(share.memory or 0 for share in shares)
        # An owner whose memory is unknown may hold all that no other process holds.
        holds_unknown = any(share.pids and share.memory is None and share.owner != UNKNOWN_OWNER for share in shares)
        remaining = min(remaining, free) if holds_unknown else free
    return Attribution(tuple(shares), remaining if remaining >= _TOLERANCE else None, frozenset(problems))


def _at_most(used: int, shares: list[Share]) -> list[Share]:
    """Return the shares, reduced in proportion if they sum to more than the memory in use."""
    total = sum(share.memory or 0 for share in shares)
    if total <= used:
        return shares
    return [share if share.memory is None else share._replace(memory=share.memory * used // total) for share in shares]


def _memory_by_pid(occupancy: Occupancy) -> dict[int, int | None]:
    """Return the memory of each process. A process that computes and draws is listed twice, with its whole memory."""
    memory: dict[int, int | None] = {}
    for process in occupancy.processes:
        before = memory.get(process.pid)
        memory[process.pid] = process.memory if before is None else max(before, process.memory or 0)
    return memory


def _owner(
    process: Process | None, holders: Sequence[Container], pods: Mapping[str, tuple[Container, ...]]
) -> Owner | None:
    """Return the owner of a process, without the user if it is a pod; None if unknown."""
    if len({holder[:2] for holder in holders}) == 1 and (process is None or not process.outside_kubernetes):
        return _of_pod(holders)
    if process is None:
        return None
    mine = [holder for holder in holders if _names_pod(process, holder)] or [
        holder for holder in holders if holder in pods.get(process.pod_uid, ())
    ]
    if not process.outside_kubernetes and len({holder[:2] for holder in mine}) == 1:
        return _of_pod(mine)
    if process.slurm_job:
        return Owner(slurm_job=process.slurm_job, user=process.user)
    owner = Owner(container=process.container[:_SHORT_ID], user=process.user)
    return None if owner == UNKNOWN_OWNER else owner


def _of_pod(containers: Sequence[Container]) -> Owner:
    """Return the pod as owner; with the container if only one container of the pod has the GPU."""
    first = containers[0]
    return Owner(first.namespace, first.pod, first.name if len(set(containers)) == 1 else "")


def _names_pod(process: Process, container: Container) -> bool:
    """Return True if the environment of the process names the container's pod."""
    if process.pod_namespace and process.pod_namespace != container.namespace:
        return False
    if process.pod_name:
        return process.pod_name == container.pod
    return bool(process.host_name) and process.host_name == container.pod[:_LONGEST_HOST_NAME].rstrip("-.")
