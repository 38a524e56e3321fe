"""Read dumps of PyTorch's flight recorder: a file per rank, with its last operations in each process group.

PyTorch writes a pickle, and unpickling can run any code. A dump contains only containers, numbers and text, so every
class or function in a file is refused. Dumps in JSON are read too. Versions 1.0 to 2.10 of the format are known.
"""

from __future__ import annotations

import gc
import io
import json
import pickle
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, NoReturn

from stallscope.common.formatting import ago, duration, readable, several
from stallscope.model.hangs.collective_counts import Communicator, Evidence, Member, shared
from stallscope.model.hangs.conclusion import Group, Launch, Progress, RankOperations, conclude
from stallscope.model.hangs.rank_files import Unreadable, bounded, rank_files, superseded

FilesOfRank = tuple[int, list[Path]]
Files = Collection[FilesOfRank]

_MAX_ENTRIES = 200_000
"""The newest entries of a file that are read."""
_MAX_COMPLETED = 8
"""The newest completed operations of a rank in a group that are compared with the pending ones of other ranks."""
_BUFFER = 1 << 16
_MAX_NUMBER = 1 << 63
_MAX_RANKS_LENGTH = 8 << 20
"""Maximum length of the list of a group's ranks."""
_MAX_RANK = 1 << 16
"""The default group is not completed up to a rank that is implausible."""
_MAX_TENSORS = 4096
"""Operations with more tensors are not compared."""
_MAX_DIMENSIONS = 16
"""Tensors with more dimensions are not compared."""
_OTHER_HANG = 3600.0
"""A dump belongs to an earlier hang if its newest operation is this many seconds older than the others'."""
_OTHER_ATTEMPT = 300.0
"""A dump also belongs to an earlier attempt if it is this many seconds older than the start of the other ranks."""
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_TRANSFER = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")


def read(path: Path, *, max_bytes: int = 256 << 20, shown: Callable[[Files], Iterable[FilesOfRank]] = iter) -> Evidence:
    """Return the process groups with the operations of each rank, and the ranks that the others wait for.

    If a rank has several files, the newest one counts. Files that are not dumps are left out with a message.

    Args:
        path: the folder of the files, also in subfolders, or the prefix of their paths, as in TORCH_FR_DUMP_TEMP_FILE.
        max_bytes: larger files are left out.
        shown: yields what it gets, and may show the progress.

    Raises:
        Unreadable: there are no such files, or none of them is a dump.
    """
    files = rank_files(path)
    reader = _Reader(max_bytes)
    dumps: dict[int, _Dump] = {}
    older: list[Path] = []
    problems: list[str] = []
    damaged: set[int] = set()
    for rank, candidates in shown(files.by_rank.items()):
        found = sorted(filter(None, map(reader.dump, candidates)), key=lambda each: each.newest)
        older += [dump.file for dump in found[:-1]]
        if found:
            dumps[rank] = found[-1]
        if reader.problems and not (found and files.has_others):
            damaged.add(rank)
            problems += reader.problems
        reader.problems.clear()
    if not dumps:
        raise Unreadable(problems[0])
    problems += superseded(older)
    for rank, age in _earlier(dumps).items():
        file = dumps.pop(rank).file
        problems.append(f"{file}: {duration(age)} older than other dumps; replace it by the dump of this hang")
    unreadable = damaged - dumps.keys()
    reader.complete(dumps)
    _add_silent(dumps)
    operations = {rank: dump.operations for rank, dump in sorted(dumps.items())}
    times = [dump.written for dump in dumps.values()]
    now = time.time()
    written = ago(now - max(times)) if max(times) - min(times) < 60 else f"{ago(now - min(times))} or later"
    communicators = tuple(_communicators(operations, unreadable))
    return Evidence(
        f"PyTorch flight recorder ({several(len(dumps), 'file')}, written {written})",
        "process group",
        len({group for each in operations.values() for group in each.groups}),
        communicators,
        conclude(operations, unreadable),
        tuple(bounded(problems, path)),
    )


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """Do not search for cycles, which a dump does not have, while millions of its objects are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Invalid(Exception):
    """A file is not a dump."""


class _Unpickler(pickle.Unpickler):
    """Reads containers, numbers and text."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Invalid(f"refers to {readable(module)}.{readable(name)}, unlike a dump")


