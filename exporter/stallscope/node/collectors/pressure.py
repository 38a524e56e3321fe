"""Pressure stall information: `/proc/pressure`, the kernel's counters of time lost to waiting."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.collectors.files import malformed, read_if_answered
from stallscope.node.sampling.reading import Sample

WAITING = family("stallscope_host_pressure_waiting_seconds_total")
STALLED = family("stallscope_host_pressure_stalled_seconds_total")

_FAMILIES = {"some": WAITING, "full": STALLED}
_RESOURCES = ("cpu", "memory", "io")


@register
class Pressure(Collector):
    """Time in which some task, or every task, waited for a resource.

    The kernel reports `full` of the CPUs only since 5.13; before, that series is absent.
    """

    name = "pressure"
    summary = "Time lost waiting for CPUs, memory and input and output (/proc/pressure)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._files = {resource: str(environment.root / "proc/pressure" / resource) for resource in _RESOURCES}

    def read(self) -> Iterable[Sample]:
        """Read the three files once.

        Raises:
            NotPresent: the kernel has no such counters (older than 4.20, built without, or `psi=0`).
            ValueError: a file is not as the kernel writes it.
        """
        samples: list[Sample] = []
        for resource, path in self._files.items():
            text = read_if_answered(path)
            if text is None:
                continue
            for line in text.splitlines() or [text]:
                kind = line.partition(" ")[0]
                counter = _FAMILIES.get(kind)
                try:
                    microseconds = int(line.rpartition(" total=")[2])
                except ValueError:
                    counter = None
                if counter is None:
                    raise malformed(path, line, "expected some or full, and at the end total= and microseconds")
                samples.append(Sample(counter, (resource,), microseconds / 1e6))
        if not samples:
            raise NotPresent("the kernel keeps no account of pressure")
        return samples
