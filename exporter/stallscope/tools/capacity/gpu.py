"""State of one GPU or MIG instance, from which a pick is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stallscope.common.formatting import gpu_name
from stallscope.node.drivers.device import ComputeMode, Identity, ProcessKind


class Holder(NamedTuple):
    """A process on a GPU. Unknown strings are empty."""

    pid: int
    memory: int | None
    """Bytes; None if unknown."""
    kind: ProcessKind = "compute"
    user: str = ""
    command: str = ""
    """Its name, as the kernel has it."""
    ancestors: frozenset[int] = frozenset()
    """The process itself, the one that started it, and so on."""


@dataclass(frozen=True)
class GpuNow:
    """Current state of one GPU. Unknown values are None; ratios are 0 to 1."""

    identity: Identity
    trouble: str = ""
    """Reason why all other values are unknown: the GPU is lost, hangs, or fails."""
    memory_total: int | None = None
    memory_free: int | None = None
    memory_reserved: int | None = None
    """Memory that the driver, or with unified memory the host, keeps for itself; neither free nor in use."""
    holders: tuple[Holder, ...] = ()
    busy: float | None = None
    """Share of time in which anything ran, over `busy_seconds` up to now."""
    busy_seconds: float = 0.0
    busy_now: float | None = None
    """Share of busy time over the last second or two; used if no process is on the GPU."""
    sm_active: float | None = None
    """Mean share of multiprocessors that were in use meanwhile."""
    compute_mode: ComputeMode | None = None
    throttled: frozenset[str] = frozenset()
    """Throttle reasons in force, apart from an ordinary power cap."""
    faults: tuple[str, ...] = ()
    """Faults of a GPU that still responds, each with the action to take."""
    runs: tuple[str, ...] = ()
    """Training runs on the GPU, as reported to the exporter."""
    cut: bool = False
    """True if MIG is on, so that only its instances can be used."""
    numa_node: int | None = None

    @property
    def name(self) -> str:
        """Display name."""
        return gpu_name(str(self.identity.index), self.identity.mig)

    @property
    def memory_used(self) -> int | None:
        """Memory that programs use; with an old driver, which does not report its own, that as well."""
        if self.memory_total is None or self.memory_free is None:
            return None
        return self.memory_total - self.memory_free - (self.memory_reserved or 0)

    @property
    def mps(self) -> bool:
        """True if processes share the GPU through MPS, so that their work runs concurrently."""
        return any(holder.kind == "mps" for holder in self.holders)
