"""Disks: `/proc/diskstats`, of whole physical devices."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.collectors.files import exists, malformed, read_if_answered
from stallscope.node.sampling.reading import Sample

READ = family("stallscope_host_disk_read_bytes_total")
WRITTEN = family("stallscope_host_disk_written_bytes_total")
BUSY = family("stallscope_host_disk_busy_seconds_total")

_SECTOR = 512
"""Bytes; the kernel's unit here, whatever the device's own sectors are."""


@register
class Disk(Collector):
    """Traffic and busy time of physical disks.

    Loop, RAM and compressed-memory devices, device mapper and RAID devices and partitions are left out, since the
    bytes that pass through them are counted at the disk below; so are the hidden paths below a multipath NVMe disk.
    """

    name = "disk"
    summary = "Traffic and busy time of physical disks (/proc/diskstats)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._diskstats = str(environment.root / "proc/diskstats")
        self._block = str(environment.root / "sys/block")
        self._names: tuple[str, ...] = ()
        self._physical: frozenset[str] = frozenset()

    def read(self) -> Iterable[Sample]:
        """Read `/proc/diskstats` once.

        Raises:
            NotPresent: this machine shows no physical disk.
            ValueError: a physical disk's line is not as the kernel writes it.
        """
        lines = (read_if_answered(self._diskstats) or "").splitlines()
        names = tuple(map(self._device, lines))
        if names != self._names:
            # What a device is can't change while its name stays; a look at each one in every round would be dear.
            self._physical = frozenset(filter(self._is_physical, names))
            self._names = names
        samples: list[Sample] = []
        for name, line in zip(names, lines, strict=True):
            if name in self._physical:
                samples += self._disk(name, line)
        if not samples:
            raise NotPresent("no physical disk")
        return samples

    def _device(self, line: str) -> str:
        try:
            return line.split(None, 3)[2]
        except IndexError:
            raise malformed(self._diskstats, line, "expected two device numbers and a name") from None

    def _is_physical(self, name: str) -> bool:
        folder = f"{self._block}/{name.replace('/', '!')}"
        if not exists(f"{folder}/device"):
            return False
        return (read_if_answered(f"{folder}/hidden") or "0").strip() == "0"

    def _disk(self, name: str, line: str) -> Iterable[Sample]:
        fields = line.split()
        try:
            read, written, busy = int(fields[5]), int(fields[9]), int(fields[12])
        except (ValueError, IndexError):
            raise malformed(self._diskstats, line, "expected 11 or more numbers after the name") from None
        labels = (name,)
        return (
            Sample(READ, labels, read * _SECTOR),
            Sample(WRITTEN, labels, written * _SECTOR),
            Sample(BUSY, labels, busy / 1000),
        )
