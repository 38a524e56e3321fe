"""Group ranks by their stacks: in a hang most ranks wait, and the other ranks are the reason.

The largest group is assumed to wait, as in ByteRobust (SOSP 2025). If several groups are the largest, the group in a
collective operation is assumed to wait. With several stacks of each rank, the odd ranks are those outside the waiting
group in most of the samples: they are slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stallscope.common.formatting import several
from stallscope.training.protocol.stacks import Place, Stack, place_of, user_frame

_COLLECTIVES = ("/torch/distributed/", "/horovod/", "/mpi4py/", "/deepspeed/comm/", "/jax/experimental/multihost_utils")
"""Parts of the paths of code that waits for other ranks."""
_WAITS = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py", *_COLLECTIVES[1:])
"""Parts of the paths of code that waits for other ranks itself: other code of torch.distributed also computes."""
_MIN_LEAD = 2
"""If no rank differs in most samples, a rank is mentioned if it differs this many times as often as any other."""
_MAX_SHOWN = 3
"""Maximum number of odd groups in a sentence."""
_MAX_RANKS = 8
"""Maximum number of ranks of a group that a sentence lists by number."""


class Group(NamedTuple):
    """Ranks whose stacks are equal, apart from frames inside libraries."""

    ranks: tuple[int, ...]
    stack: Stack
    """The stack of the first rank."""

    @property
    def place(self) -> Place:
        """The line of code in which the ranks are."""
        return place_of(self.stack)


class Grouping(NamedTuple):
    """The groups of one run, and its odd ranks."""

    groups: tuple[Group, ...]
    """The largest first."""
    waiting: Group | None
    """The group that waits for the others; None if it is unknown."""
    odd: tuple[int, ...]
    """Ranks that are outside the waiting group in most of their samples."""
    samples: int = 1
    """Samples of each rank that were compared."""
    outside: Mapping[int, tuple[int, Place]] = {}
    """By rank, the number of samples outside the waiting group, if any, and the most frequent place in them."""


def grouped(stacks: Mapping[int, Sequence[Stack]]) -> Grouping:
    """Group ranks by their stacks, and find the odd ranks over all samples.

    The groups are those of the newest sample in which an odd rank differs, or else of the newest sample.

    Args:
        stacks: the stacks of each rank, the oldest first; ranks without one are left out.
    """
    present = {rank: samples for rank, samples in stacks.items() if samples}
    rounds = min([len(samples) for samples in present.values()], default=0)
    found = []
    places: dict[int, list[Place]] = {}
    for number in range(1, rounds + 1):
        groups = _groups({rank: samples[-number] for rank, samples in present.items()})
        waiting = _waiting(groups)
        found.append((groups, waiting))
        for group in groups if waiting is not None else ():
            for rank in group.ranks if group is not waiting else ():
                places.setdefault(rank, []).append(group.place)
    odd = tuple(sorted(rank for rank, seen in places.items() if 2 * len(seen) > rounds))
    if not found:
        return Grouping((), None, ())
    shown = [each for each in found if each[1] is not None and not set(odd) <= set(each[1].ranks)]
    groups, waiting = (shown or found)[0]
    outside = {rank: (len(seen), Counter(seen).most_common(1)[0][0]) for rank, seen in sorted(places.items())}
    return Grouping(groups, waiting, odd, rounds, outside)


def sentence(grouping: Grouping) -> str:
    """Return one sentence on where the ranks are; empty without a stack."""
    if grouping.samples > 1 and sum(len(group.ranks) for group in grouping.groups) > 1:
        return _over_samples(grouping)
    waiting = grouping.waiting
    others = [group for group in grouping.groups if group is not waiting]
    has_culprit = waiting is not None and not all(_waits_elsewhere(group) for group in others)
    if has_culprit:
        others.sort(key=_waits_elsewhere)
    parts = []
    if waiting is not None:
        verb = "wait" if len(waiting.ranks) > 1 else "waits"
        parts.append(f"{several(len(waiting.ranks), 'rank')} {verb} {at(waiting.place)}")
    for group in others[:_MAX_SHOWN]:
        verbs = ("waits", "wait") if has_culprit and _waits_elsewhere(group) else ("is", "are")
        parts.append(f"{named(group.ranks)} {verbs[len(group.ranks) > 1]} {at(group.place)}")
    if len(others) > _MAX_SHOWN:
        parts.append(f"{len(others) - _MAX_SHOWN} more groups")
    return "; ".join(parts)


def _over_samples(grouping: Grouping) -> str:
    """Return how often the odd ranks differ, starting with the ranks that differ most often."""
    if not grouping.odd:
        text = f"no rank differs from the others in most of {grouping.samples} samples"
        (count, rank), (next_count, _) = sorted(
            [(0, -1), (0, -1), *[(count, rank) for rank, (count, _) in grouping.outside.items()]], reverse=True
        )[:2]
        if count >= _MIN_LEAD * max(next_count, 1):
            text += f"; rank {rank} differs most often, in {count}, {at(grouping.outside[rank][1])}"
        return text
    alike: dict[tuple[int, Place], list[int]] = {}
    for rank in grouping.odd:
        alike.setdefault(grouping.outside[rank], []).append(rank)
    parts = [
        f"{named(ranks)} {'differ' if len(ranks) > 1 else 'differs'} from the others in {count} of {grouping.samples} "
        f"samples, most often {at(place)}"
        for (count, place), ranks in sorted(alike.items(), key=lambda item: (-item[0][0], item[1]))
    ]
    if len(parts) > _MAX_SHOWN:
        parts[_MAX_SHOWN:] = [f"{len(parts) - _MAX_SHOWN} more groups"]
    return "; ".join(parts)


def _groups(stacks: Mapping[int, Stack]) -> tuple[Group, ...]:
    ranks: dict[object, list[int]] = {}
    for rank in sorted(stacks):
        ranks.setdefault(_identity(stacks[rank]), []).append(rank)
    # Groups of equal size are sorted by their lowest rank.
    return tuple(
        Group(tuple(members), stacks[members[0]])
        for members in sorted(ranks.values(), key=lambda members: (-len(members), members))
    )


def _identity(stack: Stack) -> object:
    """Return the part of a stack that is compared: frames inside a library differ from moment to moment."""
    return place_of(stack).call, stack[user_frame(stack) :]


def _waiting(groups: Sequence[Group]) -> Group | None:
    if len(groups) < 2:
        return None
    if len(groups[0].ranks) > len(groups[1].ranks):
        return groups[0]
    waiting = [group for group in groups if is_waiting(group.stack)]
    return waiting[0] if len(waiting) == 1 else None


def is_waiting(stack: Stack) -> bool:
    """Return whether a rank with this stack waits for other ranks, in a library for collective operations."""
    return any(part in frame.file for frame in stack for part in _COLLECTIVES)


def culprits(grouping: Grouping) -> tuple[int, ...]:
    """Return the odd ranks without those that wait in another operation, if any other rank is odd."""
    waiting = {rank for group in grouping.groups if _waits_elsewhere(group) for rank in group.ranks}
    return tuple(rank for rank in grouping.odd if rank not in waiting) or grouping.odd


def _waits_elsewhere(group: Group) -> bool:
    """Return whether the innermost frame of the ranks is a function that waits for other ranks."""
    return any(part in group.stack[0].file for part in _WAITS)


def at(place: Place) -> str:
    """Return a place as `in all_reduce at job/trainer.py:88`."""
    return f"in {place.call or place.function} at {place.location}"


def named(ranks: Iterable[int]) -> str:
    """Format ranks as `ranks 1, 2 and 5`, or return their number if there are many."""
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _MAX_RANKS:
        return f"{len(numbers)} ranks"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