class _Dump(NamedTuple):
    file: Path
    written: float
    newest: float
    """Time of the newest operation, or of the file if it has no time."""
    is_dated: bool
    """True if an operation has a time."""
    started: float | None
    """Time of the first operation of the process, if the dump contains it."""
    operations: RankOperations
    pg_ids: Mapping[Group, str]
    """Number of each process group in the process, as a key of `statuses`."""
    statuses: Mapping[str, int]
    """Number of the newest operation of each process group, without their names."""


def _earlier(dumps: Mapping[int, _Dump]) -> dict[int, float]:
    """Return the age of dumps that are from an earlier hang or attempt than the newest ones."""
    times = {rank: dump.newest for rank, dump in dumps.items() if dump.is_dated}
    starts = [dump.started for dump in dumps.values() if dump.started is not None]
    newest = max(times.values(), default=0.0)
    oldest = newest - _OTHER_HANG
    if 2 * len(starts) > len(dumps):
        oldest = max(oldest, median(starts) - _OTHER_ATTEMPT)
    return {rank: newest - time for rank, time in times.items() if time < oldest}


class _Reader:
    """Reads the dumps of one job. Ranks share the objects of their process groups."""

    def __init__(self, max_bytes: int) -> None:
        self.problems: list[str] = []
        """Files that are not dumps, with the reason and what to do."""
        self._max_bytes = max_bytes
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._lists: dict[str, tuple[int, ...]] = {}
        """Members of groups by their text in a dump."""

    def dump(self, file: Path) -> _Dump | None:
        """Return a dump; None with a problem if the file is not one."""
        try:
            written = file.stat().st_mtime
            with _without_garbage_collector():
                return self._dump(file, written, _document(file, self._max_bytes))
        except OSError as error:
            self.problems.append(f"{file}: {error.strerror or error}; check its permissions")
        except _Invalid as problem:
            self._add(file, str(problem))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            self._add(file, "not a dump of a known format")
        return None

    def _add(self, file: Path, problem: str) -> None:
        self.problems.append(f"{file}: {problem}; copy it again, or name a folder that has only dumps of one job")

    def _dump(self, file: Path, written: float, document: Any) -> _Dump:
        if isinstance(document, list):  # the format before version 1.0
            document = {"entries": document}
        if "entries" not in document and "pg_config" not in document:
            raise KeyError("entries")
        configured = {str(name): _ranks(group) for name, group in document.get("pg_config", {}).items()}
        for ranks in configured.values():
            self._numbers(ranks)
        found = RankOperations()
        completed: dict[Group, dict[int, list[dict[str, Any]]]] = {}
        pg_ids: dict[Group, str] = {}
        newest = 0
        started = None
        for entries in _launched_together(document.get("entries", [])[-_MAX_ENTRIES:]):
            first, last = entries[0], entries[-1]
            newest = max(newest, *(_number(last.get(key) or 0) for key in _TIMES))
            if first.get("record_id") == 0 and first.get("time_created_ns"):
                started = _number(first["time_created_ns"]) / 1e9
            name, description = _names(first)
            group = self._group(name, description, configured.get(name, ""))
            pg_ids[group] = str(first.get("pg_id"))
            progress = found.groups.setdefault(group, Progress())
            is_pending = not any(map(_has_ended, entries))
            if is_pending or any(_transfer(_operation(entry)) for entry in entries):
                launch = _launch(entries, group)
                if is_pending and found.oldest is None:
                    found.oldest = launch
                if launch.transfers:
                    progress.transferred = max(progress.transferred, launch.number)
                    if is_pending:
                        progress.transfers.append(launch)
                    continue
                progress.pending[launch.number] = launch
            else:
                newest_completed = completed.setdefault(group, {})
                newest_completed[_sequence(first)] = entries
                if len(newest_completed) > _MAX_COMPLETED:
                    del newest_completed[min(newest_completed)]
            if _sequence(first) >= progress.launched:
                progress.launched, progress.last = _sequence(first), _operation(first)
                progress.ended = -1 if is_pending or any(map(_is_completed, entries)) else progress.launched
        for group, by_number in completed.items():
            found.groups[group].completed = {number: _launch(each, group) for number, each in by_number.items()}
        statuses = {
            str(pg_id): _number(status["last_enqueued_collective"])
            for pg_id, status in document.get("pg_status", {}).items()
        }
        return _Dump(file, written, newest / 1e9 or written, newest > 0, started, found, pg_ids, statuses)

    def _group(self, name: str, description: str, ranks: str) -> Group:
        """Return a process group. Groups with different ranks can have the same name."""
        key = (name, description, ranks)
        if key not in self._groups:
            shown = f"{name} ({description})" if description else name
            self._groups[key] = Group(f"process group {readable(shown)}", self._numbers(ranks))
        return self._groups[key]

    def _numbers(self, ranks: str) -> tuple[int, ...]:
        if len(ranks) > _MAX_RANKS_LENGTH:
            raise ValueError("too many ranks")
        if ranks not in self._lists:
            self._lists[ranks] = tuple(map(int, re.findall(r"\d{1,7}", ranks)))
        return self._lists[ranks]

    def complete(self, ranks: Iterable[int]) -> None:
        """Add the members of the default group, which Gloo and version 1 of the format do not list.

        Args:
            ranks: the ranks with a file.
        """
        last = max([*ranks, *(rank for numbers in self._lists.values() for rank in numbers)])
        for (name, description, listed), group in self._groups.items():
            if not listed and name == "0" and description in ("", "default_pg") and last < _MAX_RANK:
                group.ranks = tuple(range(last + 1))


