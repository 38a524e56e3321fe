"""The exporter's own process: `process_*`, as every Prometheus client exposes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stallscope.catalogue import PROCESS_FAMILIES
from stallscope.sampling.reading import Sample
from stallscope.sources.base import Environment, NotPresent, Source, register

if TYPE_CHECKING:
    from prometheus_client.process_collector import ProcessCollector

_FAMILIES = {family.name: family for family in PROCESS_FAMILIES}


@register
class Process(Source):
    """Processor time, memory and descriptors of this process.

    Read from the real `/proc` whatever the root is: a recorded tree has no such process in it.
    """

    name = "process"
    summary = "The exporter's own processor time, memory and open files (process_*)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._collector: ProcessCollector | None = None

    def read(self) -> Iterable[Sample]:
        """Ask the client library's collector once.

        Raises:
            NotPresent: the system has no `/proc`.
        """
        if self._collector is None:
            # Imported on this source's own thread, so that the first page does not wait for it.
            from prometheus_client.process_collector import ProcessCollector

            self._collector = ProcessCollector(registry=None)
        samples = [
            Sample(_FAMILIES[name], (), value)
            for metric in self._collector.collect()
            for name, _labels, value, *_ in metric.samples
            if name in _FAMILIES
        ]
        if not samples:
            raise NotPresent("no /proc")
        return samples
