"""Processes that the kernel killed because memory was exhausted, by cgroup. The memory collector uses it."""

from __future__ import annotations

import os
from pathlib import Path

from stallscope.node.collectors.files import read_if_answered

_MOST_SHOWN = 32
"""Cgroups with kills that are kept."""
_MOST_READ = 16_384
"""Cgroups that are read at once; a node of Kubernetes has some hundreds."""
_LONGEST = 256
"""Characters of a label; the end of a path is its most specific part."""


class CgroupKills:
    """Counts the kernel's kills by cgroup, from the first call on.

    Version 2 counts a kill in the cgroup of the process and in all above it, version 1 in that cgroup alone. A cgroup
    is often removed right after a kill, and its counter with it: the cgroup above then counts more than those below it
    together, and the difference is its own.
    """

    def __init__(self, root: Path) -> None:
        """Prepare.

        Args:
            root: where `sys` is.
        """
        self._mount = str(root / "sys/fs/cgroup")
        self._hierarchical = True
        self._seen: int | None = None
        self._before: dict[str, int] = {}
        self._kills: dict[str, int] = {}

    def read(self, host_kills: int) -> dict[str, int]:
        """Return the kills by cgroup; reads every cgroup, but only where the host's counter has changed.

        Args:
            host_kills: the host's counter.
        """
        if host_kills != self._seen:
            counted = self._counted()
            if self._seen is not None:
                self._add(counted)
            self._before = {path: count for path, count in counted.items() if count}
            self._seen = host_kills
        return self._kills

    def _add(self, counted: dict[str, int]) -> None:
        growth = {}
        for path, count in counted.items():
            before = self._before.get(path, 0)
            # A smaller count is that of a new cgroup of the same name.
            growth[path] = count - before if count >= before else count
        own = dict(growth)
        if self._hierarchical:
            for path, count in growth.items():
                above = path.rpartition("/")[0]
                if above in own:
                    own[above] -= count
        for path, count in own.items():
            if count > 0:
                name = "".join(character if character.isprintable() else "?" for character in path[-_LONGEST:])
                self._kills[name] = self._kills.pop(name, 0) + count  # moves it to the end: the newest kill
        for name in list(self._kills)[:-_MOST_SHOWN]:
            del self._kills[name]

    def _counted(self) -> dict[str, int]:
        """Return the kernel's counter of each cgroup by its path; the root of version 2 has none."""
        mount, file = self._mount, "memory.events"
        self._hierarchical = _kills(f"{mount}/memory/memory.oom_control") is None
        if not self._hierarchical:
            mount, file = f"{mount}/memory", "memory.oom_control"
        counted: dict[str, int] = {}
        waiting = [""]
        for _ in range(_MOST_READ):
            if not waiting:
                break
            path = waiting.pop()
            if path:
                count = _kills(f"{mount}{path}/{file}")
                if count is None:
                    continue  # gone, or without a memory controller, as all below it
                counted[path] = count
            waiting += [f"{path}/{name}" for name in _folders(f"{mount}{path}")]
        return counted


def _folders(path: str) -> list[str]:
    """Return the names of the folders in a folder; empty if it does not exist."""
    try:
        with os.scandir(path) as found:
            return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _kills(path: str) -> int | None:
    """Return the counter in the file, or None without one."""
    try:
        text = read_if_answered(path)
    except (OSError, ValueError):
        return None
    for line in (text or "").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdecimal():
            return int(count)
    return None
