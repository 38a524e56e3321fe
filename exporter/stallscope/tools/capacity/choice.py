"""Select GPUs that meet a request, and explain why the others do not. No state, no files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stallscope.common.formatting import duration, percent, readable, size
from stallscope.tools.capacity.claims import SETTLED_SECONDS, Claim
from stallscope.tools.capacity.gpu import GpuNow, Holder
from stallscope.tools.capacity.host import Host

_UNOCCUPIED = 512 << 20
"""Bytes in use on a GPU that counts as free: those of a desktop."""
_RESERVED = 1 << 30
"""Bytes that a driver may reserve; assumed where it does not report them. Data-centre GPUs have up to 763 MiB."""
_HOLDERS_SHOWN = 3


@dataclass(frozen=True)
class Wanted:
    """Requirements of a pick."""

    count: int = 1
    memory: int = 0
    """Bytes on each GPU."""
    exclusive: bool = False
    """True if no other program may be on the GPU."""
    max_utilization: float = 0.5
    cores: float = 0.0
    """Idle cores of the host for each GPU."""
    host_memory: int = 0
    """Bytes of the host's memory for each GPU."""
    spread: bool = False
    """True to prefer the GPU with the most free memory; otherwise the tightest fit."""


@dataclass(frozen=True)
class Assessment:
    """One GPU and the reasons against it."""

    gpu: GpuNow
    room: int | None
    """Bytes that are neither in use nor claimed; None if unknown."""
    claims: tuple[Claim, ...]
    against: tuple[str, ...]
    """Reasons against it; empty if the GPU is suitable."""
    possible: bool
    """True if the GPU may become suitable when others release it."""


def judge(
    gpus: Sequence[GpuNow], wanted: Wanted, claims: Iterable[Claim], allowed: frozenset[str] | None = None
) -> list[Assessment]:
    """Return every GPU with the reasons against it.

    Args:
        gpus: as they are now.
        wanted: the requirements.
        claims: all valid claims.
        allowed: UUIDs to choose from; None for all.
    """
    by_uuid: dict[str, list[Claim]] = {}
    for claim in claims:
        by_uuid.setdefault(claim.uuid, []).append(claim)
    found = []
    for gpu in gpus:
        mine = tuple(by_uuid.get(gpu.identity.uuid, ()))
        room = _room(gpu, mine)
        against = tuple(_against(gpu, wanted, mine, room, allowed))
        found.append(Assessment(gpu, room, mine, against, _possible(gpu, wanted, allowed)))
    return found


def choose(judged: Sequence[Assessment], wanted: Wanted) -> tuple[GpuNow, ...]:
    """Return the GPUs to take; empty if too few are suitable.

    Unclaimed GPUs come first, then the tightest fit, so that GPUs with much free memory are left for larger programs.
    Several GPUs are taken from one NUMA node if one has enough.
    """
    fitting = [each for each in judged if not each.against]
    if len(fitting) < wanted.count:
        return ()

    def rank(each: Assessment) -> tuple[float, ...]:
        room = float("inf") if each.room is None else float(each.room)
        return (len(each.claims), -room if wanted.spread else room, each.gpu.identity.index)

    fitting.sort(key=rank)
    for first in fitting:
        node = first.gpu.numa_node
        near = [each.gpu for each in fitting if each.gpu.numa_node == node]
        if node is not None and len(near) >= wanted.count:
            return tuple(near[: wanted.count])
    return tuple(each.gpu for each in fitting[: wanted.count])


def never(judged: Sequence[Assessment], host: Host, wanted: Wanted) -> str:
    """Return why the request can never be met, even on an idle machine; empty if it may be."""
    possible = sum(each.possible for each in judged)
    if possible < wanted.count:
        return f"{possible} of these GPUs can ever qualify, {wanted.count} wanted"
    cores, memory = wanted.cores * wanted.count, wanted.host_memory * wanted.count
    if cores > host.cores:
        return f"the host has {host.cores:g} cores for programs, {cores:g} wanted"
    if host.memory_total is not None and memory > host.memory_total:
        return f"the host has {size(host.memory_total)} of memory, {size(memory)} wanted"
    return ""


def host_against(host: Host, wanted: Wanted) -> tuple[str, ...]:
    """Return the requirements that the host does not meet."""
    found = []
    cores, memory = wanted.cores * wanted.count, wanted.host_memory * wanted.count
    if cores and host.idle_cores is not None and host.idle_cores < cores:
        found.append(f"{host.idle_cores:.1f} of the host's {host.cores:g} cores idle, {cores:g} wanted")
    if memory and host.memory_available is not None and host.memory_available < memory:
        found.append(f"{size(host.memory_available)} of the host's memory is free, {size(memory)} wanted")
    return tuple(found)


def held_by(holders: Sequence[Holder]) -> str:
    """Who holds a GPU's memory, the largest first."""
    largest = sorted(holders, key=lambda holder: -(holder.memory or 0))
    parts = [
        " ".join(
            part
            for part in (
                readable(holder.user),
                readable(holder.command),
                f"(process {holder.pid})",
                size(holder.memory) if holder.memory is not None else "",
            )
            if part
        )
        for holder in largest[:_HOLDERS_SHOWN]
    ]
    more = len(largest) - _HOLDERS_SHOWN
    return ", ".join([*parts, *([f"{more} more"] if more > 0 else [])])


