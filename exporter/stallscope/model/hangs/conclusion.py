"""Find the ranks that the others wait for in a hang, from the operations that each rank launched.

A rank waits in its oldest pending operation. It waits for the ranks that have not launched this operation, or that wait
in another operation first. The chain of waiting ranks ends at the reason for the hang:

- a rank without a pending operation: it is behind, and its program does something else;
- a rank whose operation the other ranks have completed, or that alone has not started it: its GPU is stuck;
- a rank without a dump;
- a circle of ranks that wait for each other;
- an operation that all its ranks have launched: the network or a kernel hangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stallscope.common.formatting import readable, several
from stallscope.model.view.stack_groups import Grouping, culprits, is_waiting, named, sentence

BEHIND, MISMATCH, DEADLOCK, NO_DUMP, STUCK, ALONE = "behind", "mismatch", "deadlock", "no_dump", "stuck", "alone"
ELSEWHERE = "elsewhere"
"""Kinds of conclusions."""
SEND, RECV = "send", "recv"
_NOTHING = "no rank stands out"
_MAX_REASONS = 8
"""Maximum number of ranks with a line of evidence."""
_MAX_LISTED = 8
"""Maximum number of ranks, or of ranges of ranks, in a sentence."""
_MAX_COUNTED = 64
"""Maximum number of ranks whose process groups are counted."""
_ONE_WAY = {"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"}
"""Operations that some ranks can complete before others have launched them."""
_EQUAL_SIZES = {
    *("all_reduce", "allreduce_coalesced", "_all_gather_base", "_reduce_scatter_base", "all_gather_single"),
    *("reduce_scatter_single", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather"),
}
"""Operations whose tensors have the same size on all ranks."""


@dataclass(eq=False)
class Group:
    """A process group."""

    name: str
    ranks: tuple[int, ...]
    """In the order of their numbers in the group; empty if unknown."""


class Launch(NamedTuple):
    """An operation that a rank has launched: a collective operation, or transfers that are launched together."""

    group: Group
    number: int
    """Position among the collective operations of the group, or among the transfers of the rank in the group."""
    name: str
    transfers: tuple[tuple[str, int], ...] = ()
    """Direction and peer of each transfer; empty for a collective operation."""
    elements: int | None = None
    """Number of elements, if known."""
    type: str = ""
    """Data type of the elements, if known."""
    is_started: bool = False
    """True if the GPU has started it, as far as PyTorch measures it."""

    def __str__(self) -> str:
        if self.transfers:
            kind, peer = self.transfers[0]
            more = f" and {several(len(self.transfers) - 1, 'more transfer')}" if len(self.transfers) > 1 else ""
            return f"{kind} {'to' if kind == SEND else 'from'} rank {peer}{more} in {self.group.name}"
        return f"{readable(self.name)} {self.number:,} of {self.group.name}"


@dataclass
class Progress:
    """The operations of a rank in one process group."""

    launched: int = -1
    """Number of the newest collective operation; -1 if the rank has launched none."""
    last: str = ""
    """Name of the newest collective operation, if known."""
    transferred: int = -1
    """Number of the newest transfer; -1 if the rank has launched none."""
    pending: dict[int, Launch] = field(default_factory=dict)
    """Collective operations that the rank has launched and not completed, by number."""
    completed: dict[int, Launch] = field(default_factory=dict)
    """The newest completed collective operations, by number."""
    transfers: list[Launch] = field(default_factory=list)
    """Pending transfers."""
    ended: int = -1
    """Number of the newest collective operation if it is completed or has failed: Gloo records no difference."""

    def has_completed(self, number: int) -> bool:
        """Return whether the rank has completed a collective operation."""
        return number <= self.launched and number not in self.pending

    def has_transferred(self, number: int) -> bool:
        """Return whether the rank has completed a transfer."""
        return number <= self.transferred and all(each.number > number for each in self.transfers)


@dataclass
class RankOperations:
    """The operations of one rank."""

    groups: dict[Group, Progress] = field(default_factory=dict)
    oldest: Launch | None = None
    """The oldest pending operation."""

    def progress(self, group: Group) -> Progress:
        """Return the operations in a group; without any, the rank is silent there."""
        return self.groups.get(group) or Progress()


class Conclusion(NamedTuple):
    """The ranks that the others wait for."""

    sentence: str
    kind: str = ""
    """Empty if no rank stands out."""
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    """Ranks that wait for them."""
    reasons: tuple[str, ...] = ()
    """Evidence, one line each."""

    def document(self) -> dict[str, Any]:
        """Return the conclusion for a JSON document."""
        return {**self._asdict(), "kind": self.kind or None, "sentence": self.sentence}


def conclude(operations: Mapping[int, RankOperations], unreadable: Iterable[int] = ()) -> Conclusion:
    """Return the ranks that the others wait for, or the reason why no rank stands out.

    Args:
        operations: of each rank with a dump.
        unreadable: ranks whose dump can't be read. They are not named, because their progress is unknown.
    """
    return _Hang(operations, set(unreadable)).conclusion()


def by_stacks(found: Grouping) -> Conclusion | None:
    """Return the ranks whose stacks differ from those of the waiting ranks, or without a stack; None without stacks."""
    present = {rank for group in found.groups for rank in group.ranks}
    ranks = len(present)
    if not ranks:
        return None
    missing = [rank for rank in range(max(present)) if rank not in present]
    if len(found.groups) == 1 and 0 < len(missing) < ranks and is_waiting(found.groups[0].stack):
        text = f"{_listed(missing)} left no stack; {sentence(found)}"
        return _concluded(text, NO_DUMP, missing, sorted(present))
    if found.waiting is not None and 2 * len(found.odd) <= ranks:
        ranks_elsewhere = culprits(found)
        return _concluded(sentence(found), ELSEWHERE, ranks_elsewhere, sorted(present - {*ranks_elsewhere}))
    reason = f"the stacks of {several(ranks, 'rank')} form {several(len(found.groups), 'group')}"
    if len(found.groups) == 1:
        reason = f"the stacks of all {several(ranks, 'rank')} are equal" if ranks > 1 else "there is only one stack"
    return Conclusion(f"{_NOTHING}: {reason}")


class _Step(NamedTuple):
    """The state of one collective operation on the ranks of its group."""

    absent: tuple[int, ...]
    """Ranks that have not launched it."""
    unknown: tuple[int, ...]
    """Ranks without a dump."""
    completed: tuple[int, ...]
    pending: tuple[int, ...]
    ended: tuple[int, ...]
    """Ranks that have completed it, or in which it has failed."""
    started: tuple[int, ...]
    """Ranks that have started it, if few of the pending ranks have not."""
    waiting: tuple[int, ...]
    """The few ranks that have not started it."""


_Node = int | tuple[Group, int]
"""A rank, or a collective operation that ranks wait in."""


class _Hang:
    def __init__(self, operations: Mapping[int, RankOperations], unreadable: set[int]) -> None:
        self._operations = operations
        self._unreadable = unreadable
        self._waiting = {rank: each.oldest for rank, each in operations.items() if each.oldest is not None}
        listed: dict[Group, set[int]] = {}
        for rank, each in operations.items():
            for group in each.groups:
                listed.setdefault(group, set(group.ranks)).add(rank)
        self._members = {group: sorted(ranks) for group, ranks in listed.items()}
        self._steps: dict[tuple[Group, int], _Step] = {}
        self._edges: dict[_Node, set[_Node]] = {}
        self._failed: dict[int, str] = {}
        """Ranks with a pending operation that the other ranks have completed, with the evidence."""
        self._missed: dict[int, dict[Launch, list[int]]] = {}
        """By rank, the operations that it has not launched, and the ranks that wait in them."""
        self._unequal: list[tuple[int, int]] = []
        """Sender and receiver of transfers whose sizes differ."""
        for rank, launch in sorted(self._waiting.items()):
            if launch.transfers:
                self._add_transfers(rank, launch)
            else:
                self._add_collective(rank, launch)
        peers = {node for nodes in self._edges.values() for node in nodes if isinstance(node, int)}
        self._ranks = sorted({*operations, *peers, *(rank for ranks in listed.values() for rank in ranks)})

    def conclusion(self) -> Conclusion:
        """Return the conclusion."""
        if not self._waiting:
            return Conclusion(f"{_NOTHING}: no operation is pending")
        found = self._mismatch() or self._unequal_transfer()
        if found is not None:
            return found
        ends = {rank for rank in self._ranks if not self._edges.get(rank)}
        targets = {node for nodes in self._edges.values() for node in nodes}
        culprits = {
            rank
            for rank in ends
            if rank in self._failed or (rank in targets and rank in self._operations and rank not in self._waiting)
        }
        without = {rank for rank in ends if rank in targets and rank not in self._operations}
        if culprits:
            found = self._behind(culprits)
            if without:
                reason = f"{_listed(sorted(without))}: no dump can be read, and ranks wait there too"
                found = found._replace(reasons=(*found.reasons, reason))
            return found
        if without:
            return self._without_dump(without)
        circle = self._circle(ends)
        if circle:
            return self._deadlock(circle)
        return self._stuck(ends & set(self._waiting))

    def _step(self, group: Group, number: int) -> _Step:
        found = self._steps.get((group, number))
        if found is None:
            absent: list[int] = []
            unknown: list[int] = []
            completed: list[int] = []
            pending: list[int] = []
            for rank in self._members[group]:
                if rank not in self._operations:
                    unknown.append(rank)
                    continue
                progress = self._operations[rank].progress(group)
                if number > progress.launched:
                    absent.append(rank)
                else:
                    (pending if number in progress.pending else completed).append(rank)
            ended = [rank for rank in completed if self._operations[rank].progress(group).ended == number]
            launches = {rank: self._operations[rank].progress(group).pending[number] for rank in pending}
            started = [rank for rank in pending if launches[rank].is_started]
            waiting = [rank for rank in pending if not launches[rank].is_started]
            if len(waiting) > len(started) or any(not self._waits_in(rank, (group, number)) for rank in waiting):
                started, waiting = [], []
            groups = (absent, unknown, completed, pending, ended, started, waiting)
            found = _Step(*(tuple(ranks) for ranks in groups))
            self._steps[group, number] = found
        return found

    def _add_collective(self, rank: int, launch: Launch) -> None:
        group, number = launch.group, launch.number
        step = self._step(group, number)
        most = len(step.completed) - (launch.name in _ONE_WAY)
        can_be_failed = bool(step.ended and step.unknown)
        if not step.absent and step.completed and len(step.pending) <= most and not can_be_failed:
            have = "has" if len(step.completed) == 1 else "have"
            self._failed[rank] = f"{launch} is pending, but {_listed(step.completed)} {have} completed it"
            return
        if not step.absent and not step.completed and step.started and rank in step.waiting:
            have = "has" if len(step.started) == 1 else "have"
            self._failed[rank] = f"{launch} is launched, but only {_listed(step.started)} {have} started it"
            return
        key = (group, number)
        if key not in self._edges:
            elsewhere = [each for each in step.pending if not self._waits_in(each, key)]
            left = step.ended if len(step.ended) < len(step.pending) else ()
            self._edges[key] = {*step.absent} or {*elsewhere, *step.unknown} or {*left} or {*step.waiting}
            for rank_behind in step.absent or left:
                self._missed.setdefault(rank_behind, {})[launch] = list(step.pending)
        if self._edges[key]:
            self._edges[rank] = {key}

    def _waits_in(self, rank: int, key: tuple[Group, int]) -> bool:
        launch = self._waiting[rank]
        return not launch.transfers and (launch.group, launch.number) == key

    def _add_transfers(self, rank: int, launch: Launch) -> None:
        edges: set[_Node] = set()
        for kind, peer in launch.transfers:
            if peer == rank:
                continue
            if peer not in self._operations:
                edges.add(peer)
                continue
            progress = self._operations[peer].progress(launch.group)
            other = (RECV if kind == SEND else SEND, rank)
            matching = next((each for each in progress.transfers if other in each.transfers), None)
            if matching is not None:
                if kind == SEND and _size(launch) and _size(matching) and _size(launch) != _size(matching):
                    self._unequal.append((rank, peer))
                if matching is not self._waiting.get(peer):
                    edges.add(peer)
            elif len(launch.group.ranks) != 2 or not progress.has_transferred(launch.number):
                edges.add(peer)
                self._missed.setdefault(peer, {})[launch] = [rank]
            elif kind == SEND:
                self._failed[rank] = f"{launch} is pending, but rank {peer} has completed it"
        if rank not in self._failed and edges:
            self._edges[rank] = edges

    def _reaching(self, ends: Iterable[_Node]) -> set[int]:
        """Return the ranks that wait for one of the nodes."""
        sources: dict[_Node, list[_Node]] = {}
        for source, nodes in self._edges.items():
            for node in nodes:
                sources.setdefault(node, []).append(source)
        found: set[_Node] = set(ends)
        queue = list(found)
        while queue:
            for source in sources.get(queue.pop(), ()):
                if source not in found:
                    found.add(source)
                    queue.append(source)
        return {node for node in found - set(ends) if isinstance(node, int)}

    def _mismatch(self) -> Conclusion | None:
        """Return the ranks that launched another operation than the others, under the same number."""
        for launch in sorted({launch for launch in self._waiting.values() if not launch.transfers}, key=_order):
            launches: dict[int, Launch] = {}
            for rank in self._members[launch.group]:
                if rank in self._operations:
                    progress = self._operations[rank].progress(launch.group)
                    found = progress.pending.get(launch.number) or progress.completed.get(launch.number)
                    if found is not None:
                        launches[rank] = found
            names = {rank: each.name for rank, each in launches.items()}
            sizes = {rank: _size(each) for rank, each in launches.items() if each.name in _EQUAL_SIZES and _size(each)}
            if len(set(names.values())) > 1:
                shown = {rank: readable(name) for rank, name in names.items()}
                return self._different(shown, "launched {}" + f" as operation {launch.number:,} of {launch.group.name}")
            if len(set(sizes.values())) > 1:
                return self._different(
                    {rank: f"with {size}" for rank, size in sizes.items()}, f"launched {launch} {{}}"
                )
        return None

    def _unequal_transfer(self) -> Conclusion | None:
        """Return the sender and the receiver of a transfer whose sizes differ."""
        for sender, receiver in self._unequal:
            launch = self._waiting[sender]
            progress = self._operations[receiver].progress(launch.group)
            expected = next(each for each in progress.transfers if (RECV, sender) in each.transfers)
            sentence = f"rank {sender} launched {launch} with {_size(launch)}, which expects {_size(expected)}"
            ranks = sorted((sender, receiver))
            return _concluded(sentence, MISMATCH, ranks, sorted(set(self._waiting) - set(ranks)))
        return None

    def _different(self, shown: Mapping[int, str], form: str) -> Conclusion:
        """Return which ranks differ from most ranks, or what each rank launched.

        Args:
            shown: what each rank launched.
            form: of the first clause, with `{}` for the text of a rank.
        """
        by_text: dict[str, list[int]] = {}
        for rank, text in shown.items():
            by_text.setdefault(text, []).append(rank)
        shares = sorted(by_text.items(), key=lambda item: (len(item[1]), item[1]))
        has_majority = len(shares[-1][1]) > len(shares[-2][1])
        ranks = sorted(rank for _, members in (shares[:-1] if has_majority else shares) for rank in members)
        parts: list[str] = []
        for text, members in shares:
            is_rest = has_majority and members is shares[-1][1]
            who = f"the other {several(len(members), 'rank')}" if is_rest else _listed(members)
            parts.append(f"{who} {text if parts else form.replace('{}', text)}")
        waiting = sorted(set(self._waiting) - set(ranks))
        return _concluded(", ".join(parts), MISMATCH, ranks, waiting)

    def _behind(self, culprits: set[int]) -> Conclusion:
        ranks = sorted(culprits)
        waiting = sorted(self._reaching(ranks))
        if len(ranks) > len(self._ranks) / 2 and not culprits & set(self._failed):
            return self._alone(ranks, waiting)
        states = {rank: list(self._groups_behind(rank).values()) for rank in ranks[:_MAX_COUNTED]}
        it, belong = ("it", "belongs") if len(ranks) == 1 else ("they", "belong")
        totals = {len(groups) for groups in states.values()}
        fewest = min(sum(groups) for groups in states.values())
        total = totals.pop() if len(totals) == 1 else 0
        if total == 1 and len(ranks) == 1:
            where = "the process group"
        elif all(all(groups) for groups in states.values()):
            where = f"all {total} process groups" if total > 1 else "all process groups"
        elif total and fewest:
            where = f"{'at least ' if len(ranks) > 1 else ''}{fewest} of the {total} process groups"
        else:
            where = "process groups"
        return behind(ranks, f"{where} that {it} {belong} to", waiting, len(self._ranks), self._reasons(ranks))

    def _alone(self, absent: Sequence[int], waiting: Sequence[int]) -> Conclusion:
        """Return that few ranks wait in an operation that most ranks have not launched."""
        if not waiting or len(waiting) >= len(absent):
            return Conclusion(f"{_NOTHING}: {several(len(absent), 'rank')} have no pending operation")
        launch = self._waiting[waiting[0]]
        missing = f"{several(len(absent), 'rank')} have not launched"
        return _concluded(
            f"{_listed(waiting)} {_verb(waiting, 'wait')} in {launch}, which {missing}", ALONE, waiting, ()
        )

    def _reasons(self, ranks: Sequence[int]) -> Iterator[str]:
        for rank in ranks[:_MAX_REASONS]:
            if rank in self._failed:
                yield f"rank {rank}: {self._failed[rank]}"
            elif rank in self._missed:
                launch, waiting = max(self._missed[rank].items(), key=lambda item: len(item[1]))
                what = f"has not launched {'an operation that matches ' if launch.transfers else ''}{launch}"
                if rank in self._step(launch.group, launch.number).ended and not launch.transfers:
                    what = f"{launch} has ended, probably with an error"
                yield f"rank {rank}: {what}; {_listed(waiting)} {_verb(waiting, 'wait')} in it"
        if len(ranks) > _MAX_REASONS:
            yield f"… {several(len(ranks) - _MAX_REASONS, 'more rank')}"

    def _groups_behind(self, rank: int) -> dict[Group, bool]:
        """Return whether the rank is behind or silent, for each of its groups that has a pending operation."""
        found: dict[Group, bool] = {}
        for group, members in self._members.items():
            if rank not in members:
                continue
            own = self._operations[rank].progress(group)
            own_transfers = Counter(each for launch in own.transfers for each in launch.transfers)
            is_involved = bool(own.pending or own.transfers)
            is_behind = False
            for other in members:
                if other == rank or other not in self._operations:
                    continue
                progress = self._operations[other].progress(group)
                transfers = Counter(
                    kind for launch in progress.transfers for kind, peer in launch.transfers if peer == rank
                )
                is_involved |= bool(progress.pending or transfers)
                is_behind |= any(number > own.launched or number == own.ended for number in progress.pending)
                is_behind |= any(progress.has_completed(number) for number in own.pending)
                is_behind |= (
                    transfers[SEND] > own_transfers[RECV, other] or transfers[RECV] > own_transfers[SEND, other]
                )
            if is_involved:
                found[group] = is_behind
        return found

    def _without_dump(self, without: set[int]) -> Conclusion:
        known = without - self._unreadable
        total = len(self._ranks)
        missing = [rank for rank in self._ranks if rank not in self._operations]
        if known != without:
            unreadable = sorted(without & self._unreadable)
            return Conclusion(f"{_NOTHING}: the dump of {_listed(unreadable)} can't be read")
        if 2 * len(missing) > total - (len(missing) > 1):  # the files of a node may not have been copied
            return Conclusion(
                f"{_NOTHING}: the dumps of {_listed(missing)} of {total:,} are missing; copy the files of all nodes"
            )
        ranks = sorted(known)
        waiting = sorted(self._reaching(ranks))
        sentence = f"{_listed(ranks)} left no dump{_waits_for(ranks, waiting, total)}"
        targets = {*ranks, *(node for node, nodes in self._edges.items() if nodes & set(ranks))}
        places: dict[str, list[int]] = {}
        for rank in waiting:
            if self._edges[rank] & targets:
                places.setdefault(str(self._waiting[rank]), []).append(rank)
        place, members = max(places.items(), key=lambda item: len(item[1]))
        reasons = [f"{_listed(members)} {_verb(members, 'wait')} in {place}"]
        return _concluded(sentence, NO_DUMP, ranks, waiting, reasons)

    def _circle(self, ends: set[int]) -> list[int]:
        """Return ranks that wait for each other: the shortest circle that does not lead elsewhere."""
        bound = self._reaching(ends) | ends
        found: list[int] = []
        seen: set[_Node] = set()
        for start in sorted(rank for rank in self._waiting if rank not in bound):
            path: list[_Node] = []
            node: _Node = start
            while node not in seen:
                seen.add(node)
                path.append(node)
                node = min(self._edges[node], key=lambda each: each if isinstance(each, int) else -1)
            if node in path:
                circle = [each for each in path[path.index(node) :] if isinstance(each, int)]
                if not found or len(circle) < len(found):
                    found = circle
        return found

    def _deadlock(self, circle: Sequence[int]) -> Conclusion:
        ranks = sorted(circle)
        waiting = sorted(self._reaching(ranks) - set(ranks))
        sentence = f"{_listed(ranks)} wait for each other{_waits_for(ranks, waiting, len(self._ranks))}"
        reasons = [f"rank {rank}: waits in {self._waiting[rank]}" for rank in ranks[:_MAX_REASONS]]
        return _concluded(sentence, DEADLOCK, ranks, waiting, reasons)

    def _stuck(self, ends: set[int]) -> Conclusion:
        """Return that an operation does not complete although all its ranks have launched it."""
        ranks = sorted(ends)
        waiting = sorted(self._reaching(ranks))
        launches = sorted({self._waiting[rank] for rank in ranks}, key=_order)
        places = {(launch.group, launch.number) for launch in launches}
        where = f"{launches[0]}, which all its ranks have launched"
        if len(places) > 1:
            where = f"{several(len(places), 'operation')} such as {launches[0]}, which all their ranks have launched"
        if not all(launch.group.ranks for launch in launches):
            where = f"{several(len(places), 'operation')} such as {launches[0]}, whose ranks no dump lists"
            return Conclusion(f"{_NOTHING}: {several(len(ranks), 'rank')} wait in {where}")
        if 2 * len(ranks) <= len(self._ranks) and waiting and len(places) == 1:
            sentence = f"{_listed(ranks)} are stuck in {where}{_waits_for(ranks, waiting, len(self._ranks))}"
            return _concluded(sentence, STUCK, ranks, waiting)
        return Conclusion(
            f"{_NOTHING}: {several(len(ranks), 'rank')} wait in {where}; the network or a kernel may hang",
            waiting=tuple(sorted(self._waiting)),
        )


def behind(
    ranks: Sequence[int], where: str, waiting: Sequence[int], number: int, reasons: Iterable[str] = ()
) -> Conclusion:
    """Return that ranks are behind or silent.

    Args:
        ranks: their numbers.
        where: their process groups or communicators.
        waiting: the ranks that wait for them.
        number: of all ranks.
        reasons: evidence.
    """
    are = "is" if len(ranks) == 1 else "are"
    sentence = f"{_listed(ranks)} {are} behind or silent in {where}{_waits_for(ranks, waiting, number)}"
    return _concluded(sentence, BEHIND, ranks, waiting, reasons)


def _waits_for(ranks: Sequence[int], waiting: Sequence[int], number: int) -> str:
    if not waiting:
        return ""
    them = "it" if len(ranks) == 1 else "them"
    what = several(len(waiting), "rank")
    if len(ranks) + len(waiting) == number:
        what = f"the other {what}" if len(waiting) > 1 else "the other rank"
    return f"; {what} {_verb(waiting, 'wait')} for {them}"


def _listed(ranks: Sequence[int]) -> str:
    """Format ranks such as `ranks 1, 2 and 5`, or `ranks 8-15` if there are many, or return their number."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    if len(ranks) <= _MAX_LISTED or len(spans) > _MAX_LISTED:
        return named(ranks)
    return f"ranks {', '.join(str(low) if low == high else f'{low}-{high}' for low, high in spans)}"


def _verb(ranks: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb


def _size(launch: Launch) -> str:
    """Return the size of an operation; empty if it is unknown."""
    if launch.elements is None:
        return ""
    return several(launch.elements, "element") + (f" of type {readable(launch.type)}" if launch.type else "")


def _order(launch: Launch) -> tuple[str, int, str, int]:
    return launch.group.name, launch.number, launch.name, launch.elements or 0


def _concluded(
    sentence: str, kind: str, ranks: Iterable[int], waiting: Iterable[int], reasons: Iterable[str] = ()
) -> Conclusion:
    return Conclusion(sentence[:1].upper() + sentence[1:], kind, tuple(ranks), tuple(waiting), tuple(reasons))
