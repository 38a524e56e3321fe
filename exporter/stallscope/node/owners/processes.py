"""Reads the owner of a process from `/proc`: user, and container or Slurm job.

Drivers name processes by the host's numbers, or by those of the exporter's own PID namespace. In a container the
exporter therefore needs the host's: `hostPID: true` in Kubernetes, `--pid=host` with Docker. User names come from
`/etc/passwd`; where users live in a directory service, or the file is the container's own, a user goes by number. The
environment of other users' processes takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, which root has outside containers;
without both, jobs and containers are still read from cgroups, but on a GPU that pods share, the pod of a process is
unknown.

A process sets its own environment, so that `SLURM_JOB_ID` proves nothing: a Slurm job is read from the cgroup. Where
Slurm makes no cgroups, or names them without the job's number (26.05 and newer), the number is in the title of root's
`slurmstepd` that started the process, or that manages the cgroup.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 256 * 1024
_PARENT, _START_TIME = 1, 19
"""Positions in `/proc/<pid>/stat`, counted from the field after the name."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-f])")
_JOB = r"[0-9]{1,10}"
"""Slurm's numbers have 32 bits; users name cgroups and set variables, and a longer one would become a label."""
_SLURM = re.compile(rf"(?:/slurm[^/]*/uid_[0-9]+|slurmstepd\.scope)/job_({_JOB})(?:/|$)|/job_({_JOB})/step_")
"""Version 1 names the user in between, version 2 does not; with several daemons a node, its name is in there too."""
_UNNUMBERED_JOB = re.compile(r"(?:/[^/]+)*/[^/]*slurmstepd\.scope/s[0-9A-HJKMNP-TV-Z]{13}(?=/step_)")
"""Cgroup of a job since Slurm 26.05: named by an identifier that does not contain the number."""
_STEP_DAEMON = re.compile(rf"slurmstepd: \[({_JOB})[.+]", re.ASCII)
"""Title of the daemon of a job's step: `slurmstepd: [4112.batch]`."""
_MOST_ANCESTORS = 64
_MOST_STEPS = 64
_ENVIRONMENT = frozenset((b"HOSTNAME", b"POD_NAME", b"POD_NAMESPACE"))


class Process(NamedTuple):
    """A process on a GPU. Unknown texts are empty."""

    started: int
    """Clock ticks since the machine started: distinguishes processes with the same pid."""
    user: str
    """Name of the real user on the host, or the number as text."""
    container: str
    """Id of the innermost container."""
    pod_uid: str
    """Kubernetes' id of the pod, in lower case with dashes."""
    slurm_job: str
    host_name: str
    """Host name of the process; in Kubernetes, the pod."""
    pod_name: str
    """`POD_NAME` and `POD_NAMESPACE`, which many pods are given by the downward API."""
    pod_namespace: str
    outside_kubernetes: bool
    """True if the cgroup shows that this is not a process of a pod."""


