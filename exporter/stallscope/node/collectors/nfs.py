"""NFS mounts: `/proc/self/mountstats`. The mounts themselves are never touched: one whose server is gone hangs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.collectors.files import malformed, read_if_answered
from stallscope.node.sampling.reading import Sample

READ = family("stallscope_host_nfs_read_bytes_total")
OPERATIONS = family("stallscope_host_nfs_operations_total")
WAIT = family("stallscope_host_nfs_operation_wait_seconds_total")

_MOUNT = re.compile(r"^device .* mounted on (\S+) with fstype nfs4?(?: statvers=(\S+))?$", re.MULTILINE)
_NEXT_MOUNT = re.compile(r"^(?:no )?device ", re.MULTILINE)
_ESCAPE = re.compile(r"\\([0-7]{3})")
_WRAPPED = 2**63
_VERSIONS = ("1.0", "1.1")
"""Of the statistics; 1.1 adds a count of errors at the end of each operation's line."""


@register
class Nfs(Collector):
    """Bytes, operations and waiting of each NFS mount.

    Of two mounts at one mount point the last one counts, since it hides the other.
    """

    name = "nfs"
    summary = "Traffic, operations and waiting of NFS mounts (/proc/self/mountstats)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._mountstats = str(environment.root / "proc/self/mountstats")

    def read(self) -> Iterable[Sample]:
        """Read `/proc/self/mountstats` once.

        Raises:
            NotPresent: nothing is mounted over NFS.
            ValueError: an NFS mount's statistics are not as the kernel writes them.
        """
        text = read_if_answered(self._mountstats) or ""
        mounts: dict[str, tuple[int, int, float]] = {}
        for match in _MOUNT.finditer(text):
            if match[2] not in _VERSIONS:
                raise malformed(self._mountstats, match[0], f"expected statistics of version {' or '.join(_VERSIONS)}")
            following = _NEXT_MOUNT.search(text, match.end())
            section = text[match.end() : following.start() if following else len(text)]
            mounts[_ESCAPE.sub(_character, match[1])] = self._statistics(match[0], section)
        if not mounts:
            raise NotPresent("no NFS mount")
        return [
            Sample(counter, (mount,), value)
            for mount, values in mounts.items()
            for counter, value in zip((READ, OPERATIONS, WAIT), values, strict=True)
        ]

    def _statistics(self, device: str, section: str) -> tuple[int, int, float]:
        """Return bytes read from the server, operations, and seconds in queue and on the way."""
        lines = iter(section.split("\n"))
        read: int | None = None
        for line in lines:
            name, _, numbers = line.strip().partition(":")
            if name == "bytes":
                read = self._numbers(line, numbers, 5)[4]
            elif name == "per-op statistics":
                break
        operations = waited = 0
        seen = False
        for count, queued, round_trip in self._operations(lines):
            operations += count
            waited += queued + round_trip
            seen = True
        if read is None or not seen:
            raise malformed(self._mountstats, device, "expected a line of bytes and per-op statistics below this line")
        return read, operations, waited / 1000

    def _operations(self, lines: Iterator[str]) -> Iterator[tuple[int, int, int]]:
        for line in lines:
            if line.strip():
                numbers = self._numbers(line, line.rpartition(":")[2], 7)
                # Kernels have been seen to let the queue time fall below zero, which wraps to a huge number.
                yield numbers[0], numbers[5] if numbers[5] < _WRAPPED else 0, numbers[6]

    def _numbers(self, line: str, text: str, at_least: int) -> list[int]:
        try:
            numbers = [int(word) for word in text.split()]
        except ValueError:
            numbers = []
        if len(numbers) < at_least:
            raise malformed(self._mountstats, line.strip(), f"expected {at_least} or more whole numbers")
        return numbers


def _character(escape: re.Match[str]) -> str:
    """The kernel writes blanks and backslashes in a mount point as three octal digits."""
    return chr(int(escape[1], 8))
