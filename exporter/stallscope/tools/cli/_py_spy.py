"""Stacks of a process that py-spy reads from outside, for one without the shim or in native code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from stallscope.common.formatting import readable
from stallscope.common.installation import install_command
from stallscope.training.protocol.stacks import MAX_FRAMES, Frame, Stack

_SECONDS = 30.0
_TEXT_LENGTH = 200


class Unreadable(Exception):
    """The stacks can't be read; the message is one line with the problem and what to do."""


class Thread(NamedTuple):
    """A thread and its stack."""

    name: str
    is_active: bool
    """True if it runs on a CPU."""
    has_gil: bool
    stack: Stack


def threads_of(pid: int, root: Path = Path("/")) -> list[Thread]:
    """Return the threads of a Python process.

    Args:
        pid: the process.
        root: folder that contains `proc`.

    Raises:
        Unreadable: py-spy is missing, not permitted or fails.
    """
    program = _program()
    if program is None:
        raise Unreadable(f"py-spy is not installed; install it: {install_command('stacks')}")
    command = [program, "dump", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unreadable(f"py-spy did not finish within {_SECONDS:g} s; the process may be in state D") from None
    except OSError as error:
        raise Unreadable(f"{program}: {error.strerror or error}; install it again: pip install py-spy") from None
    if done.returncode:
        raise Unreadable(_problem(pid, done.stderr, root))
    try:
        return threads_in(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable("py-spy returned an unknown format; update it: pip install --upgrade py-spy") from None


def threads_in(document: Any) -> list[Thread]:
    """Return the threads of decoded JSON of py-spy.

    Raises:
        KeyError, TypeError, ValueError: the format is unknown.
    """
    return [_thread(each) for each in document]


def _program() -> str | None:
    """Return the path of py-spy: next to this Python, or in PATH."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.is_file() else shutil.which("py-spy")


def _thread(document: Any) -> Thread:
    frames = [
        Frame(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
        for frame in document["frames"][:MAX_FRAMES]
    ]
    name = document["thread_name"] or f"thread {document['os_thread_id'] or document['thread_id']}"
    return Thread(str(name), document["active"] is True, document["owns_gil"] is True, tuple(frames))


def _problem(pid: int, errors: str, root: Path) -> str:
    """Return why py-spy failed, and the permission that is missing if it is one."""
    try:
        owner = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        return f"process {pid} does not exist here; run the command in its pid namespace"
    if "permission denied" not in errors.lower() and "operation not permitted" not in errors.lower():
        lines = [line for line in errors.splitlines() if line.strip()] or ["py-spy failed"]
        return f"{readable(lines[0], _TEXT_LENGTH)}; check that process {pid} is a Python process"
    if os.geteuid() not in (0, owner):
        return f"process {pid} belongs to user {owner}; run the command as this user or as root"
    if os.geteuid() and _ptrace_scope(root) > 0:
        return (
            f"the kernel lets no process attach to process {pid} (kernel.yama.ptrace_scope is {_ptrace_scope(root)}); "
            "run the command as root, or with the capability SYS_PTRACE"
        )
    return f"process {pid} can't be read; run the command with the capability SYS_PTRACE (in a container: --cap-add)"


def _ptrace_scope(root: Path) -> int:
    try:
        return int((root / "proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0
