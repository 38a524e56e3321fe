"""Processes on each GPU as its driver reports them, for the collector of owners.

GPU sources write, the source of owners reads, and the other way round for how GPUs are shared; neither waits for the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.node.drivers.device import GpuProcess, Identity


class Occupancy(NamedTuple):
    """One GPU, or one MIG instance, as last read."""

    identity: Identity
    memory_used: int | None
    """Bytes of frame buffer in use, without the driver's own share; None if the GPU does not report it."""
    processes: tuple[GpuProcess, ...]
    busy: Mapping[int, float]
    """Seconds that a process kept the GPU busy, by pid, since it was first seen; empty if unknown."""


class Occupancies:
    """The newest occupancy of every GPU that is up, by UUID. Replaced as a whole at every change."""

    def __init__(self) -> None:
        self._by_source: dict[str, Mapping[str, Occupancy]] = {}
        self._sharing: Mapping[str, str] = {}

    def publish(self, source: str, occupancies: Mapping[str, Occupancy]) -> None:
        """Replace everything that the source said before."""
        self._by_source = {**self._by_source, source: occupancies}

    def withdraw(self, source: str) -> None:
        """Forget what the source said: it is read no more."""
        self._by_source = {name: each for name, each in self._by_source.items() if name != source}

    def current(self) -> dict[str, Occupancy]:
        """Every GPU of every source, by UUID."""
        return {uuid: each for group in self._by_source.values() for uuid, each in group.items()}

    def set_sharing(self, sharing: Mapping[str, str]) -> None:
        """Replace what the orchestrator was found to say of how GPUs are handed out, by UUID."""
        self._sharing = sharing

    def sharing(self, uuid: str) -> str:
        """`mps` or `time_sliced` where the orchestrator hands the GPU to several at once, else the empty string."""
        return self._sharing.get(uuid, "")
