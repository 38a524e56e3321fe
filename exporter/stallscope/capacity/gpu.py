"""What is known of one GPU, or one MIG instance, when somebody looks for room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stallscope.drivers.device import ComputeMode, Identity, ProcessKind


class Holder(NamedTuple):
    """A process on a GPU. Unknown texts are empty."""

    pid: int
    memory: int | None
    """Bytes; None where the driver does not tell."""
    kind: ProcessKind = "compute"
    user: str = ""
    command: str = ""
    """Its name, as the kernel has it."""
    ancestors: frozenset[int] = frozenset()
    """The process itself, the one that started it, and so on."""


@dataclass(frozen=True)
class GpuNow:
    """One GPU as it is now. What is not told is None; ratios are 0 to 1."""

    identity: Identity
    trouble: str = ""
    """Why nothing else is told: it is lost, hangs, or fails."""
    memory_total: int | None = None
    memory_free: int | None = None
    holders: tuple[Holder, ...] = ()
    busy: float | None = None
    """Share of time in which anything ran, over `busy_seconds` up to now."""
    busy_seconds: float = 0.0
    busy_now: float | None = None
    """The same over the last second or two: what counts where nobody is on the GPU any more."""
    sm_active: float | None = None
    """Mean share of multiprocessors that were in use meanwhile."""
    compute_mode: ComputeMode | None = None
    throttled: frozenset[str] = frozenset()
    """What slows it down that is no ordinary power cap."""
    ills: tuple[str, ...] = ()
    """What is wrong with it though it answers, with what to do."""
    runs: tuple[str, ...] = ()
    """Training runs that compute on it, as the exporter was told."""
    cut: bool = False
    """Whether MIG is on: only its instances can be used."""
    numa_node: int | None = None

    @property
    def name(self) -> str:
        """As people say it."""
        return f"GPU {self.identity.index}" + (f" MIG {self.identity.mig}" if self.identity.mig else "")

    @property
    def mps(self) -> bool:
        """Whether processes share it through MPS, so that their work runs at the same time."""
        return any(holder.kind == "mps" for holder in self.holders)
