"""The exporter's own process: `process_*`, as every Prometheus client exposes them.

Read through psutil: `prometheus_client` reads the same numbers, but importing it takes 7.5 MiB of memory, mostly for
parts that the exporter does not use. A test compares the names and values of both.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable

import psutil

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, register
from stallscope.node.sampling.reading import Sample

VIRTUAL_MEMORY = family("process_virtual_memory_bytes")
RESIDENT_MEMORY = family("process_resident_memory_bytes")
START_TIME = family("process_start_time_seconds")
CPU_SECONDS = family("process_cpu_seconds_total")
OPEN_FILES = family("process_open_fds")
MAX_FILES = family("process_max_fds")


@register
class Process(Collector):
    """CPU time, memory and descriptors of this process.

    Read from the real `/proc` whatever the root is: a recorded tree has no such process in it.
    """

    name = "process"
    summary = "The exporter's own CPU time, memory and open files (process_*)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._process = psutil.Process()

    def read(self) -> Iterable[Sample]:
        """Return the current values of this process."""
        process = self._process
        with process.oneshot():
            memory = process.memory_info()
            cpu = process.cpu_times()
            return [
                Sample(VIRTUAL_MEMORY, (), memory.vms),
                Sample(RESIDENT_MEMORY, (), memory.rss),
                Sample(START_TIME, (), process.create_time()),
                Sample(CPU_SECONDS, (), cpu.user + cpu.system),
                Sample(OPEN_FILES, (), process.num_fds()),
                Sample(MAX_FILES, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            ]
