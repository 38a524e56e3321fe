"""Decides whether a new or growing rank finds room within the limits, and which ranks it displaces.

Runs, ranks, series and memory are limited: in total, for each run, and for each sender (see `quotas`). A new rank above
a limit is refused. At a limit of the total,

- a local user displaces ranks of the largest sender, if that sender still holds at least as much as this user
  afterwards: first ended ranks, then ranks that the network reported only once, then the newest.
- a sender on the network displaces only ranks of the network that were reported once, more than a minute ago.

No sender creates more series within an expiry time than the exporter may hold.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from stallscope.node.intake.held import Held, Holdings
from stallscope.node.intake.quotas import Key, Limits, Sender, Totals, Usage
from stallscope.training.protocol.report import ReportError

_PROOF_SECONDS = 10.0
"""Seconds of reports after which a rank of the network is proven."""
_UNPROVEN_SILENCE = 60.0
"""Seconds of silence after which an unproven rank can be displaced by another one of the network."""
_ENDED, _UNPROVEN, _REMOTE, _LOCAL = range(4)
"""Order of displacement of one sender's ranks."""

_logger = logging.getLogger(__name__)


class _Shortage(NamedTuple):
    """A limit that a rank would exceed."""

    resource: str
    """The field of Usage."""
    of_run: bool
    error: ReportError


class Room:
    """Usage of all ranks, within the limits. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.totals = Totals()
        self._created: dict[Sender, tuple[float, int]] = {}
        """Start of a sender's current expiry time, and the series it has created since."""

    def fits(self, key: Key, usage: Usage) -> bool:
        """Return True if a rank with this usage displaces none."""
        return self._shortage(key, usage) is None

    def make(
        self, ranks: Holdings, key: Key, sender: Sender, usage: Usage, new_series: int, now: float, expiry: float
    ) -> Collection[Key]:
        """Make room for a new or growing rank, and return the ranks that it displaces: `totals` is without them.

        Args:
            ranks: every rank.
            key: the rank.
            sender: its sender.
            usage: total usage of the rank.
            new_series: series that are not exposed yet.
            now: monotonic time.
            expiry: seconds for which the created series of a sender are counted.

        Raises:
            ReportError: the rank would still exceed a limit; no rank is displaced.
        """
        displaced: list[tuple[Key, Sender, Usage]] = []
        try:
            while (shortage := self._shortage(key, usage)) is not None:
                victims = () if shortage.of_run else self._next(ranks, key, sender, usage, shortage.resource, now)
                if not victims:
                    raise shortage.error
                for victim in victims:
                    displaced.append((victim, self.totals.sender_of(victim), self.totals.rank(victim)))
                    self.totals.remove(victim)
            self._count_created(sender, new_series, now, expiry)
        except ReportError:
            for each in displaced:
                self.totals.set(*each)
            raise
        for (run, rank), owner, _usage in displaced:
            _logger.warning(
                "dropped run %r rank %d of %s for run %r of %s",
                *(run, rank, _name_of(owner), key[0], _name_of(sender)),
            )
        return frozenset(victim for victim, _owner, _usage in displaced)

    def forget_created(self, now: float, expiry: float) -> None:
        """Forget what senders created before their current expiry time."""
        self._created = {
            sender: (since, number) for sender, (since, number) in self._created.items() if now - since < expiry
        }

    def _count_created(self, sender: Sender, number: int, now: float, expiry: float) -> None:
        """Count the series that a sender creates.

        Raises:
            ReportError: the sender would create more series within an expiry time than the exporter may hold.
        """
        if not number:
            return
        since, before = self._created.get(sender, (now, 0))
        if now - since >= expiry:
            since, before = now, 0
        if before + number > self.limits.series:
            raise ReportError(
                "series_limit",
                f"{_name_of(sender)} has created {before} series within {expiry:g} s, the limit is "
                f"{self.limits.series}; use the same names of runs, phases and values again",
            )
        self._created[sender] = (since, before + number)

    def _shortage(self, key: Key, usage: Usage) -> _Shortage | None:
        """Return the first limit that the rank would exceed with this usage, or None."""
        run = self.totals.run(key[0])
        more = usage.minus(self.totals.rank(key))._replace(runs=int(not run.ranks))
        for of_run, limit, total in ((False, self.limits.all, self.totals.all), (True, self.limits.run, run)):
            for resource, most, held, added in zip(Usage._fields, limit, total, more, strict=True):
                if added > 0 and held + added > most:
                    return _Shortage(resource, of_run, _limit_error(resource, most, key[0] if of_run else ""))
        return None

    def _next(
        self, ranks: Holdings, key: Key, sender: Sender, usage: Usage, resource: str, now: float
    ) -> Sequence[Key]:
        """Return the ranks to displace next: all of one run at the limit of runs, else one; empty if none may be."""
        more = usage.minus(self.totals.rank(key))._replace(runs=1)
        needed = getattr(self.totals.sender(sender).plus(more), resource)
        # During a flood of refused reports, the loop over all ranks would be too expensive.
        if sender is None:
            if not any(_displaceable_by_network(held, now) for held in ranks.values()):
                return ()
        elif not any(getattr(other, resource) > needed for other in self.totals.senders_except(sender)):
            return ()
        groups: dict[Key | str, list[Key]] = {}
        for each in ranks:
            if each != key and self.totals.rank(each).ranks:
                groups.setdefault(each[0] if resource == "runs" else each, []).append(each)
        first: tuple[tuple[float, ...], Sequence[Key]] = ((0.0,), ())
        for group in groups.values():
            owner = self.totals.sender_of(group[0])
            held = getattr(self.totals.sender(owner), resource)
            order = (-held, *max(_displacement_order(ranks[each]) for each in group))
            if order >= first[0] or any(self.totals.sender_of(each) != owner for each in group):
                continue
            if owner == sender:
                allowed = all(_displaceable_by_network(ranks[each], now) for each in group)
            else:
                lost = 1 if resource == "runs" else getattr(self.totals.rank(group[0]), resource)
                allowed = sender is not None and held - lost >= needed
            if allowed:
                first = (order, group)
        return first[1]


