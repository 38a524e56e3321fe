from __future__ import annotations

from stallscope.model.hangs.collective_counts import (
    Communicator,
    Evidence,
    Member,
    Share,
    concluded,
    document,
    lines,
    of_run,
    shared,
)


def members(counts: list[int], host: str = "10.0.0.1", first_pid: int = 100) -> list[tuple[Member, int, str]]:
    return [(Member(rank, host, first_pid + rank), count, "") for rank, count in enumerate(counts)]


def world(counts: list[int]) -> Communicator:
    return Communicator("communicator 0xa", len(counts), {"AllReduce": shared(members(counts))})


def evidence(*communicators: Communicator) -> Evidence:
    return Evidence("NCCL (RAS)", "communicator", len(communicators), communicators)


def of_ranks(*communicators: Communicator, pids: dict[int, int] | None = None) -> Evidence:
    found = of_run(
        evidence(*communicators),
        str(max(each.size for each in communicators)),
        pids or dict(enumerate(range(100, 108))),
    )
    assert found is not None
    return found


def test_the_rank_that_is_behind_is_named() -> None:
    found = of_ranks(world([42, 42, 42, 41, 42, 42, 42, 42]))
    assert list(lines(found, [3])) == [
        "NCCL (RAS): communicator 0xa, 8 ranks: rank 3 launched 41 AllReduce operations, the others 42"
    ]


def test_several_counts_are_listed_the_lowest_first_and_limited() -> None:
    (line,) = lines(of_ranks(world([9, 9, 9, 7, 8, 6, 5, 9])), [])
    assert line.endswith(
        "rank 6 launched 5 AllReduce operations, rank 5 launched 6, rank 3 launched 7, 1 more count, the others 9"
    )


def test_without_a_majority_every_count_has_its_ranks() -> None:
    (line,) = lines(of_ranks(world([5, 4])), [])
    assert line.endswith("2 ranks: rank 1 launched 4 AllReduce operations, rank 0 launched 5")


def test_different_operations_with_equal_counts_differ() -> None:
    counts = [(Member(rank, run_rank=rank), 7, "broadcast" if rank == 2 else "all_reduce") for rank in range(4)]
    group = Communicator("process group 0", 4, {"collective": shared(counts)})
    (line,) = lines(evidence(group), [])
    assert line.endswith("rank 2 launched 7 collective operations (last: broadcast), the others 7 (last: all_reduce)")


def test_ranks_without_counts_are_named_with_the_reason() -> None:
    lost = ((Member(3, "10.0.0.1", 103), "dead"), (Member(1, "10.0.0.1", 101), "unresponsive"))
    left = (Member(2, "10.0.0.1", 102), "left")
    found = of_ranks(Communicator("communicator 0xa", 4, {"AllReduce": shared(members([5]))}, (*lost, left)))
    (line,) = lines(found, [])
    assert line.endswith(
        "4 ranks: NCCL considers rank 3 dead; NCCL receives no response from rank 1; rank 2 no longer belongs to it"
    )


def test_equal_counts_leave_the_rank_that_the_stacks_name() -> None:
    equal = of_ranks(world([5, 5, 5, 5]), world([5, 5]))
    text = "NCCL (RAS): the counts of operations are equal on all ranks in 2 communicators"
    assert list(lines(equal, [3])) == [f"{text}; rank 3 waits elsewhere, as the stack shows"]
    assert list(lines(equal, [])) == [text]
    assert document(equal)["differences"] == []


def test_before_the_first_communicator_nothing_is_called_equal() -> None:
    assert list(lines(evidence(), [3])) == ["NCCL (RAS): no communicator yet"]


def test_the_communicator_of_all_ranks_connects_the_others_to_the_run() -> None:
    half = Communicator(
        "communicator 0xb",
        2,
        {"AllGather": shared([(Member(0, "10.0.0.2", 100), 3, ""), (Member(1, "10.0.0.2", 101), 2, "")])},
    )
    # Containers of two nodes, whose processes have the same numbers.
    counts = shared([*members([5, 5]), *[(Member(2 + n, "10.0.0.2", 100 + n), 5, "") for n in range(2)]])
    found = of_ranks(Communicator("communicator 0xa", 4, {"AllReduce": counts}), half, pids={0: 100, 1: 101})
    (line,) = lines(found, [])
    assert line.endswith("rank 3 launched 2 AllGather operations, rank 2 launched 3")


def test_a_communicator_of_another_job_is_not_of_the_run() -> None:
    other = evidence(world([5, 4, 5]))
    assert of_run(other, "3", {0: 100, 1: 999, 2: 102}) is None
    assert of_run(other, "4", {0: 100, 1: 101}) is None
    assert of_run(other, "3", {}) is None
    assert of_run(other, "", {0: 100}) is None


def test_a_process_of_an_unknown_rank_is_described() -> None:
    (line,) = lines(evidence(world([5, 5, 4])), [])
    assert line.endswith(
        "rank 2 of the communicator (process 102 on 10.0.0.1) launched 4 AllReduce operations, the others 5"
    )


def test_many_communicators_and_unlisted_ranks_are_limited() -> None:
    half = Communicator("communicator 0xa", 20, {"AllReduce": (Share(5, 10, ()), Share(4, 10, ()))})
    found = list(lines(evidence(*[half] * 10), []))
    assert found[0].endswith("20 ranks: 10 ranks launched 4 AllReduce operations, 10 ranks launched 5")
    assert (len(found), found[-1]) == (9, "NCCL (RAS): … 2 more communicators")


def test_the_ranks_that_launched_fewer_operations_are_the_conclusion() -> None:
    found = concluded(of_ranks(world([42, 42, 42, 41, 42, 42, 42, 42])))
    assert found is not None
    assert found.sentence == "Rank 3 is behind or silent in 1 communicator; the other 7 ranks wait for it"
    assert (found.ranks, found.waiting) == ((3,), (0, 1, 2, 4, 5, 6, 7))


def test_a_rank_that_is_behind_in_one_communicator_and_ahead_in_another_waits_itself() -> None:
    half = Communicator(
        "communicator 0xb", 2, {"AllGather": shared([*members([9]), (Member(3, "10.0.0.1", 103), 8, "")])}
    )
    found = concluded(of_ranks(world([41, 42, 42, 41]), half))
    assert found is not None
    assert found.ranks == (3,)


def test_equal_counts_and_a_majority_that_is_behind_are_no_conclusion() -> None:
    assert concluded(of_ranks(world([5, 5, 5, 5]))) is None
    assert concluded(of_ranks(world([5, 4, 4, 4]))) is None
    assert concluded(evidence(world([5, 5, 4]))) is None  # the ranks of the run are unknown
