"""Base class and registry of the sources; each source file registers its class.

To add a source: one file in this folder with a class under `@register`, its families in the catalogue, its test. The
flag `--collector.<name>` and its `--no-` form come by themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from stallscope.drivers.device import Driver
from stallscope.drivers.occupancy import Occupancies
from stallscope.sampling.clock import Clock, SystemClock
from stallscope.sampling.reader import NotPresent, SourceState
from stallscope.sampling.reading import Sample

__all__ = ["Environment", "NotPresent", "Source", "SourceState", "available", "register"]


@dataclass(frozen=True)
class Environment:
    """Paths, clocks and settings that a source may use; tests pass recorded trees and scripted clocks."""

    root: Path = Path("/")
    """Where `proc` and `sys` lie."""
    clock: Clock = field(default_factory=SystemClock)
    interval: float = 1.0
    """Seconds between two readings."""
    driver: Callable[[], Driver] | None = None
    """Makes the GPU driver; None for the real one."""
    occupancies: Occupancies = field(default_factory=Occupancies)
    """Registry in which GPU sources list the processes they see."""
    processes_elsewhere: bool = False
    """Whether processes on GPUs are not to be found under `root`: those on simulated GPUs of a real host."""
    pcie_throughput: bool = False
    """Query PCIe throughput on GPUs without byte counters; each query takes 40 ms."""


class Source(ABC):
    """Turns one part of the machine into samples. `read` runs on the source's own thread and may block."""

    name: ClassVar[str]
    """The word in `--collector.<name>` and in `stallscope_exporter_source_up{source}`."""
    summary: ClassVar[str]
    """One line for `--help`."""
    enabled_by_default: ClassVar[bool] = True
    harmless: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors that the series themselves report (a lost GPU); they are not failures of the source."""
    longest_interval: ClassVar[float | None] = None
    """Maximum seconds between two readings, if the driver keeps its samples only for that time."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    @abstractmethod
    def read(self) -> Iterable[Sample]:
        """Read once.

        Raises:
            NotPresent: the machine has no such part; asked again at the next interval.
            Exception: anything else is a failure of this source, counted and logged, and retried.
        """

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        """Return readers that need their own thread (one a GPU), by key. Called after each reading, on memory."""
        return {}

    def collect(self, state: SourceState) -> Iterable[Sample]:
        """Return the current samples. Reads memory only, because building the page waits for it."""
        for reader in (state.main, *state.parts.values()):
            if reader.fresh(state.now, state.stale_after) and reader.present:
                yield from reader.samples

    def release(self, seconds: float) -> None:  # noqa: B027 - most sources hold nothing
        """Let go of device files for so long, so that a driver can be changed; 0 takes them up again.

        Returns at once: the source's own thread does it at its next reading.
        """

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Let go of files and handles."""


_SourceClass = TypeVar("_SourceClass", bound=type[Source])
_REGISTER: dict[str, type[Source]] = {}


def register(source: _SourceClass) -> _SourceClass:
    """Class decorator that enters a source under its name."""
    if source.name in _REGISTER:
        raise ValueError(f"two sources are called {source.name}")
    _REGISTER[source.name] = source
    return source


def available() -> dict[str, type[Source]]:
    """Every source by name, after importing each file of this folder."""
    package = importlib.import_module("stallscope.collectors")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "base" and not module.ispkg:
            importlib.import_module(f"stallscope.collectors.{module.name}")
    return dict(sorted(_REGISTER.items()))
