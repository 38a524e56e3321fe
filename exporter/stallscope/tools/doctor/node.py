"""Checks of the machine: drivers, GPUs, and permissions of the exporter's user."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from stallscope.model.clients.exporter import ExporterClient
from stallscope.node.owners.pod_resources import SOCKET as POD_RESOURCES_SOCKET
from stallscope.tools.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, skipped, warning
from stallscope.tools.doctor.drivers import drivers, text_of
from stallscope.tools.doctor.exporter import client_of
from stallscope.training.protocol.vocabulary import DEFAULT_SOCKET

_READ, _WRITE, _SEARCH = 4, 2, 1
_LISTENING = "0A"
"""State of a listening socket in `/proc/net/tcp`."""
_DEVICE_FILES = re.compile(r"nvidia(ctl|\d+)")
"""Only NVIDIA's: AMD's metrics come from files that all users may read."""


class User(NamedTuple):
    """The user and groups of an exporter's process."""

    pid: int
    uid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        """Return the user's name and the process, for messages."""
        return f"user {_user_name(self.uid)} of the exporter (process {self.pid})"


class Node(NamedTuple):
    """The machine to check."""

    subject: Subject
    exporter: ExporterClient
    exporters: tuple[User, ...]
    """One exporter process per user."""
    is_remote: bool
    """True if the exporter's URL names another machine."""


def _begin(subject: Subject) -> Node:
    exporter = client_of(subject)
    if not _is_this_machine(exporter.host):
        return Node(subject, exporter, (), is_remote=True)
    return Node(subject, exporter, tuple(_exporters(subject.root / "proc", exporter.port)), is_remote=False)


def _device_files(node: Node) -> Iterator[Finding]:
    _need_exporter(node)
    for user in node.exporters:
        view = _view(node.subject.root, user)
        files = [each for each in sorted((view / "dev").glob("*")) if _DEVICE_FILES.fullmatch(each.name)]
        closed = [each for each in files if not _may(view, f"dev/{each.name}", user, _READ | _WRITE)]
        for each in closed:
            status = each.stat()
            yield failed(
                f"{user} cannot open /dev/{each.name} ({_mode(status)})",
                f"add it to group {_group_name(status.st_gid)} (SupplementaryGroups= in its unit), or let the driver "
                "create the files for all users (NVreg_DeviceFileMode=0666)",
            )
        if files and not closed:
            yield ok(f"{user} may open {len(files)} GPU device files")
        elif not files:
            yield skipped("there are no device files of NVIDIA GPUs")


def _processes(node: Node) -> Iterator[Finding]:
    _need_exporter(node)
    proc = node.subject.root / "proc"
    for user in node.exporters:
        options = _proc_options(text_of(proc / f"{user.pid}/mounts") or text_of(proc / "mounts"))
        hidden = options.get("hidepid", "0") not in ("0", "off")
        if user.uid and hidden and int(options.get("gid", "-1")) not in user.groups:
            yield failed(
                f"{user} cannot see other users' processes: /proc is mounted with hidepid={options['hidepid']}",
                "to find the owners of GPUs, add it to the group of the mount's gid= option, or set "
                "ProtectProc=default in its unit",
            )
        elif user.uid:
            yield warning(
                f"{user} is not root: it cannot read the environment of other users' processes",
                "Slurm jobs and containers are still found by cgroup; if pods share a GPU, run it as root or with "
                "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
            )
        else:
            yield ok(f"{user} sees all processes")


def _pod_resources(node: Node) -> Iterator[Finding]:
    _need_exporter(node)
    if not (node.subject.root / POD_RESOURCES_SOCKET).parent.parent.is_dir():
        yield skipped("this is not a Kubernetes node")
        return
    for user in node.exporters:
        view = _view(node.subject.root, user)
        try:
            (view / POD_RESOURCES_SOCKET).stat()
            reachable = _may(view, POD_RESOURCES_SOCKET, user, _READ | _WRITE)
        except PermissionError:
            yield skipped(f"/{POD_RESOURCES_SOCKET}: permission denied", "run stallscope doctor as root")
        except FileNotFoundError:
            yield failed(
                f"/{POD_RESOURCES_SOCKET} does not exist for {user}",
                "mount the folder /var/lib/kubelet/pod-resources into its container, as deploy/kubernetes does",
            )
        else:
            if reachable:
                yield ok(f"{user} may query the kubelet for the GPUs of pods")
            else:
                yield failed(
                    f"{user} cannot open /{POD_RESOURCES_SOCKET}",
                    "the kubelet accepts only root: run the exporter's container as root, as deploy/kubernetes does",
                )


