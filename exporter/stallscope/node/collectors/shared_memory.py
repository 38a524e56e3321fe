"""Shared memory: the file system at `/dev/shm`, through which data loader workers hand over batches."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.sampling.reading import Sample

TOTAL = family("stallscope_host_shared_memory_total_bytes")
USED = family("stallscope_host_shared_memory_used_bytes")


@register
class SharedMemory(Collector):
    """Size and use of `/dev/shm`."""

    name = "shared_memory"
    summary = "Size and use of /dev/shm (statvfs)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._path = str(environment.root / "dev/shm")

    def read(self) -> Iterable[Sample]:
        """Query the file system once.

        Raises:
            NotPresent: there is no `/dev/shm`, or it has no limit of its own.
            OSError: the query fails.
        """
        try:
            status = self.environment.statvfs(self._path)
        except FileNotFoundError:
            raise NotPresent(f"no {self._path}") from None
        if not status.f_blocks:
            raise NotPresent(f"{self._path} has no limit of its own")
        return (
            Sample(TOTAL, (), status.f_blocks * status.f_frsize),
            Sample(USED, (), (status.f_blocks - status.f_bfree) * status.f_frsize),
        )