def _add_silent(dumps: Mapping[int, _Dump]) -> None:
    """Add the number of operations of ranks that list no operation of a group, because they have completed all of them.

    A dump has it under the group's number in the process. Ranks with the same numbers have created the same groups.
    """
    numbers: dict[Group, dict[frozenset[str], set[str]]] = {}
    for dump in dumps.values():
        for group, pg_id in dump.pg_ids.items():
            numbers.setdefault(group, {}).setdefault(frozenset(dump.statuses), set()).add(pg_id)
    mixed = {
        group for dump in dumps.values() for group, each in dump.operations.groups.items() if each.transferred >= 0
    }
    for group, by_statuses in numbers.items():
        for rank in group.ranks if group not in mixed else ():
            if rank in dumps and group not in dumps[rank].operations.groups:
                pg_ids = by_statuses.get(frozenset(dumps[rank].statuses), set())
                if len(pg_ids) == 1:
                    launched = dumps[rank].statuses.get(min(pg_ids), -1)
                    dumps[rank].operations.groups[group] = Progress(launched)


def _communicators(operations: Mapping[int, RankOperations], unreadable: set[int]) -> Iterator[Communicator]:
    groups: dict[Group, list[tuple[Member, int, str]]] = {}
    for rank, each in operations.items():
        for group, progress in each.groups.items():
            if progress.launched >= 0:
                groups.setdefault(group, []).append((Member(rank, run_rank=rank), progress.launched, progress.last))
    for group, members in groups.items():
        yield Communicator(
            group.name,
            len(group.ranks) or len(members),
            {"collective": shared(members)},
            tuple(
                (Member(rank, run_rank=rank), "no_operation" if rank in operations else "no_file")
                for rank in sorted({*group.ranks} - {member.rank for member, _, _ in members} - unreadable)
            ),
        )


def _document(file: Path, max_bytes: int) -> Any:
    with file.open("rb") as opened:
        content = opened.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _Invalid(f"larger than {max_bytes >> 20:,} MiB, unlike a dump")
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            return json.loads(content)
        # Without a buffer, the unpickler calls a method for each of its operations.
        return _Unpickler(io.BufferedReader(io.BytesIO(content), _BUFFER)).load()
    except _Invalid:
        raise
    except Exception as error:  # noqa: BLE001 - a malformed pickle can raise any exception
        raise _Invalid(f"not a dump ({type(error).__name__}), or truncated") from None


