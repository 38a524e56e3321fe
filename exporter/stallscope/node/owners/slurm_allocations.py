"""Reads which GPUs Slurm gives each job of the node, from files that its root prolog writes and its epilog removes.

A job that runs nothing has no process to find it by. `deploy/slurm/prolog.sh` therefore writes one file for each job:

    boot=5f3c8a52-0f4b-4d6e-9a3c-51d2b8e0f001
    job=4112
    user=ada
    gpus=0,1
    devices=GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f001,GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f002

Only files that root, or the exporter's user, alone can have written are read. A file of an earlier boot has no
effect.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stallscope.common.file_trust import open_own, owner_problem

FOLDER = "run/stallscope-slurm"
_MOST_FILES = 512
_MOST_BYTES = 8192
"""Ample for 128 MIG instances by UUID."""
_MOST_DEVICES = 128
_FIELDS = frozenset(("boot", "job", "user", "gpus", "devices"))
_JOB = re.compile(r"[0-9]{1,10}", re.ASCII)
_USER = re.compile(r"[^\s\x00-\x1f\x7f/]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)


class JobAllocation(NamedTuple):
    """The GPUs of one job on this node."""

    job: str
    user: str
    devices: tuple[str, ...]
    """UUIDs, or Slurm's numbers of GPUs where it does not know them."""


class SlurmAllocations:
    """Reads the folder of allocations."""

    def __init__(self, root: Path, variables: Mapping[str, str] = os.environ) -> None:
        """Prepare; nothing is opened before the first reading.

        Args:
            root: folder that contains `proc` and `run`.
            variables: environment of the exporter. One that runs in a job sees the GPUs of this job alone, under other
                numbers, and reads nothing.
        """
        self._in_job = "SLURM_JOB_ID" in variables
        self._folder = root / FOLDER
        self._boot = root / "proc/sys/kernel/random/boot_id"

    def read(self) -> tuple[tuple[JobAllocation, ...], tuple[str, ...]]:
        """Return the jobs, and one line about each file that was refused."""
        if self._in_job:
            return (), ()
        try:
            names, problem = self._names()
        except FileNotFoundError:
            return (), ()
        except OSError as error:
            return (), (f"{self._folder}: {error.strerror or error}",)
        jobs: list[JobAllocation] = []
        problems = [f"{self._folder}: {problem}"] if problem else []
        boot = _first_line(self._boot) if names else ""
        for name in names:
            path = self._folder / name
            try:
                job = _parsed(_content(path), boot)
            except FileNotFoundError:
                continue  # the job has just ended
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            if job is not None:
                jobs.append(job)
        return tuple(jobs), tuple(problems)

    def _names(self) -> tuple[list[str], str]:
        """Return the files' names, and why the folder or some of its files are not read.

        Raises:
            OSError: the folder does not exist, or can't be read.
        """
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return [], "it is not a folder"
        problem = owner_problem(status)
        if problem or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return [], problem or f"its mode is {stat.S_IMODE(status.st_mode):04o}, expected 0755"
        # Names with a dot are files that are being written.
        names = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))  # noqa: PTH208 - the cheap way
        more = len(names) - _MOST_FILES
        return names[:_MOST_FILES], f"{more} files above the limit of {_MOST_FILES} are not read" if more > 0 else ""


def _content(path: Path) -> str:
    """Return the text of a file.

    Raises:
        OSError: it can't be read, or others may have written it.
        ValueError: it is too long, or not UTF-8.
    """
    with os.fdopen(open_own(path), "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _parsed(text: str, boot: str) -> JobAllocation | None:
    """Parse a file; None if it was written before the machine's last start.

    Raises:
        ValueError: it is malformed.
    """
    fields = dict(line.split("=", 1) for line in text.splitlines() if line.split("=", 1)[0] in _FIELDS and "=" in line)
    if not fields.get("boot"):
        raise ValueError("it has no line boot=")
    if fields["boot"] != boot:
        return None
    job, user = fields.get("job", ""), fields.get("user", "")
    if not _JOB.fullmatch(job):
        raise ValueError("job: expected a number of at most ten digits")
    if user and not _USER.fullmatch(user):
        raise ValueError("user: expected a name of at most 64 characters without blanks")
    uuids, numbers = (tuple(filter(None, fields.get(name, "").split(","))) for name in ("devices", "gpus"))
    devices = uuids if uuids and all(map(_UUID.fullmatch, uuids)) else numbers
    if not devices or not all(_UUID.fullmatch(each) or _NUMBER.fullmatch(each) for each in devices):
        raise ValueError("gpus: expected numbers that are separated by commas")
    if len(devices) > _MOST_DEVICES:
        raise ValueError(f"gpus: expected at most {_MOST_DEVICES}")
    return JobAllocation(job, user, devices)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
