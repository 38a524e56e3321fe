"""Counts of collective operations by rank, as NCCL and PyTorch report them.

The other ranks wait for a rank that launched fewer operations. Equal counts are evidence too: the rank that the others
wait for has then launched every operation, and its stack shows what it does instead of waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stallscope.common.formatting import readable, several
from stallscope.model.hangs.conclusion import Conclusion, behind
from stallscope.model.view.stack_groups import named

_MAX_COMMUNICATORS = 8
"""Maximum number of printed communicators with different counts."""
_MAX_SHARES = 3
"""Maximum number of different counts of an operation in a sentence."""
_MAX_MEMBERS = 8
"""Maximum number of processes that a sentence lists."""
_LOST = {
    "dead": "NCCL considers {} dead",
    "unresponsive": "NCCL receives no response from {}",
    "left": "{} no longer belongs to it",
    "no_file": "there is no dump of {}",
    "no_operation": "no operation of {} is recorded",
}
"""Clause about ranks without counts, by their state."""


class Member(NamedTuple):
    """A rank of a communicator."""

    rank: int
    """Its number in the communicator."""
    host: str = ""
    pid: int | None = None
    run_rank: int | None = None
    """Its number in the run, if known."""


class Share(NamedTuple):
    """Members that launched the same number of operations."""

    launched: int
    """Number of operations."""
    number: int
    """Number of members."""
    members: tuple[Member, ...]
    """Empty if the source does not list them."""
    last: str = ""
    """Name of their last operation, if known."""


class Communicator(NamedTuple):
    """A communicator of NCCL, or a process group of PyTorch."""

    name: str
    size: int
    counts: Mapping[str, tuple[Share, ...]]
    """By kind of operation, the largest share first."""
    lost: tuple[tuple[Member, str], ...] = ()
    """Ranks without counts, with a key of `_LOST` each."""

    @property
    def members(self) -> Iterator[Member]:
        """The members that are listed."""
        yield from (member for member, _ in self.lost)
        yield from (member for shares in self.counts.values() for share in shares for member in share.members)

    @property
    def differs(self) -> bool:
        """True if ranks have different counts, or no counts."""
        return bool(self.lost) or any(len(shares) > 1 for shares in self.counts.values())


class Evidence(NamedTuple):
    """The communicators that one source reports."""

    source: str
    kind: str
    """Noun for a communicator of this source."""
    number: int
    """Number of all communicators, including those with equal counts, which the source does not list."""
    communicators: tuple[Communicator, ...]
    conclusion: Conclusion | None = None
    """The ranks that the others wait for, if the source shows which operations are pending."""
    problems: tuple[str, ...] = ()
    """Files that were left out, with the reason."""


def concluded(evidence: Evidence) -> Conclusion | None:
    """Return the ranks that the others wait for: from pending operations, or else the ranks that launched fewer.

    Ranks that are behind in one communicator and ahead in another one wait themselves.
    """
    if evidence.conclusion is not None and (evidence.conclusion.kind or not evidence.conclusion.waiting):
        return evidence.conclusion
    behind_in: dict[int | None, int] = {}
    ahead: set[int | None] = set()
    has_majority = True
    for communicator in evidence.communicators:
        most = {name: max(share.launched for share in shares) for name, shares in communicator.counts.items()}
        late = [
            member
            for name, shares in communicator.counts.items()
            for share in shares
            for member in share.members
            if share.launched < most[name]
        ]
        lost = [member for member, state in communicator.lost if state != "no_file"]
        ranks = {member.run_rank for member in [*late, *lost]}
        has_majority &= 2 * len(ranks) <= communicator.size
        for rank in ranks:
            behind_in[rank] = behind_in.get(rank, 0) + 1
        if ranks:
            ahead.update(member.run_rank for member in communicator.members if member.run_rank not in ranks)
    found = sorted(rank for rank in behind_in if rank is not None and rank not in ahead)
    if not found or not has_majority or None in behind_in:
        return evidence.conclusion
    number = max(communicator.size for communicator in evidence.communicators)
    waiting = sorted(rank for rank in ahead if rank is not None)
    where = several(max(behind_in[rank] for rank in found), evidence.kind)
    return behind(found, where, waiting, number)


def shared(counts: Iterable[tuple[Member, int, str]]) -> tuple[Share, ...]:
    """Group members by count and last operation, the largest share first."""
    found: dict[tuple[int, str], list[Member]] = {}
    for member, count, last in counts:
        found.setdefault((count, last), []).append(member)
    shares = [Share(count, len(members), tuple(sorted(members)), last) for (count, last), members in found.items()]
    return tuple(sorted(shares, key=lambda share: (-share.number, share.launched, share.last)))


def of_run(evidence: Evidence, world_size: str, pids: Mapping[int, int]) -> Evidence | None:
    """Return the evidence with the run's ranks, or None if it is not known to belong to the run.

    Jobs of one user can share the port of NCCL's service. A communicator of all ranks belongs to the run if the numbers
    and processes of its ranks are those that the run reported. It then gives the ranks of the processes in the other
    communicators.

    Args:
        evidence: as NCCL reported it.
        world_size: the run's number of ranks.
        pids: process of each known rank.
    """
    ranks: dict[tuple[str, int | None], int] = {}
    for communicator in evidence.communicators:
        members = [member for member in communicator.members if member.pid is not None]
        are_equal = [pids[member.rank] == member.pid for member in members if member.rank in pids]
        if str(communicator.size) == world_size and are_equal and all(are_equal):
            ranks.update({(member.host, member.pid): member.rank for member in members})
    if not ranks:
        return None

    def renamed(member: Member) -> Member:
        return member._replace(run_rank=ranks.get((member.host, member.pid)))

    return evidence._replace(
        communicators=tuple(
            communicator._replace(
                counts={
                    operation: tuple(share._replace(members=tuple(map(renamed, share.members))) for share in shares)
                    for operation, shares in communicator.counts.items()
                },
                lost=tuple((renamed(member), state) for member, state in communicator.lost),
            )
            for communicator in evidence.communicators
        )
    )


def lines(evidence: Evidence, odd: Sequence[int]) -> Iterator[str]:
    """Return a line for each communicator with different counts, or one line if all counts are equal.

    Args:
        evidence: of one source.
        odd: ranks whose stack differs from that of the others.
    """
    different = [communicator for communicator in evidence.communicators if communicator.differs]
    for communicator in different[:_MAX_COMMUNICATORS]:
        yield f"{evidence.source}: {sentence(communicator)}"
    if len(different) > _MAX_COMMUNICATORS:
        yield f"{evidence.source}: … {several(len(different) - _MAX_COMMUNICATORS, f'more {evidence.kind}')}"
    if not evidence.number:
        yield f"{evidence.source}: no {evidence.kind} yet"
    elif not different:
        where = f"in {several(evidence.number, evidence.kind)}"
        elsewhere = f"; {named(odd)} waits elsewhere, as the stack shows" if len(odd) == 1 else ""
        yield f"{evidence.source}: the counts of operations are equal on all ranks {where}{elsewhere}"


def sentence(communicator: Communicator) -> str:
    """Return what differs between the ranks of a communicator."""
    parts = [_difference(name, shares) for name, shares in communicator.counts.items() if len(shares) > 1]
    for state, text in _LOST.items():
        if lost := [member for member, its_state in communicator.lost if its_state == state]:
            parts.append(text.format(_who(lost)))
    return f"{communicator.name}, {several(communicator.size, 'rank')}: {'; '.join(parts)}"


def document(evidence: Evidence) -> dict[str, Any]:
    """Return the evidence for a JSON document: the communicators with different counts."""
    conclusion = concluded(evidence)
    return {
        "source": evidence.source,
        "conclusion": None if conclusion is None else conclusion.document(),
        "communicators": evidence.number,
        "differences": [
            {
                "name": communicator.name,
                "size": communicator.size,
                "summary": sentence(communicator),
                "operations": {
                    operation: [
                        {**share._asdict(), "members": [member._asdict() for member in share.members]}
                        for share in shares
                    ]
                    for operation, shares in communicator.counts.items()
                    if len(shares) > 1
                },
                "lost": [{**member._asdict(), "state": state} for member, state in communicator.lost],
            }
            for communicator in evidence.communicators
            if communicator.differs
        ],
    }


def _difference(operation: str, shares: Sequence[Share]) -> str:
    has_majority = shares[0].number > shares[1].number
    others = sorted(shares[1:] if has_majority else shares, key=lambda share: (share.launched, share.last))
    parts = [
        f"{_who(share.members, share.number)} launched "
        + (several(share.launched, f"{operation} operation") if share is others[0] else f"{share.launched:,}")
        + _last(share)
        for share in others[:_MAX_SHARES]
    ]
    if len(others) > _MAX_SHARES:
        parts.append(several(len(others) - _MAX_SHARES, "more count"))
    if has_majority:
        parts.append(f"the others {shares[0].launched:,}{_last(shares[0])}")
    return ", ".join(parts)


def _last(share: Share) -> str:
    return f" (last: {readable(share.last)})" if share.last else ""


def _who(members: Sequence[Member], number: int = 0) -> str:
    """Return the ranks of the run, or the processes if a rank is unknown."""
    ranks = [member.run_rank for member in members if member.run_rank is not None]
    if not members or len(members) > _MAX_MEMBERS:
        return several(number or len(members), "rank")
    if len(ranks) == len(members):
        return named(sorted(ranks))
    return ", ".join(
        f"rank {member.rank} of the communicator"
        + (f" (process {member.pid} on {readable(member.host)})" if member.pid is not None else "")
        for member in members
    )
