"""Read a file with stacks of each rank: text or JSON of py-spy, or text of faulthandler."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

from stallscope.common.formatting import readable
from stallscope.model.hangs.rank_files import Unreadable, bounded, rank_files, superseded
from stallscope.tools.cli._py_spy import Thread, threads_in
from stallscope.training.protocol.stacks import MAX_FRAMES, Frame, Stack, frame_of

_MAIN = "MainThread"
_SPY_THREAD = re.compile(r'Thread ((?:0x)?[0-9A-Fa-f]+) \(([a-z+]+)\)(?:: "(.*)")?')
_SPY_FRAME = re.compile(r" {4}(\S.*) \((.+?)(?::(\d{1,9}))?\)")
_HANDLER_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):|Stack \(most recent call first\):"
)
_PACKAGES = (
    "torch",
    "numpy",
    "deepspeed",
    "megatron",
    "transformers",
    "accelerate",
    "lightning",
    "horovod",
    "mpi4py",
    "jax",
)
"""Packages whose files py-spy shortens to a path that begins with the package."""


class StackFiles(NamedTuple):
    """The stacks of ranks."""

    stacks: dict[int, Stack]
    """The stack of the main thread of each rank."""
    problems: list[str]
    """Files that were left out, with the reason."""


def read(path: Path, *, max_bytes: int = 16 << 20) -> StackFiles:
    """Return the stack of each rank. If a rank has several files, the newest one counts.

    Args:
        path: the folder of the files, also in subfolders, or the prefix of their paths.
        max_bytes: larger files are left out.

    Raises:
        Unreadable: there are no such files, or none of them has a stack.
    """
    files = rank_files(path)
    stacks: dict[int, Stack] = {}
    problems: list[str] = []
    older: list[Path] = []
    for rank, candidates in files.by_rank.items():
        found = [(_written(file), file, _stack(file, max_bytes)) for file in candidates]
        valid = sorted((time, file, stack) for time, file, stack in found if not isinstance(stack, str))
        older += [file for _, file, _ in valid[:-1]]
        if not (valid and files.has_others):
            problems += [f"{file}: {stack}" for _, file, stack in found if isinstance(stack, str)]
        if valid:
            stacks[rank] = valid[-1][2]
    if not stacks:
        raise Unreadable(problems[0])
    problems += superseded(older)
    return StackFiles(dict(sorted(stacks.items())), bounded(problems, path))


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _stack(file: Path, max_bytes: int) -> Stack | str:
    """Return the stack of the main thread, or the reason why there is none and what to do."""
    try:
        with file.open("rb") as opened:
            content = opened.read(max_bytes + 1)
    except OSError as error:
        return f"{error.strerror or error}; check its permissions"
    if len(content) > max_bytes:
        return f"larger than {max_bytes >> 20:,} MiB, unlike stacks; name a folder that has only stacks of one job"
    text = content.decode("utf-8", "replace")
    stack = _main(_from_json(text) if text.lstrip()[:1] == "[" else _from_lines(text))
    if not stack:
        return "no stack of a main thread, or truncated; write it with py-spy dump or faulthandler"
    # Frames in native code have no line, and their addresses differ between processes.
    return tuple([_normal(frame) for frame in stack if frame.line] or stack)


def _from_json(text: str) -> list[Thread]:
    try:
        return threads_in(json.loads(text))
    except (KeyError, TypeError, ValueError, RecursionError):
        return []


def _from_lines(text: str) -> list[Thread]:
    """Return the threads of the first process in text of py-spy, or of the last dump of faulthandler."""
    threads: list[Thread] = []
    frames: list[Frame] = []
    pid = ""
    for line in text.splitlines():
        spy = _SPY_THREAD.fullmatch(line)
        if spy or _HANDLER_THREAD.fullmatch(line):
            frames = []
            name = (spy[3] or (_MAIN if spy[1] == pid else "another")) if spy else ""
            threads.append(Thread(name, bool(spy and "active" in spy[2]), False, ()))
        elif line.startswith("Process ") and not threads:
            pid = line.split()[1].rstrip(":")
        elif line.startswith("Process ") and threads:
            break  # a child process, such as a data loader worker
        elif line.startswith(("Timeout (", "Fatal Python error", "Standstill")):
            threads = []
        elif threads and len(frames) < MAX_FRAMES:
            frame = _spy_frame(line) or (frame_of(line) if line.startswith('  File "') else None)
            if frame is not None:
                frames.append(frame)
                threads[-1] = threads[-1]._replace(stack=tuple(frames))
    return threads


def _spy_frame(line: str) -> Frame | None:
    found = _SPY_FRAME.fullmatch(line)
    return Frame(readable(found[2]), int(found[3] or 0), readable(found[1])) if found else None


def _main(threads: list[Thread]) -> Stack:
    """Return the stack of the main thread: faulthandler lists it last, without a name."""
    named = [thread for thread in threads if thread.name == _MAIN]
    unnamed = [thread for thread in threads[-1:] if not any(thread.name for thread in threads)]
    return next((thread.stack for thread in [*named, *unnamed]), ())


def _normal(frame: Frame) -> Frame:
    """Return the frame as faulthandler would write it: py-spy shortens paths of libraries, and qualifies names."""
    frame = frame._replace(function=frame.function.rpartition(".")[2])
    first = frame.file.partition("/")[0]
    if frame.file.startswith(("/", "<")):
        return frame
    if first in _PACKAGES:
        return frame._replace(file=f"/site-packages/{frame.file}")
    if first.removesuffix(".py") in sys.stdlib_module_names:
        return frame._replace(file=f"/lib/python3/{frame.file}")
    return frame
