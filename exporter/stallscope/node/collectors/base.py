"""The base class of collectors, and the registry that each collector's module adds itself to.

To add a source: one file in this folder with a class under `@register`, its families in the catalogue, its test. The
flag `--collector.<name>` and its `--no-` form come by themselves.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from stallscope.node.drivers.device import Driver
from stallscope.node.drivers.occupancy import Occupancies
from stallscope.node.owners.cluster import Cluster
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.reader import CollectorState, NotPresent
from stallscope.node.sampling.reading import Sample

if TYPE_CHECKING:
    from stallscope.node.owners.kubernetes_api import KubernetesApi

__all__ = ["Collector", "CollectorState", "Environment", "NotPresent", "available", "register"]


class KubernetesSettings(NamedTuple):
    """Access to the Kubernetes API, for its collector."""

    node: str
    """Name of this node."""
    address: tuple[str, int]
    """Host and port of the API server."""


@dataclass(frozen=True)
class Environment:
    """Everything that a collector may access; tests pass recorded trees and scripted clocks."""

    root: Path = Path("/")
    """Folder that contains `proc` and `sys`."""
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    """Queries a file system."""
    clock: Clock = field(default_factory=SystemClock)
    interval: float = 1.0
    """Seconds between two readings."""
    driver: Callable[[], Driver] | None = None
    """Makes the GPU driver; None for the real one."""
    occupancies: Occupancies = field(default_factory=Occupancies)
    """Processes on GPUs, as the GPU collectors see them."""
    processes_elsewhere: bool = False
    """True if processes on GPUs are not under `root`: those on simulated GPUs of a real host."""
    cluster: Cluster = field(default_factory=Cluster)
    """Facts from the Kubernetes API."""
    kubernetes: KubernetesSettings | None = None
    """None to use no Kubernetes API."""
    exposed: Callable[[], Iterable[Sample]] = tuple
    """Returns the samples of the newest page, from memory."""
    nccl_inspector_folder: Path | None = None
    """Folder of NCCL Inspector's files; None if it is not set."""
    pcie_throughput: bool = False
    """True to query the throughput of GPUs without a PCIe byte counter, which takes 40 ms each time."""

    def kubernetes_api(self) -> KubernetesApi:
        """Return access to the Kubernetes API.

        Raises:
            NotPresent: the exporter was not given the node's name.
        """
        if self.kubernetes is None:
            raise NotPresent("--kubernetes.node is not set")
        from stallscope.node.owners.kubernetes_api import KubernetesApi  # its ssl takes memory

        return KubernetesApi(self.root, self.kubernetes.address, self.kubernetes.node)


class Collector(ABC):
    """Reads one part of the machine as samples. `read` runs on the collector's own thread and may block."""

    name: ClassVar[str]
    """The word in `--collector.<name>` and in `stallscope_exporter_source_up{source}`."""
    summary: ClassVar[str]
    """One line for `--help`."""
    enabled_by_default: ClassVar[bool] = True
    harmless: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of a part that its own series report (a lost GPU), and that are not failures of the collector."""
    longest_interval: ClassVar[float | None] = None
    """Longest interval in seconds that loses no data: a driver keeps samples only this long."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    @abstractmethod
    def read(self) -> Iterable[Sample]:
        """Read once.

        Raises:
            NotPresent: the machine has no such part; read again at the next interval.
            Exception: anything else is a failure of this source, counted and logged, and retried.
        """

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        """Return readers that need their own thread (one a GPU), by key.

        Called after every reading; reads memory only.
        """
        return {}

    def collect(self, state: CollectorState) -> Iterable[Sample]:
        """Return the samples to expose. Reads memory only, because a scrape waits for it."""
        for reader in (state.main, *state.parts.values()):
            if state.fresh(reader) and reader.present:
                yield from reader.samples

    def release(self, seconds: float) -> None:  # noqa: B027 - most sources hold nothing
        """Close device files for `seconds` seconds, so that a driver can be changed; 0 opens them again.

        Returns at once: the source's own thread does it at its next reading.
        """

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Close files and handles."""


_CollectorClass = TypeVar("_CollectorClass", bound=type[Collector])
_REGISTER: dict[str, type[Collector]] = {}


def register(source: _CollectorClass) -> _CollectorClass:
    """Register a collector under its name; a class decorator."""
    if source.name in _REGISTER:
        raise ValueError(f"two sources are called {source.name}")
    _REGISTER[source.name] = source
    return source


def available() -> dict[str, type[Collector]]:
    """Return every collector by name, after importing each file of this folder."""
    package = importlib.import_module("stallscope.node.collectors")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "base" and not module.ispkg:
            importlib.import_module(f"stallscope.node.collectors.{module.name}")
    return dict(sorted(_REGISTER.items()))
