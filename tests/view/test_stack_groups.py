from __future__ import annotations

import pytest

from stallscope.model.view.stack_groups import grouped, sentence
from stallscope.training.protocol.stacks import Frame, Stack

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
MAIN = Frame("/home/me/job/main.py", 5, "<module>")


def waits(inner: int = 2810) -> Stack:
    return (
        Frame(TORCH, inner, "_wait"),
        Frame(TORCH, 99, "all_reduce"),
        Frame("/home/me/job/trainer.py", 88, "step"),
        MAIN,
    )


def reads(line: int = 12) -> Stack:
    return (Frame("/home/me/job/dataset.py", line, "read_sample"), MAIN)


def test_the_rank_outside_of_the_large_group_is_named() -> None:
    found = grouped({rank: [reads() if rank == 3 else waits()] for rank in range(8)})
    assert found.odd == (3,)
    assert (
        sentence(found)
        == "7 ranks wait in all_reduce at job/trainer.py:88; rank 3 is in read_sample at job/dataset.py:12"
    )


def test_frames_of_a_library_below_its_call_make_no_group() -> None:
    found = grouped({0: [waits(1)], 1: [waits(2)], 2: [waits(3)], 3: [reads()]})
    assert [group.ranks for group in found.groups] == [(0, 1, 2), (3,)]


def test_of_two_ranks_the_one_in_the_collective_waits() -> None:
    found = grouped({0: [reads()], 1: [waits()]})
    assert (found.odd, sentence(found)) == (
        (0,),
        "1 rank waits in all_reduce at job/trainer.py:88; rank 0 is in read_sample at job/dataset.py:12",
    )


def test_without_a_majority_no_rank_is_odd() -> None:
    found = grouped({0: [reads(1)], 1: [reads(2)]})
    assert (found.waiting, found.odd) == (None, ())
    assert (
        sentence(found) == "rank 0 is in read_sample at job/dataset.py:1; rank 1 is in read_sample at job/dataset.py:2"
    )


@pytest.mark.parametrize("stacks", [{}, {0: []}, {0: [], 1: []}])
def test_without_stacks_nothing_is_said(stacks: dict[int, list[Stack]]) -> None:
    found = grouped(stacks)
    assert (found.groups, found.waiting, found.odd, sentence(found)) == ((), None, (), "")


def test_a_group_of_all_ranks_has_no_odd_one() -> None:
    found = grouped({0: [waits()], 1: [waits()]})
    assert (found.waiting, found.odd, sentence(found)) == (
        None,
        (),
        "ranks 0 and 1 are in all_reduce at job/trainer.py:88",
    )


def test_of_several_samples_the_rank_that_is_most_often_alone_is_odd() -> None:
    """Rank 2 is late in four of five rounds; in the newest one rank 1 is, by chance."""
    rounds = [2, 2, 2, 2, 1]
    found = grouped({rank: [reads() if late == rank else waits() for late in rounds] for rank in range(4)})
    assert found.odd == (2,)
    assert sentence(found) == (
        "rank 2 differs from the others in 4 of 5 samples, most often in read_sample at job/dataset.py:12"
    )
    assert [group.ranks for group in found.groups] == [(0, 1, 3), (2,)], "of a sample in which the odd rank differs"


def test_a_rank_that_is_alone_in_half_of_the_samples_is_not_blamed() -> None:
    rounds = [2, 2, 1, 0]
    found = grouped({rank: [reads() if late == rank else waits() for late in rounds] for rank in range(4)})
    most = "no rank differs from the others in most of 4 samples"
    assert (found.odd, sentence(found)) == (
        (),
        f"{most}; rank 2 differs most often, in 2, in read_sample at job/dataset.py:12",
    )
    rounds = [2, 0, 1, 3]
    found = grouped({rank: [reads() if late == rank else waits() for late in rounds] for rank in range(4)})
    assert sentence(found) == most
    # In most samples no group is the largest.
    rounds = [2, -1, -1, -1, -1]
    alone = grouped({rank: [waits() if late == 2 != rank else reads(rank) for late in rounds] for rank in range(4)})
    assert alone.odd == ()


def test_slow_ranks_at_one_place_are_named_together_the_slowest_first() -> None:
    late = {1: (5, 1), 2: (3, 12), 3: (3, 12), 7: (1, 12)}
    stacks = {}
    for rank in range(9):
        count, line = late.get(rank, (0, 0))
        stacks[rank] = [reads(line)] * count + [waits()] * (5 - count)
    found = grouped(stacks)
    assert sentence(found) == (
        "rank 1 differs from the others in 5 of 5 samples, most often in read_sample at job/dataset.py:1; "
        "ranks 2 and 3 differ from the others in 3 of 5 samples, most often in read_sample at job/dataset.py:12"
    )


def test_a_sentence_is_short_whatever_the_ranks_do() -> None:
    found = grouped({rank: [waits() if rank < 5 else reads(rank)] for rank in range(64)})
    assert len(found.odd) == 59
    assert sentence(found).endswith("rank 7 is in read_sample at job/dataset.py:7; 56 more groups")
    many = grouped({rank: [reads() if rank < 20 else waits()] for rank in range(64)})
    assert sentence(many) == (
        "44 ranks wait in all_reduce at job/trainer.py:88; 20 ranks are in read_sample at job/dataset.py:12"
    )
