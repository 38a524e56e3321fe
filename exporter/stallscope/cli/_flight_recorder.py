"""Read dumps of PyTorch's flight recorder: one file per rank, with its last operations in each process group.

PyTorch writes a pickle, and unpickling can run any code. A dump contains only containers, numbers and text, so every
class or function in a file is refused. Point-to-point operations, such as send, are not compared.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from stallscope.common.formatting import ago, readable, several
from stallscope.view.collective_counts import Communicator, Evidence, Member, shared

_NAME = re.compile(r"(.*?)(\d{1,7})")


class Unreadable(Exception):
    """The dumps can't be read; the message is one line with the problem and what to do."""


def read(path: Path, *, max_bytes: int = 256 << 20) -> Evidence:
    """Return the process groups, with the operations that each rank has launched.

    Args:
        path: the folder of the files, or the prefix of their paths, as in TORCH_FR_DUMP_TEMP_FILE.
        max_bytes: larger files are refused.

    Raises:
        Unreadable: there are no such files, or one of them is not a dump.
    """
    files = _files(path)
    groups: dict[_Group, list[tuple[Member, int, str]]] = {}
    times = []
    for rank, file in files.items():
        try:
            times.append(file.stat().st_mtime)
            found = _groups(_document(file, max_bytes))
        except OSError as error:
            raise Unreadable(f"{file}: {error.strerror or error}; check its permissions") from None
        except _Invalid as problem:
            raise Unreadable(f"{file}: {problem}; name a folder that has only dumps of one job") from None
        for group, (count, last) in found.items():
            groups.setdefault(group, []).append((Member(rank, run_rank=rank), count, last))
    now = time.time()
    written = ago(now - max(times)) if max(times) - min(times) < 60 else f"{ago(now - min(times))} or later"
    return Evidence(
        f"PyTorch flight recorder ({several(len(files), 'file')}, written {written})",
        "process group",
        len(groups),
        tuple(
            Communicator(
                f"process group {group.name}",
                len(group.ranks) or len(members),
                {"collective": shared(members)},
                tuple(
                    (Member(rank, run_rank=rank), "no_operation" if rank in files else "no_file")
                    for rank in sorted({*group.ranks} - {member.rank for member, _, _ in members})
                ),
            )
            for group, members in groups.items()
        ),
    )


class _Group(NamedTuple):
    """A process group. Groups with different ranks can have the same name."""

    name: str
    ranks: tuple[int, ...]
    """Empty if unknown."""


class _Invalid(Exception):
    """A file is not a dump."""


class _Unpickler(pickle.Unpickler):
    """Reads containers, numbers and text."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Invalid(f"refers to {readable(module)}.{readable(name)}, unlike a dump")


def _files(path: Path) -> dict[int, Path]:
    folder, prefix = (path, "") if path.is_dir() else (path.parent, path.name)
    try:
        present = sorted(folder.iterdir())
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror or error}; check the path") from None
    found: dict[str, dict[int, Path]] = {}
    for file in present:
        name = _NAME.fullmatch(file.name)
        if name and file.name.startswith(prefix) and file.is_file():
            found.setdefault(name[1], {})[int(name[2])] = file
    if prefix in found:
        found = {prefix: found[prefix]}
    if len(found) > 1:
        names = ", ".join(map(readable, sorted(found)[:3]))
        raise Unreadable(f"{path}: files with several prefixes ({names}); name one: {folder / sorted(found)[0]}")
    if not found:
        raise Unreadable(f"{path}: no file name that ends with a rank; check TORCH_FR_DUMP_TEMP_FILE")
    (files,) = found.values()
    return files


def _document(file: Path, max_bytes: int) -> Any:
    with file.open("rb") as opened:
        content = opened.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _Invalid("too large")
    try:
        return json.loads(content) if content.startswith(b"{") else _Unpickler(io.BytesIO(content)).load()
    except _Invalid:
        raise
    except Exception as error:  # noqa: BLE001 - a malformed pickle can raise any exception
        raise _Invalid(f"not a dump ({type(error).__name__})") from None


def _groups(document: Any) -> dict[_Group, tuple[int, str]]:
    """Return the number of operations and the last operation of each process group."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    try:
        for entry in document["entries"]:
            count, operation = entry["collective_seq_id"], entry["profiling_name"].partition(":")[2]
            name, description = entry["process_group"]
            if not entry["is_p2p"] and count >= found.get((name, description), (0, ""))[0]:
                found[name, description] = int(count), readable(operation)
        ranks = {name: str(group.get("ranks", "")) for name, group in document["pg_config"].items()}
        members = {name: tuple(map(int, re.findall(r"\d{1,7}", text))) for name, text in ranks.items()}
        return {
            _Group(readable(f"{name} ({description})"), members.get(name, ())): newest
            for (name, description), newest in found.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _Invalid("not a dump of a known format") from None
