"""Busy time by owner. It never decreases: the time of ended processes stays with their owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.owners.attribution import UNKNOWN_OWNER, Attribution, Owner

_REMEMBERED_SECONDS = 300.0


class _Account:
    """One owner's use of one GPU."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.owner = UNKNOWN_OWNER
        self.seen_at = 0.0


class _Reading(NamedTuple):
    """Last values of a process."""

    seconds: float
    at: float
    owner: Owner


class BusyAccounts:
    """Adds up the busy time of each owner's processes, and drops owners without processes for five minutes."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, Owner], _Account] = {}
        self._readings: dict[tuple[str, int], _Reading] = {}

    def add(self, occupancy: Occupancy, attribution: Attribution, now: float) -> None:
        """Add one GPU's reading.

        Args:
            occupancy: with busy seconds by process.
            attribution: the owners of the processes.
            now: monotonic seconds.
        """
        uuid = occupancy.identity.uuid
        owners = {pid: share.owner for share in attribution.shares for pid in share.pids}
        for share in attribution.shares:
            account = self._accounts.get((uuid, _key(share.owner)))
            if account is not None:
                account.owner, account.seen_at = share.owner, now
        for pid, seconds in occupancy.busy.items():
            before = self._readings.get((uuid, pid))
            # A process that has ended is reported for a while longer: its last time is its owner's.
            owner = owners.get(pid) or (before.owner if before is not None else UNKNOWN_OWNER)
            self._readings[uuid, pid] = _Reading(seconds, now, owner)
            # A counter that fell was restarted: for another process with this pid, or by a reloaded driver.
            growth = seconds - before.seconds if before is not None and seconds >= before.seconds else seconds
            if not growth and pid not in owners:
                continue
            account = self._accounts.setdefault((uuid, _key(owner)), _Account())
            account.seconds += growth
            account.owner, account.seen_at = owner, now

    def forget(self, now: float) -> None:
        """Drop owners that have had no process for too long."""
        since = now - _REMEMBERED_SECONDS
        self._accounts = {key: each for key, each in self._accounts.items() if each.seen_at >= since}
        self._readings = {key: each for key, each in self._readings.items() if each.at >= since}

    def of(self, uuid: str) -> Iterator[tuple[Owner, float]]:
        """Return the busy seconds of every present or recent owner of the GPU."""
        return ((account.owner, account.seconds) for (of, _), account in self._accounts.items() if of == uuid)


def _key(owner: Owner) -> Owner:
    """Return the identity of an owner; a pod is the same owner for all users of its processes."""
    return owner._replace(user="") if owner.pod else owner