def _report_socket(node: Node) -> Iterator[Finding]:
    address = node.subject.environment.get("STALLSCOPE_ADDRESS", "").strip()
    if address and not address.startswith("unix://"):
        yield skipped(f"reports go to {address}")
        return
    name = address.removeprefix("unix://") or DEFAULT_SOCKET
    path = node.subject.root / name.lstrip("/")
    try:
        status = path.stat()
    except FileNotFoundError:
        remedy = (
            "start the exporter with --report.unix-socket as a user that may write to the folder; in a container, "
            "mount the folder"
        )
        if address:  # without an address, the shim falls back to UDP
            yield failed(f"there is no report socket at {name}, so reports are lost", remedy)
        else:
            yield warning(
                f"there is no report socket at {name}: reports are sent to this machine over UDP, without their user",
                remedy,
            )
        return
    except PermissionError:
        yield failed(f"{name} is in a folder that this user cannot search", "chmod 0755 the folders above it")
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield failed(f"{name} is not a socket", "remove it, and restart the exporter")
    elif not _is_listening(path):
        yield failed(f"no process listens at {name}", "start the exporter; the socket is left from a killed one")
    elif status.st_mode & 0o222 != 0o222:
        yield warning(
            f"{name} is not open to all users ({_mode(status)}): other users' trainings cannot report",
            f"chmod 0666 {name}, or restart the exporter, which does so",
        )
    else:
        yield ok(f"every user may report to {name}")


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # a process listens, but this user may not connect
    return True


def _need_exporter(node: Node) -> None:
    if node.is_remote:
        raise Stop(skipped(f"the exporter {node.exporter.name} runs on another machine", "run stallscope doctor there"))
    if not node.exporters:
        raise Stop(
            skipped(
                f"no exporter process that listens on port {node.exporter.port} is visible",
                "run stallscope doctor as root where the exporter runs: on the host, or in its pod",
            )
        )


def _exporters(proc: Path, port: int) -> Iterator[User]:
    """Yield the exporters that listen on a TCP port here, one per user."""
    seen: set[int] = set()
    for folder in proc.glob("[0-9]*"):
        words = text_of(folder / "cmdline").split("\0")
        if not any(Path(word).name == "stallscope" and next_ == "exporter" for word, next_ in pairwise(words)):
            continue
        status = dict(line.split(":", 1) for line in text_of(folder / "status").split("\n") if ":" in line)
        try:
            uid, group = (int(status[key].split()[1]) for key in ("Uid", "Gid"))
            groups = frozenset((group, *map(int, status.get("Groups", "").split())))
        except (KeyError, ValueError, IndexError):
            continue  # the process has ended
        if uid not in seen and _listens(folder, port, uid):
            seen.add(uid)
            yield User(int(folder.name), uid, groups)


def _listens(folder: Path, port: int, uid: int) -> bool:
    """Return True if a process listens on a TCP port of its own network namespace.

    If its descriptors cannot be read, a listening socket of the same user counts.
    """
    owners: dict[str, int] = {}
    for name in ("net/tcp", "net/tcp6"):
        for line in text_of(folder / name).split("\n")[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                owners[f"socket:[{words[9]}]"] = int(words[7])
    try:
        return any(str(each.readlink()) in owners for each in (folder / "fd").iterdir())
    except OSError:
        return uid in owners.values()


def _is_this_machine(host: str) -> bool:
    """Return True if a name or an address belongs to this machine: a socket can be bound to it."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def _view(root: Path, user: User) -> Path:
    """Return the root of the exporter's own file system if this user may read it, `root` otherwise."""
    own = root / f"proc/{user.pid}/root"
    with contextlib.suppress(OSError):
        if (own / "dev").is_dir():
            return own
    return root


def _may(root: Path, name: str, user: User, wanted: int) -> bool:
    """Return True if the modes of a file and of its folders below the root allow the user that access.

    Raises:
        OSError: the file's mode cannot be read.
    """
    path = root / name
    folders = [each for each in path.parents if each.is_relative_to(root)]
    return user.uid == 0 or (
        _allows(path.stat(), user, wanted) and all(_allows(each.stat(), user, _SEARCH) for each in folders)
    )


def _allows(status: os.stat_result, user: User, wanted: int) -> bool:
    if status.st_uid == user.uid:
        bits = status.st_mode >> 6
    elif status.st_gid in user.groups:
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    return bits & wanted == wanted


def _proc_options(mounts: str) -> dict[str, str]:
    """Return the mount options of `/proc`, from its last mount."""
    for line in reversed(mounts.split("\n")):
        words = line.split(" ")
        if len(words) > 3 and words[1:3] == ["/proc", "proc"]:
            return dict(option.partition("=")[::2] for option in words[3].split(","))
    return {}


def _mode(status: os.stat_result) -> str:
    return f"{stat.filemode(status.st_mode)}, {_user_name(status.st_uid)}:{_group_name(status.st_gid)}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


PART = Part(
    "node",
    _begin,
    (
        ("drivers", lambda node: drivers(node.subject.root, node.subject.driver_timeout)),
        ("device files", _device_files),
        ("processes", _processes),
        ("pod resources", _pod_resources),
        ("report socket", _report_socket),
    ),
)