def _room(gpu: GpuNow, claims: Sequence[Claim]) -> int | None:
    """Free memory less what was claimed and is not in use yet."""
    if gpu.memory_free is None:
        return None
    outstanding = 0
    for claim in claims:
        taken = sum(holder.memory or 0 for holder in gpu.holders if claim.pid in holder.ancestors)
        outstanding += max(0, claim.memory - taken)
    return max(0, gpu.memory_free - outstanding)


def _possible(gpu: GpuNow, wanted: Wanted, allowed: frozenset[str] | None) -> bool:
    if gpu.trouble:
        return True  # it may recover, and its memory is unknown
    return (
        not gpu.cut
        and (allowed is None or gpu.identity.uuid in allowed)
        and not (gpu.identity.mig and wanted.count > 1)
        and (gpu.memory_total is None or gpu.memory_total >= wanted.memory)
    )


def _against(
    gpu: GpuNow, wanted: Wanted, claims: Sequence[Claim], room: int | None, allowed: frozenset[str] | None
) -> Iterable[str]:
    if gpu.trouble:
        yield f"down: {gpu.trouble}"
        return
    if gpu.cut:
        yield "MIG is on: only its instances can be taken"
        return
    if allowed is not None and gpu.identity.uuid not in allowed:
        yield "CUDA_VISIBLE_DEVICES leaves it out"
    if gpu.identity.mig and wanted.count > 1:
        yield "a program can use one MIG instance only, and several GPUs are wanted"
    yield from gpu.faults
    if gpu.throttled:
        yield f"it is slowed down now ({', '.join(sorted(gpu.throttled))})"
    yield from _against_sharing(gpu, wanted, claims)
    yield from _against_memory(gpu, wanted, claims, room)
    yield from _against_load(gpu, wanted)


def _against_sharing(gpu: GpuNow, wanted: Wanted, claims: Sequence[Claim]) -> Iterable[str]:
    computing = [holder for holder in gpu.holders if holder.kind != "graphics"]
    if gpu.compute_mode == "prohibited":
        yield "its compute mode is prohibited: nvidia-smi -c DEFAULT lets programs use it"
    if gpu.compute_mode in ("exclusive_process", "exclusive_thread") and computing and not gpu.mps:
        yield f"its compute mode is {gpu.compute_mode}, and it is in use: {held_by(computing)}"
    for claim in claims:
        if wanted.exclusive or claim.exclusive or claim.age < SETTLED_SECONDS:
            yield f"claimed {claim.described}"
    if wanted.exclusive and computing:
        yield f"in use: {held_by(computing)}"


def _against_memory(gpu: GpuNow, wanted: Wanted, claims: Sequence[Claim], room: int | None) -> Iterable[str]:
    if gpu.memory_free is None or gpu.memory_total is None or room is None:
        if wanted.memory:
            yield "its free memory is unknown"
        return
    if wanted.exclusive and _in_use(gpu) and all(holder.kind == "graphics" for holder in gpu.holders):
        used = size(gpu.memory_used or 0)
        yield f"{used} in use: {held_by(gpu.holders) or 'by processes that are not visible from here'}"
    if room < wanted.memory:
        parts = [f"{size(gpu.memory_free)} of {size(gpu.memory_total)} free, {size(wanted.memory)} wanted"]
        if gpu.holders:
            parts.append(held_by(gpu.holders))
        if room < gpu.memory_free:
            parts.append(f"{size(gpu.memory_free - room)} more claimed by {_claimers(claims)}")
        yield "; ".join(parts)


def _against_load(gpu: GpuNow, wanted: Wanted) -> Iterable[str]:
    occupied = bool(gpu.holders) or _in_use(gpu)
    busy, seconds, what = gpu.busy_now, 0.0, "busy"
    if occupied and gpu.busy is not None and gpu.busy > (busy or 0.0):
        busy, seconds = gpu.busy, gpu.busy_seconds
    if gpu.mps and gpu.sm_active is not None:
        # Only under MPS can programs use a GPU's parts at the same time; otherwise they take turns.
        busy, seconds, what = gpu.sm_active, 0.0, "SMs active"
    if busy is None:
        if occupied:
            yield "it is in use, and its utilisation is unknown"
    elif busy > wanted.max_utilization:
        over = f" over {duration(round(seconds))}" if seconds >= 1 else " now"
        runs = f" (run {', '.join(gpu.runs)})" if gpu.runs else ""
        yield f"{what} {percent(busy)}{over}, {percent(wanted.max_utilization)} allowed{runs}"


def _in_use(gpu: GpuNow) -> bool:
    """Return True if more memory is in use than a desktop needs; memory that the driver reserves is not in use."""
    if gpu.memory_used is None or gpu.memory_total is None:
        return False
    least = _UNOCCUPIED if gpu.memory_reserved is not None else _RESERVED
    return gpu.memory_used >= min(least, gpu.memory_total // 8)


def _claimers(claims: Sequence[Claim]) -> str:
    return ", ".join(sorted({claim.user for claim in claims}))