def _launched_together(entries: list[Any]) -> Iterable[list[dict[str, Any]]]:
    """Return the entries of each launch. The last entry of a coalesced launch has the state of all of them."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in entries:
        numbers = (_names(entry)[0], _sequence(entry), _number(entry.get("p2p_seq_id", 0)))
        is_p2p = _is_transfer(entry)
        if "coalesced" in entry["profiling_name"] and (*numbers, is_p2p) not in found:
            is_p2p = not is_p2p
        found.setdefault((*numbers, is_p2p), []).append(entry)
    return found.values()


def _launch(entries: list[dict[str, Any]], group: Group) -> Launch:
    first = entries[0]
    transfers = []
    for entry in entries:
        transfer = _transfer(_operation(entry))
        if transfer:
            direction, peer = transfer
            transfers.append((direction, group.ranks[peer] if peer < len(group.ranks) else peer))
    number = _sequence(first) + (_number(first.get("p2p_seq_id", 0)) if transfers else 0)
    tensors = [entry for entry in entries if entry is first or "coalesced" not in entry["profiling_name"]]
    sizes = [size for entry in tensors for size in entry.get("input_sizes") or []]
    is_known = 0 < len(sizes) <= _MAX_TENSORS and all(len(size) <= _MAX_DIMENSIONS for size in sizes)
    is_known &= len(entries) == 1 or not transfers
    elements = sum(prod(map(_number, size)) for size in sizes) if is_known else None
    types = first.get("input_dtypes") or [""]
    is_started = any(entry.get("state") == "started" for entry in entries)
    return Launch(group, number, _operation(first), tuple(transfers), elements, _text(types[0]), is_started)


def _is_completed(entry: dict[str, Any]) -> bool:
    return entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))


def _has_ended(entry: dict[str, Any]) -> bool:
    """Return whether an operation succeeded or failed. Gloo only sets `retired`, which NCCL sets at a timeout too."""
    return _is_completed(entry) or (entry.get("retired") is True and entry["profiling_name"].startswith("gloo:"))


def _is_transfer(entry: dict[str, Any]) -> bool:
    return bool(entry["is_p2p"] if "is_p2p" in entry else _transfer(_operation(entry)))


@lru_cache(1 << 16)
def _transfer(operation: str) -> tuple[str, int] | None:
    """Return the direction and the peer of a transfer; None for a collective operation."""
    found = _TRANSFER.fullmatch(operation)
    return (found[1], int(found[3])) if found else None


def _operation(entry: dict[str, Any]) -> str:
    name = _text(entry["profiling_name"])
    return name.partition(":")[2] or name


def _sequence(entry: dict[str, Any]) -> int:
    """Return the number of collective operations; version 1 of the format counts all operations."""
    return _number(entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"])


def _names(entry: dict[str, Any]) -> tuple[str, str]:
    """Return the name and the description of an entry's process group; version 1 of the format has no description."""
    group = entry.get("process_group", entry.get("pg_name", entry.get("pg_id")))
    name, description = group if isinstance(group, (tuple, list)) else (group, "")
    return _text(name), "" if description == "undefined" else _text(description)


def _ranks(group: Any) -> str:
    """Return the ranks of a process group as text such as `[0, 1]`; empty if they are unknown."""
    ranks = group.get("ranks", "") if isinstance(group, dict) else group
    if isinstance(ranks, (tuple, list)):
        ranks = str([_number(rank) for rank in ranks])
    return "" if ranks == "[]" else _text(ranks)


def _text(value: Any) -> str:
    """Return a name. The text of a nested container could be very long."""
    if not isinstance(value, (str, int)):
        raise TypeError("expected a string")
    return str(value)


def _number(value: Any) -> int:
    number = int(value)
    if not -_MAX_NUMBER < number < _MAX_NUMBER:
        raise ValueError("out of range")
    return number