class Processes:
    """Looks up processes, and caches them while they are requested. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        """Prepare.

        Args:
            root: folder that contains `proc`, `sys` and `etc`.
        """
        self._proc = str(root / "proc")
        self._cgroups = root / "sys/fs/cgroup"
        self._passwd = str(root / "etc/passwd")
        self._passwd_changed: int | None = None
        self._users: dict[int, str] = {}
        self._known: dict[int, Process] = {}
        self.reused: frozenset[int] = frozenset()
        """Return the numbers that belonged to another process at an earlier lookup."""

    def look_up(self, pids: Iterable[int]) -> Mapping[int, Process]:
        """Return the owner's data of each visible process.

        An ended process is returned while it is requested: the driver lists it for a little longer.
        """
        found: dict[int, Process] = {}
        reused: set[int] = set()
        for pid in pids:
            known = self._known.get(pid)
            started = self._started(pid)
            if known is not None and started in (None, known.started):
                found[pid] = known
            elif started is not None:
                read = self._read(pid, started)
                if read is not None:
                    found[pid] = read
                    if known is not None:
                        reused.add(pid)
        self._known = found
        self.reused = frozenset(reused)
        return found

    def _started(self, pid: int) -> int | None:
        """Return the start of the process; None if it is not visible."""
        return self._number(pid, _START_TIME)

    def _number(self, pid: int, place: int) -> int | None:
        """Return a number of `/proc/<pid>/stat` by its position after the name; None if it can't be read."""
        content = _read_some(f"{self._proc}/{pid}/stat")
        # A name may hold blanks and brackets of its own.
        numbers = (content or b"").rpartition(b")")[2].split()
        return int(numbers[place]) if len(numbers) > place and numbers[place].isdigit() else None

    def _read(self, pid: int, started: int) -> Process | None:
        """Return the owner's data; None if it ended, and its number may be another process's."""
        cgroup = (_read_some(f"{self._proc}/{pid}/cgroup") or b"").decode(errors="replace")
        status = _read_some(f"{self._proc}/{pid}/status") or b""
        environment = _environment(_read_some(f"{self._proc}/{pid}/environ") or b"")
        if self._started(pid) != started:
            return None
        paths = [line.split(":", 2)[-1] for line in cgroup.split("\n")]
        pod_uid = next((match[1] for path in paths if (match := _POD.search(path))), "")
        job = next((match[1] or match[2] for path in paths if (match := _SLURM.search(path))), "")
        job = job or ("" if pod_uid else self._job_of_ancestors(pid) or self._job_of_cgroups(paths))
        return Process(
            started=started,
            user=self._user(status),
            container=next((ids[-1] for path in paths if (ids := _CONTAINER.findall(path))), ""),
            pod_uid=_dashed(pod_uid),
            slurm_job=job,
            host_name=environment.get(b"HOSTNAME", ""),
            pod_name=environment.get(b"POD_NAME", ""),
            pod_namespace=environment.get(b"POD_NAMESPACE", ""),
            outside_kubernetes=not pod_uid and any(path.strip("/.") for path in paths),
        )

    def _job_of_ancestors(self, pid: int) -> str:
        """Return the job whose step daemon is an ancestor of the process; empty without one."""
        ancestor: int | None = pid
        for _ in range(_MOST_ANCESTORS):
            ancestor = self._number(ancestor, _PARENT) if ancestor else None
            if not ancestor:
                return ""
            if job := self._job_of_step_daemon(ancestor):
                return job
        return ""

    def _job_of_cgroups(self, paths: Iterable[str]) -> str:
        """Return the job whose cgroup contains the process, by the step daemons in it.

        They are not among the ancestors of a daemon, or of a session that pam_slurm_adopt moved into the job.
        """
        folder = next((match[0] for path in paths if (match := _UNNUMBERED_JOB.match(path))), None)
        if folder is None:
            return ""
        steps = (self._cgroups / folder[1:]).glob("step_*/slurm/cgroup.procs")
        for step in islice(steps, _MOST_STEPS):
            for pid in (_read_some(str(step)) or b"").split():
                if pid.isdigit() and (job := self._job_of_step_daemon(int(pid))):
                    return job
        return ""

    def _job_of_step_daemon(self, pid: int) -> str:
        """Return the job of a step daemon; empty if the process is something else."""
        title = (_read_some(f"{self._proc}/{pid}/cmdline") or b"").decode(errors="replace")
        match = _STEP_DAEMON.match(title)
        return match[1] if match and _uid(_read_some(f"{self._proc}/{pid}/status") or b"") == "0" else ""

    def _user(self, status: bytes) -> str:
        uid = _uid(status)
        self._renew_users()
        return self._users.get(int(uid), uid) if uid.isdecimal() else ""

    def _renew_users(self) -> None:
        try:
            changed = os.stat(self._passwd).st_mtime_ns  # noqa: PTH116 - the cheap way
        except OSError:
            self._users, self._passwd_changed = {}, None
            return
        if changed == self._passwd_changed:
            return
        users: dict[int, str] = {}
        for line in (_read_some(self._passwd) or b"").decode(errors="replace").split("\n"):
            parts = line.split(":")
            if len(parts) > 2 and parts[0] and parts[2].isdecimal():
                users.setdefault(int(parts[2]), parts[0])
        self._users, self._passwd_changed = users, changed


def _uid(status: bytes) -> str:
    """Return the real user's number in `/proc/<pid>/status`; empty where it is missing."""
    for line in status.split(b"\n"):  # no other end of line: a name may hold those
        if line.startswith(b"Uid:"):
            return line.split()[1].decode(errors="replace")
    return ""


def _environment(content: bytes) -> dict[bytes, str]:
    """Return the environment variables that identify the pod or job of a process."""
    found: dict[bytes, str] = {}
    for entry in content.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in _ENVIRONMENT:
            found.setdefault(name, value.decode(errors="replace"))
    return found


def _dashed(uid: str) -> str:
    """Return a pod's id with dashes: systemd's slices have underscores, static pods have none."""
    plain = uid.replace("_", "").replace("-", "")
    return "-".join((plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:])) if plain else ""


def _read_some(path: str) -> bytes | None:
    """Return the beginning of a file, up to 256 KiB; None if it does not exist or is not readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        content = piece = os.read(descriptor, _MOST_BYTES)
        while piece and len(content) < _MOST_BYTES:
            piece = os.read(descriptor, _MOST_BYTES - len(content))
            content += piece
        return content
    except OSError:  # it ended between the two calls
        return None
    finally:
        os.close(descriptor)
