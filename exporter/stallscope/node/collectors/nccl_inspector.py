"""Collectives of each rank and communicator, from files of NCCL Inspector, a profiler plug-in of NCCL 2.28 and later.

Each process appends JSON lines to `HOSTNAME-pidPID.log`, without end. New lines are read from where the last reading
ended. Programs of any user write them: links are not followed, names are checked, and sizes and numbers are limited.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.sampling.reading import Sample

INFO = family("stallscope_nccl_communicator_info")
OPERATIONS = family("stallscope_nccl_operations_total")
SECONDS = family("stallscope_nccl_operation_seconds_total")
BYTES = family("stallscope_nccl_operation_bytes_total")
BUS_BYTES = family("stallscope_nccl_bus_bytes_total")
NEWEST = family("stallscope_nccl_last_operation_timestamp_seconds")
SEQUENCE = family("stallscope_nccl_last_sequence_number")

_KNOWN = frozenset(
    {
        *("AllGather", "AllGatherV", "AllReduce", "All2All", "AlltoAll", "Broadcast", "Gather"),
        *("Recv", "Reduce", "ReduceScatter", "Scatter", "Send", "SendRecv"),
    }
)
"""Operations of NCCL; all others are `other`."""
_FILE = re.compile(r"[^/]{1,255}-pid\d{1,10}\.log")
_READ_SECONDS = 5.0
_FORGET_SECONDS = 3600.0
"""Seconds after the last line until a file is forgotten: the ranks of a hang write none."""
_MOST_FILES = 64
_MOST_FOLDERS = 64
_MOST_NAMES = 10_000
"""Names of a folder that are looked at."""
_MOST_COMMUNICATORS = 128
"""Communicators of all processes together."""
_FIRST_BYTES = 256 * 1024
"""Bytes before the end of a file that are read when it is found."""
_MOST_BYTES = 2 * 2**20
"""Bytes of a file that one reading reads; if more are new, the oldest are skipped."""
_LONGEST = 128
_LARGEST = 2.0**53
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass
class _Operations:
    count: int = 0
    seconds: float = 0.0
    size: float = 0.0
    bus: float = 0.0


@dataclass
class _Communicator:
    """A rank of a communicator."""

    info: tuple[str, ...]
    newest: float = 0.0
    sequence: float | None = None
    operations: dict[str, _Operations] = field(default_factory=dict)

    def add(self, line: _Line) -> None:
        """Count an operation."""
        found = self.operations.setdefault(line.operation, _Operations())
        found.count += 1
        found.seconds += line.seconds
        found.size += line.size
        found.bus += line.bus * line.seconds
        self.newest = max(self.newest, line.written)
        if line.sequence is not None:
            self.sequence = max(self.sequence or 0.0, line.sequence)


@dataclass(frozen=True)
class _Line:
    key: tuple[str, str]
    """Communicator, and rank in it."""
    info: tuple[str, ...]
    operation: str
    seconds: float
    size: float
    bus: float
    """Bus bandwidth in bytes per second."""
    written: float
    """Unix time."""
    sequence: float | None
    """Number of a collective; None for a send or a receive, which is no operation of all ranks."""


@dataclass
class _File:
    identity: tuple[int, int]
    offset: int
    written_at: float
    is_cut: bool = False
    """True if the next line is the rest of one whose beginning was skipped."""
    communicators: dict[tuple[str, str], _Communicator] = field(default_factory=dict)


@register
class NcclInspector(Collector):
    """Counters since the exporter found a file. Lines that it cannot read are skipped."""

    name = "nccl_inspector"
    summary = "Collectives by rank and communicator (NCCL Inspector's files; needs --nccl.inspector-folder)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._files: dict[str, _File] = {}
        self._read_at: float | None = None

    def read(self) -> Iterable[Sample]:
        """Read new lines.

        Raises:
            NotPresent: no folder is set, or no process has written into it.
            OSError: the folder can't be read.
        """
        folder = self.environment.nccl_inspector_folder
        if folder is None:
            raise NotPresent("--nccl.inspector-folder is not set")
        now = self.environment.clock.monotonic()
        if self._read_at is None or now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            self._read_files(folder)
        samples = list(self._samples())
        if not samples:
            raise NotPresent("no process writes NCCL Inspector's JSON into the folder")
        return samples

    def _read_files(self, folder: Path) -> None:
        oldest = self.environment.clock.time() - _FORGET_SECONDS
        found = sorted(_files(folder), reverse=True)[:_MOST_FILES]
        current = {path for written_at, path in found if written_at > oldest}
        self._files = {path: file for path, file in self._files.items() if path in current}
        for path in sorted(current):
            with suppress(OSError):  # it was removed, or belongs to a user who permits nothing
                self._read_file(path)

    def _read_file(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            identity = status.st_dev, status.st_ino
            file = self._files.get(path)
            if file is None or file.identity != identity or status.st_size < file.offset:
                begin = max(0, status.st_size - _FIRST_BYTES)
                file = self._files[path] = _File(identity, begin, status.st_mtime, is_cut=begin > 0)
            elif status.st_size - file.offset > _MOST_BYTES:
                file.offset, file.is_cut = status.st_size - _MOST_BYTES, True
            content = os.pread(descriptor, _MOST_BYTES, file.offset)
        finally:
            os.close(descriptor)
        whole, newline, rest = content.rpartition(b"\n")
        if not newline:
            if len(rest) >= _MOST_BYTES:  # no line is as long
                file.offset, file.is_cut = file.offset + len(rest), True
            return
        file.offset += len(whole) + 1
        lines = whole.split(b"\n")
        for line in lines[1:] if file.is_cut else lines:
            if (parsed := _parsed(line)) is not None:
                self._add(file, parsed)
        file.is_cut = False

    def _add(self, file: _File, line: _Line) -> None:
        known = file.communicators.get(line.key)
        if known is None:
            others = [each.communicators for each in self._files.values()]
            if sum(map(len, others)) >= _MOST_COMMUNICATORS or any(line.key in each for each in others):
                return
            known = file.communicators[line.key] = _Communicator(line.info)
        known.add(line)

    def _samples(self) -> Iterator[Sample]:
        for file in self._files.values():
            for key, known in file.communicators.items():
                yield Sample(INFO, (*key, *known.info), 1)
                yield Sample(NEWEST, key, known.newest)
                if known.sequence is not None:
                    yield Sample(SEQUENCE, key, known.sequence)
                for operation, total in known.operations.items():
                    labels = (*key, operation)
                    yield Sample(OPERATIONS, labels, total.count)
                    yield Sample(SECONDS, labels, total.seconds)
                    yield Sample(BYTES, labels, total.size)
                    yield Sample(BUS_BYTES, labels, total.bus)


def _files(folder: Path) -> Iterator[tuple[float, str]]:
    """Yield time of the last change and path of the files in a folder, and in folders directly below.

    Raises:
        OSError: the folder can't be read.
    """
    below: list[str] = []
    for path, written_at in _entries(str(folder), below):
        yield written_at, path
    for each in below[:_MOST_FOLDERS]:
        with suppress(OSError):
            for path, written_at in _entries(each, []):
                yield written_at, path


def _entries(folder: str, below: list[str]) -> Iterator[tuple[str, float]]:
    """Yield the files of a folder, and append its folders to a list."""
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST_NAMES:
                return
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            elif _FILE.fullmatch(entry.name):
                with suppress(OSError):
                    yield entry.path, entry.stat(follow_symlinks=False).st_mtime


def _parsed(line: bytes) -> _Line | None:
    """Return the operation in a line; None if it is not in the format of NCCL Inspector."""
    try:
        document = json.loads(line)
        header, metadata = document["header"], document["metadata"]
        kind = "coll" if "coll_perf" in document else "p2p"
        measured = document[f"{kind}_perf"]
        operation = measured[kind]
        microseconds = _number(measured, f"{kind}_exec_time_us")
        info = (
            _text(header.get("comm_name", "unknown")),
            str(int(_number(header, "n_ranks"))),
            str(int(_number(header, "nnodes"))),
            _text(metadata["hostname"]),
            str(int(_number(metadata, "pid"))),
        )
        return _Line(
            key=(_text(header["id"]), str(int(_number(header, "rank")))),
            info=info,
            operation=operation if operation in _KNOWN else "other",
            seconds=microseconds / 1e6,
            size=_number(measured, f"{kind}_msg_size_bytes"),
            bus=_number(measured, f"{kind}_busbw_gbs") * 1e9,
            written=_number(metadata, "dump_timestamp_us") / 1e6,
            sequence=_number(measured, "coll_sn") if kind == "coll" else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if type(value) not in (int, float) or not 0 <= value <= _LARGEST:
        raise ValueError(name)
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST or _CONTROL.search(value):
        raise ValueError("not a name")
    return value.encode(errors="replace").decode()