def _displacement_order(held: Held) -> tuple[int, float]:
    """Return the sort key of a rank: the lowest is displaced first.

    Among ended and unproven ranks the oldest goes first, among the others the newest.
    """
    if held.ended is not None:
        return _ENDED, held.ended
    if held.uid is not None:
        return _LOCAL, -held.admitted
    if held.last_seen - held.admitted < _PROOF_SECONDS:
        return _UNPROVEN, held.admitted
    return _REMOTE, -held.admitted


def _displaceable_by_network(held: Held, now: float) -> bool:
    """Return True for an unproven rank that has been silent for long enough."""
    return now - held.last_seen >= _UNPROVEN_SILENCE and _displacement_order(held)[0] == _UNPROVEN


def _name_of(sender: Sender) -> str:
    return "the network" if sender is None else f"user {sender}"


def _limit_error(resource: str, limit: int, run: str) -> ReportError:
    """Return the error for a rank that would exceed a limit of all ranks, or of `run` if it is not empty."""
    subject, place = (f"run {run!r} has", " on this exporter") if run else ("this exporter holds", "")
    more_ranks = "report some of them to another exporter" if run else "raise --report.max-ranks"
    reason, amount, remedy = {
        "runs": ("run_limit", f"{limit} runs", "raise --report.max-runs"),
        "ranks": ("rank_limit", f"{limit} ranks", more_ranks),
        "series": ("series_limit", f"ranks with up to {limit} series", "report fewer ranks, phases or values"),
        "memory": (
            *("memory_limit", f"ranks that take up to {limit >> 20} MiB"),
            "use shorter names of runs, phases and values",
        ),
    }[resource]
    return ReportError(reason, f"{subject} {amount}{place}, its limit; {remedy}")
