"""Who may release GPUs and send requests to runs: root, this exporter's user, and the members of one group.

A user is the one that the kernel reports for the client's socket, so that the address 127.0.0.1 alone permits nothing.
"""

from __future__ import annotations

import os


class Control:
    """The users of this machine that may control the exporter."""

    def __init__(self, group: str = "") -> None:
        """Take the group's name, none by default; the attribute may be replaced later."""
        self.group = group

    def includes(self, uid: int) -> bool:
        """Return True for a user who may release GPUs, and send requests to every run."""
        return uid in (0, os.geteuid()) or (bool(self.group) and _is_member(uid, self.group))


def _is_member(uid: int, name: str) -> bool:
    import grp  # which few exporters need
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrnam(name)
    except KeyError:
        return False
    return user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem
