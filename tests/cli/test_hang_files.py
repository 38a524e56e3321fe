"""Files that a hung job left: what the command concludes from them, without a run.

Each situation is written by hand in the form of PyTorch's dumps. `Rank` records operations as PyTorch counts them.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stallscope.tools.cli import stacks

Shown = pytest.CaptureFixture[str]
SECOND = 10**9
START = 1_700_000_000 * SECOND


class Rank:
    """A rank that launches operations. The newest ones are pending if they are launched with `hang`."""

    def __init__(self, number: int, groups: dict[str, list[int]], *, backend: str = "nccl") -> None:
        self.number = number
        self.entries: list[dict[str, Any]] = []
        self.time = START
        self.version = "2.10"
        self._backend = backend
        self._groups = {name: ranks for name, ranks in groups.items() if number in ranks}
        self._counts = {name: [0, 0] for name in self._groups}

    def collective(
        self, name: str = "all_reduce", group: str = "world", size: int = 1024, *, hang: bool = False
    ) -> Rank:
        self._counts[group][0] += 1
        return self._entry(group, name, size, hang, is_p2p=False)

    def send(self, peer: int, group: str = "world", *, hang: bool = False) -> Rank:
        ranks = self._groups[group]
        self._counts[group][1] += 1
        return self._entry(group, f"send {ranks.index(self.number)}->{ranks.index(peer)}", 8, hang, is_p2p=True)

    def recv(self, peer: int, group: str = "world", *, hang: bool = False) -> Rank:
        ranks = self._groups[group]
        self._counts[group][1] += 1
        return self._entry(group, f"recv {ranks.index(self.number)}<-{ranks.index(peer)}", 8, hang, is_p2p=True)

    def _entry(self, group: str, name: str, size: int, hang: bool, *, is_p2p: bool) -> Rank:
        self.time += SECOND
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": list(self._groups).index(group),
                "process_group": (group, f"{group}_pg"),
                "collective_seq_id": self._counts[group][0],
                "p2p_seq_id": self._counts[group][1],
                "op_id": len(self.entries),
                "profiling_name": f"{self._backend}:{name}",
                "time_created_ns": self.time,
                "input_sizes": [[size]],
                "input_dtypes": ["Float"],
                "output_sizes": [[size]],
                "state": "scheduled" if hang else "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None if hang else self.time,
                "retired": not hang,
                "is_p2p": is_p2p,
            }
        )
        return self

    def document(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "pg_config": {
                name: {"name": name, "desc": f"{name}_pg", "ranks": str(ranks)} for name, ranks in self._groups.items()
            },
            "pg_status": {
                str(number): {"last_enqueued_collective": max(counts) or -1, "last_completed_collective": -1}
                for number, counts in enumerate(self._counts.values())
            },
            "entries": self.entries,
        }

    def write(self, folder: Path, name: str = "nccl_trace_rank_{}") -> Path:
        file = folder / name.format(self.number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(self.document(), protocol=2))
        return file


def job(ranks: int, groups: dict[str, list[int]] | None = None) -> list[Rank]:
    """Return ranks that have completed two operations."""
    return [
        Rank(rank, {"world": list(range(ranks)), **(groups or {})}).collective().collective() for rank in range(ranks)
    ]


def concluded(folder: Path, capsys: Shown, ranks: Iterable[Rank] = (), status: int = 0) -> str:
    """Return the first line of the command's output."""
    for rank in ranks:
        rank.write(folder)
    assert stacks.main(["--flight-recorder", str(folder)]) == status
    return capsys.readouterr().out.splitlines()[0]


def test_a_rank_that_never_enters_an_operation_is_named_with_its_evidence(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks:
        if rank.number != 2:
            rank.collective(hang=True)
        rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:2] == [
        "Rank 2 is behind or silent in the process group that it belongs to; the other 3 ranks wait for it",
        "  rank 2: has not launched all_reduce 3 of process group world (world_pg); ranks 0, 1 and 3 wait in it",
    ]
    assert "rank 2 launched 2 collective operations (last: all_reduce), the others 3" in shown.out
    assert shown.err == ""


def test_a_chain_of_waiting_ranks_leads_to_the_rank_at_its_end(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4, {"first": [0, 1], "second": [2, 3], "pipe": [0, 1, 2, 3]})
    ranks[0].collective(group="first", hang=True)
    ranks[1].recv(2, "pipe", hang=True).collective(group="first", hang=True)
    ranks[2].collective(group="second", hang=True).send(1, "pipe", hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 3 is behind or silent in the process group that it belongs to; the other 3 ranks wait for it"
    )


def test_a_rank_whose_gpu_does_not_complete_what_the_others_have_completed_is_named(
    tmp_path: Path, capsys: Shown
) -> None:
    ranks = job(4)
    for rank in ranks:
        rank.collective(hang=rank.number == 1)
        if rank.number != 1:
            rank.collective(hang=True)
    for rank in ranks:
        rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("Rank 1 is behind or silent")
    # Rank 1 has not launched the next operation either.
    assert second.startswith(
        "  rank 1: all_reduce 3 of process group world (world_pg) is pending, but ranks 0, 2 and 3"
    )


def test_a_rank_whose_gpu_does_not_start_what_the_others_have_started_is_named(tmp_path: Path, capsys: Shown) -> None:
    # PyTorch measures the start with TORCH_NCCL_ENABLE_TIMING=1.
    ranks = [rank.collective(hang=True) for rank in job(4)]
    for rank in ranks[1:]:
        rank.entries[-1]["state"] = "started"
        rank.write(tmp_path)
    ranks[0].write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith(
        "Rank 0 is behind or silent in the process group that it belongs to; the other 3 ranks wait"
    )
    assert second.endswith("(world_pg) is launched, but only ranks 1, 2 and 3 have started it")
    ranks[0].entries[-1]["state"] = "started"
    assert concluded(tmp_path, capsys, ranks[:1], 1).startswith("no rank stands out: 4 ranks wait in all_reduce 3")


def test_the_first_operation_may_have_the_number_zero(tmp_path: Path, capsys: Shown) -> None:
    ranks = [Rank(number, {"world": [0, 1, 2]}) for number in range(3)]
    for rank in ranks[:2]:
        rank.collective(hang=True).entries[-1]["collective_seq_id"] = 0
    assert concluded(tmp_path, capsys, ranks).startswith("Rank 2 is behind or silent")


def test_operations_in_different_order_are_a_mismatch_of_the_rank_that_differs(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks:
        names = ["broadcast", "all_reduce"] if rank.number == 3 else ["all_reduce", "broadcast"]
        for name in names:
            rank.collective(name, hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 3 launched broadcast as operation 3 of process group world (world_pg), the other 3 ranks all_reduce"
    )


def test_operations_of_two_groups_in_different_order_are_a_deadlock(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4, {"pair": [0, 1]})
    ranks[0].collective(group="pair", hang=True).collective(hang=True)
    ranks[1].collective(hang=True).collective(group="pair", hang=True)
    for rank in ranks[2:]:
        rank.collective(hang=True)
    assert concluded(tmp_path, capsys, ranks) == "Ranks 0 and 1 wait for each other; the other 2 ranks wait for them"


def test_a_size_that_differs_is_named_with_both_sizes(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks:
        rank.collective(size=1000 if rank.number == 1 else 1024, hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 1 launched all_reduce 3 of process group world (world_pg) with 1,000 elements of type Float, "
        "the other 3 ranks with 1,024 elements of type Float"
    )


def test_a_rank_with_another_size_is_named_although_gloo_crashes_another_one(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks:
        rank.collective("all_gather", size=16 if rank.number == 2 else 8, hang=True)
    assert concluded(tmp_path, capsys, ranks[:3]) == (
        "Rank 2 launched all_gather 3 of process group world (world_pg) with 16 elements of type Float, "
        "the other 2 ranks with 8 elements of type Float"
    )


def test_a_transfer_whose_sizes_differ_names_both_ranks(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    ranks[2].send(3, hang=True).entries[-1]["input_sizes"] = [[4, 4]]
    ranks[3].recv(2, hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 2 launched send to rank 3 in process group world (world_pg) with 16 elements of type Float, "
        "which expects 8 elements of type Float"
    )


def test_sizes_of_operations_that_are_launched_together_are_compared(tmp_path: Path, capsys: Shown) -> None:
    # PyTorch launches an all_gather of unequal sizes as broadcasts, and an empty entry after them.
    for rank in job(4):
        rank.collective("_broadcast_oop", hang=True)
        rank.entries.append({**rank.entries[-1], "input_sizes": [[5 if rank.number == 2 else 4]]})
        rank.entries.append({**rank.entries[-1], "profiling_name": "nccl:ALLGATHER_coalesced", "input_sizes": [[]]})
        rank.write(tmp_path)
    assert concluded(tmp_path, capsys).startswith(
        "Rank 2 launched _broadcast_oop 3 of process group world (world_pg) with 1,029 elements of type Float, the"
    )


def test_the_few_ranks_with_another_size_are_named_as_in_a_published_report(tmp_path: Path, capsys: Shown) -> None:
    # pytorch/pytorch 140563: 128 ranks, all_reduce of 1,025 elements; ranks 22 and 110 have 262,144.
    ranks = job(128)
    for rank in ranks:
        rank.collective(size=262_144 if rank.number in (22, 110) else 1025, hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Ranks 22 and 110 launched all_reduce 3 of process group world (world_pg) with 262,144 elements of type Float, "
        "the other 126 ranks with 1,025 elements of type Float"
    )


def test_sizes_of_an_all_to_all_may_differ(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks:
        rank.collective("all_to_all", size=1000 + rank.number, hang=True)
    assert concluded(tmp_path, capsys, ranks, 1).startswith("no rank stands out: 4 ranks wait in all_to_all 3")


def test_two_ranks_that_send_to_each_other_are_a_deadlock(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks[:2]:
        rank.send(1 - rank.number, hang=True)
    for rank in ranks[2:]:
        rank.collective(hang=True)
    for rank in ranks:
        rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "Ranks 0 and 1 wait for each other; the other 2 ranks wait for them",
        "  rank 0: waits in send to rank 1 in process group world (world_pg)",
        "  rank 1: waits in send to rank 0 in process group world (world_pg)",
    ]


def test_two_ranks_of_a_pair_that_receive_from_each_other_are_a_deadlock(tmp_path: Path, capsys: Shown) -> None:
    ranks = [rank.recv(1 - rank.number, hang=True) for rank in job(2)]
    assert concluded(tmp_path, capsys, ranks) == "Ranks 0 and 1 wait for each other"


@pytest.mark.parametrize("number", [2, 8])
def test_without_a_culprit_no_rank_is_named(number: int, tmp_path: Path, capsys: Shown) -> None:
    ranks = [rank.collective(hang=True) for rank in job(number)]
    assert concluded(tmp_path, capsys, ranks, 1) == (
        f"no rank stands out: {number} ranks wait in all_reduce 3 of process group world (world_pg), "
        "which all its ranks have launched; the network or a kernel may hang"
    )


def test_the_ranks_of_a_stuck_pair_are_named_if_the_others_wait_for_it(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(8, {"pair": [4, 5]})
    for rank in ranks:
        if rank.number in (4, 5):
            rank.collective(group="pair", hang=True)
        else:
            rank.collective(hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Ranks 4 and 5 are stuck in all_reduce 1 of process group pair (pair_pg), which all its ranks have launched; "
        "the other 6 ranks wait for them"
    )


def test_one_rank_that_alone_launched_an_operation_is_named(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    ranks[0].collective("all_reduce_barrier", hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 0 waits in all_reduce_barrier 3 of process group world (world_pg), which 3 ranks have not launched"
    )


def test_a_rank_that_died_has_left_no_dump(tmp_path: Path, capsys: Shown) -> None:
    ranks = [rank.collective(hang=True) for rank in job(8) if rank.number != 5]
    for rank in ranks:
        rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "Rank 5 left no dump; the other 7 ranks wait for it",
        "  ranks 0, 1, 2, 3, 4, 6 and 7 wait in all_reduce 3 of process group world (world_pg)",
    ]


def test_a_rank_that_died_is_known_from_another_list_of_ranks_with_gloo(tmp_path: Path, capsys: Shown) -> None:
    # PyTorch 2.13 lists the members of Gloo's groups under an empty name.
    for number in range(3):
        rank = Rank(number, {"0": [0, 1, 2, 3]}, backend="gloo").collective(group="0").collective(group="0", hang=True)
        for entry in rank.entries:
            entry.update(process_group=("0", "default_pg"), state="scheduled", time_discovered_completed_ns=None)
        document = rank.document()
        document["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]" if number else "[]"}}
        (tmp_path / f"rank_{number}").write_bytes(pickle.dumps(document))
    assert concluded(tmp_path, capsys) == "Rank 3 left no dump; the other 3 ranks wait for it"


def gloo(number: int, group: str = "0", *, hang: bool) -> Rank:
    """Return a rank as PyTorch 2.13 records Gloo: without the members of subgroups, and with one mark for all ends."""
    rank = Rank(number, {group: [0, 1, 2, 3]}, backend="gloo").collective(group=group, hang=True)
    for entry in rank.collective(group=group, hang=True).entries:
        entry.update(process_group=(group, "default_pg" if group == "0" else group))
        entry["retired"] = entry["collective_seq_id"] == 1 or not hang
    return rank


def written(folder: Path, ranks: Iterable[Rank], members: str = "[0, 1, 2, 3]") -> Path:
    for rank in ranks:
        config = {"": {"name": "", "desc": "", "ranks": members}}
        (folder / f"rank_{rank.number}").write_bytes(pickle.dumps({**rank.document(), "pg_config": config}))
    return folder


def test_an_operation_of_gloo_that_ended_with_an_error_is_not_taken_for_completed(
    tmp_path: Path, capsys: Shown
) -> None:
    # Rank 1 exits. Its connections to ranks 0 and 2 close; rank 3 waits for data of rank 0.
    written(tmp_path, [gloo(0, hang=False), gloo(2, hang=False), gloo(3, hang=True)])
    assert concluded(tmp_path, capsys) == "Rank 1 left no dump; 1 rank waits for it"


def test_a_rank_of_gloo_in_which_alone_an_operation_ended_is_named(tmp_path: Path, capsys: Shown) -> None:
    written(tmp_path, [gloo(number, hang=number != 1) for number in range(4)])
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "Rank 1 is behind or silent in the process group that it belongs to; the other 3 ranks wait for it"
    assert second.startswith("  rank 1: all_reduce 2 of process group 0 (default_pg) has ended, probably with an error")


def test_groups_of_unknown_members_are_not_said_to_be_complete(tmp_path: Path, capsys: Shown) -> None:
    # With Gloo, rank 2 waits in one of two groups of all ranks, and the other ranks in the other one.
    written(tmp_path, [gloo(number, "b" if number == 2 else "a", hang=True) for number in range(4)], "[]")
    assert concluded(tmp_path, capsys, status=1) == (
        "no rank stands out: 4 ranks wait in 2 operations such as all_reduce 2 of process group a (a), "
        "whose ranks no dump lists"
    )


def test_a_rank_that_is_behind_is_named_before_one_without_a_dump(tmp_path: Path, capsys: Shown) -> None:
    ranks = [rank for rank in job(8) if rank.number != 5]
    for rank in ranks[1:]:
        rank.collective(hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 0 is behind or silent in the process group that it belongs to; 6 ranks wait for it"
    )


def test_a_missing_dump_that_other_ranks_wait_for_is_part_of_the_evidence(tmp_path: Path, capsys: Shown) -> None:
    groups = {"left": [0, 1, 2], "right": [3, 4, 5]}
    for rank in job(6, groups):
        if rank.number not in (0, 3):
            rank.collective(group="left" if rank.number < 3 else "right", hang=True)
        if rank.number != 3:
            rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(
        "Rank 0 is behind or silent in the process group that it belongs to; 2 ranks wait for it"
    )
    assert shown[2] == "  rank 3: no dump can be read, and ranks wait there too"


def test_most_dumps_missing_is_no_conclusion(tmp_path: Path, capsys: Shown) -> None:
    ranks = [rank.collective(hang=True) for rank in job(8)[:4]]
    assert concluded(tmp_path, capsys, ranks, 1) == (
        "no rank stands out: the dumps of ranks 4, 5, 6 and 7 of 8 are missing; copy the files of all nodes"
    )


def test_a_healthy_job_has_no_rank_that_stands_out(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    ranks[3].collective()  # dumped a moment later
    assert concluded(tmp_path, capsys, ranks, 1) == "no rank stands out: no operation is pending"


def test_transfers_that_are_launched_together_have_the_state_of_the_last_entry(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(2)
    for rank in ranks:
        rank.send(1 - rank.number, hang=True).recv(1 - rank.number, hang=True).recv(1 - rank.number)
        for entry in rank.entries[2:]:
            entry["p2p_seq_id"] = 1
        rank.entries[-1]["profiling_name"] = "nccl:coalesced"
    assert concluded(tmp_path, capsys, ranks, 1) == "no rank stands out: no operation is pending"
    for rank in ranks:
        rank.entries[-1].update(state="scheduled", time_discovered_completed_ns=None)
    assert concluded(tmp_path, capsys, ranks, 1).startswith("no rank stands out: 2 ranks wait in send to rank ")


def test_a_rank_that_lists_no_operation_is_compared_by_its_counts(tmp_path: Path, capsys: Shown) -> None:
    # Dumps of pending operations only, as with TORCH_INCLUDE_ONLY_ACTIVE.
    ranks = job(4)
    for rank in ranks:
        if rank.number != 1:
            rank.collective(hang=True)
        rank.entries = [entry for entry in rank.entries if entry["state"] == "scheduled"]
        rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Rank 1 is behind or silent in the process group")
    assert "rank 1 launched 2 collective operations, the others 3 (last: all_reduce)" in shown


def test_the_first_version_of_the_format_is_read(tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        if rank.number != 2:
            rank.collective(hang=True)
        document = rank.document()
        document["version"] = "1.0"
        del document["pg_status"], document["pg_config"]
        for entry in document["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id")
            for key in ("process_group", "p2p_seq_id", "is_p2p", "retired", "input_dtypes"):
                del entry[key]
        (tmp_path / f"trace_{rank.number}.json").write_text(json.dumps(document))
    assert concluded(tmp_path, capsys).startswith("Rank 2 is behind or silent")


def test_counts_decide_if_every_operation_is_pending(tmp_path: Path, capsys: Shown) -> None:
    ranks = [Rank(rank, {"world": [0, 1, 2, 3]}).collective(hang=True) for rank in range(4)]
    for rank in ranks[1:]:
        rank.collective(hang=True)
    assert concluded(tmp_path, capsys, ranks) == (
        "Rank 0 is behind or silent in 1 process group; the other 3 ranks wait for it"
    )


def test_the_newest_file_of_a_rank_counts_in_all_subfolders(tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        rank.write(tmp_path / "node_0" / "attempt_0", "dump_{}")
        rank.time += 100 * SECOND
        (rank if rank.number == 2 else rank.collective(hang=True)).collective().write(tmp_path, "dump_{}.pickle")
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Rank 2 is behind or silent")
    assert "attempt_0/dump_0 and 3 more: older than another file of the same rank; remove it if" in shown.err


@pytest.mark.parametrize(
    "name",
    [
        *("{}", "_dump_{}_attempt_7", "host9.pci3_rank_{}", "trace-7_rank{}.pkl", "dump_{}.1", "20261127_{}.pickle"),
        "trace_rank_job-worker-7_{}",
    ],
)
def test_the_rank_is_found_in_the_name_of_a_file(name: str, tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        (rank if rank.number == 2 else rank.collective(hang=True)).write(tmp_path, name)
    assert concluded(tmp_path, capsys).startswith("Rank 2 is behind or silent")


@pytest.mark.parametrize("seconds", [600, 7200])
def test_a_dump_of_an_earlier_attempt_is_left_out(seconds: int, tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        if rank.number != 3:
            rank.collective(hang=True)
            for entry in rank.entries:
                entry["time_created_ns"] += seconds * SECOND
        file = rank.write(tmp_path)
    assert concluded(tmp_path, capsys).startswith("Rank 3 left no dump; the other 3 ranks wait for it")
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    assert f"{file}: {seconds // 60 if seconds < 3600 else 2} " in capsys.readouterr().err


def test_a_dump_that_cannot_be_read_is_not_a_missing_one(tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        file = rank.collective(hang=True).write(tmp_path)
    file.write_bytes(file.read_bytes()[:500])
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("no rank stands out: the dump of rank 3 can't be read")
    assert shown.err.startswith(f"stallscope stacks: --flight-recorder: {file}: not a dump (")
    assert "copy it again" in shown.err


def test_a_pipe_and_other_files_do_not_hinder(tmp_path: Path, capsys: Shown) -> None:
    os.mkfifo(tmp_path / "rank_7")
    (tmp_path / "stdout.log").write_text("no rank")
    (tmp_path / "stderr_3.log").write_text("not a dump")
    ranks = job(4)
    for rank in ranks[1:]:
        rank.collective(hang=True)
    assert concluded(tmp_path, capsys, ranks).startswith("Rank 0 is behind or silent")


def test_the_conclusion_is_in_the_json_document(tmp_path: Path, capsys: Shown) -> None:
    ranks = job(4)
    for rank in ranks:
        (rank if rank.number == 2 else rank.collective(hang=True)).write(tmp_path)
    assert stacks.main(["--json", "--flight-recorder", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["conclusion"]["ranks"] == [2]
    assert document["conclusion"]["waiting"] == [0, 1, 3]
    assert document["conclusion"]["kind"] == "behind"
    assert document["collectives"][0]["conclusion"] == document["conclusion"]
    for rank in ranks[:1]:
        (tmp_path / f"nccl_trace_rank_{rank.number}").unlink()
    ranks[1].entries, ranks[3].entries = ranks[1].entries[:2], ranks[3].entries[:2]
    for rank in ranks[1:]:
        rank.write(tmp_path)
    assert stacks.main(["--json", "--flight-recorder", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["conclusion"]["kind"] is None


SPY = """Process 42: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 42 (idle): "MainThread"
    0x7f58c8a{rank}3f16 (libc.so.6)
    Work.wait (torch/distributed/distributed_c10d.py:99)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    Trainer.{function} (train.py:{line})
    <module> (train.py:90)
    0x7f58c8a{rank}524a (libc.so.6)
Thread 43 (active): "Thread-{rank}"
    pin (torch/utils/data/_utils/pin_memory.py:3{rank})
Process 50: python worker
Python v3.11.7 (/usr/bin/python3.11)

Thread 50 (active+gil): "MainThread"
    decode{rank} (data.py:5)
"""
HANDLER = """Fatal Python error: Aborted

Current thread 0x00007f58c8786{rank}c0 [Thread-1] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 33{rank} in wait

Thread 0x00007f58c91e0b80 [python] (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9{rank} in wait
  File "/job/train.py", line {line} in {function}
  File "/job/train.py", line 90 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""


def spy_json(**values: Any) -> str:
    frames = [("wait", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 99)]
    frames += [(values["function"], "/job/train.py", values["line"]), ("<module>", "/job/train.py", 90)]
    frames_document = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    thread = {"os_thread_id": 42, "active": False, "owns_gil": False}
    return json.dumps(
        [
            {**thread, "thread_name": f"Thread-{values['rank']}", "frames": []},
            {**thread, "thread_name": "MainThread", "frames": frames_document},
        ]
    )


@pytest.mark.parametrize(
    ("form", "place"),
    [(SPY.format, "train.py"), (HANDLER.format, "job/train.py"), (spy_json, "job/train.py")],
    ids=["py-spy", "faulthandler", "py-spy --json"],
)
def test_stack_files_name_the_rank_that_is_elsewhere(form: Any, place: str, tmp_path: Path, capsys: Shown) -> None:
    for rank in range(4):
        place_of_rank = {"function": "load", "line": 7} if rank == 2 else {"function": "step", "line": 40}
        (tmp_path / f"stack_{rank}.txt").write_text(form(rank=rank, **place_of_rank))
    assert stacks.main(["--stack-files", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == f"3 ranks wait in wait at {place}:40; rank 2 is in wait at {place}:7"
    assert "rank 2 (differs from the others):\n" in shown.out
    assert shown.err == ""
    assert stacks.main(["--json", "--stack-files", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["conclusion"]["ranks"], document["odd_ranks"]) == ([2], [2])


def test_a_rank_that_waits_in_another_operation_is_not_the_one_that_the_others_wait_for(
    tmp_path: Path, capsys: Shown
) -> None:
    # A pipeline: rank 1 computes, ranks 2 and 3 wait for its activations, rank 0 for its gradients.
    wait = HANDLER.replace('in wait\n  File "/job', 'in {call}\n  File "/job')
    for rank, (call, line) in enumerate((("recv", 50), ("", 7), ("recv", 40), ("recv", 40))):
        form = wait if call else wait.replace("torch/distributed/distributed_c10d.py", "torch/nn/modules/module.py")
        (tmp_path / f"rank{rank}.log").write_text(form.format(rank=rank, line=line, function="step", call=call))
    assert stacks.main(["--json", "--stack-files", str(tmp_path)]) == 0
    conclusion = json.loads(capsys.readouterr().out)["conclusion"]
    assert (conclusion["ranks"], conclusion["waiting"]) == ([1], [0, 2, 3])
    assert conclusion["sentence"].startswith("2 ranks wait in recv at job/train.py:40; rank 1 is in ")
    assert conclusion["sentence"].endswith("; rank 0 waits in recv at job/train.py:50")


def test_a_rank_without_a_stack_is_named_if_the_others_wait_for_ranks(tmp_path: Path, capsys: Shown) -> None:
    for rank in (0, 1, 3):
        (tmp_path / f"rank{rank}.log").write_text(HANDLER.format(rank=rank, line=40, function="step"))
    assert stacks.main(["--stack-files", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Rank 2 left no stack; ranks 0, 1 and 3 are in wait at job/train.py:40\n")
    for rank in (0, 1, 3):
        (tmp_path / f"rank{rank}.log").write_text(SPY.format(rank=rank, line=4, function="f").replace("torch/", "x/"))
    assert stacks.main(["--stack-files", str(tmp_path)]) == 1


def test_the_main_thread_without_a_name_is_the_one_with_the_number_of_the_process(
    tmp_path: Path, capsys: Shown
) -> None:
    for rank in range(4):
        text = SPY.format(rank=rank, line=7 if rank == 2 else 40, function="step").replace(': "MainThread"', "")
        (tmp_path / f"rank_{rank}").write_text(text)
    assert stacks.main(["--stack-files", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("3 ranks wait in wait at train.py:40; rank 2 is in wait at train.py:7\n")


def test_different_stacks_of_all_ranks_are_no_conclusion(tmp_path: Path, capsys: Shown) -> None:
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_text(SPY.format(rank=rank, line=rank, function="step"))
    assert stacks.main(["--stack-files", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("no rank stands out: the stacks of 4 ranks form 4 groups\n")


def test_equal_stacks_are_no_conclusion(tmp_path: Path, capsys: Shown) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(HANDLER.format(rank=rank, line=40, function="step"))
    assert stacks.main(["--stack-files", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("no rank stands out: the stacks of all 4 ranks are equal\n")


def test_torchelastic_log_files_have_their_rank_in_the_name_of_the_folder(tmp_path: Path, capsys: Shown) -> None:
    for rank in range(4):
        folder = tmp_path / "job_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        text = HANDLER.format(rank=rank, line=7 if rank == 1 else 40, function="load" if rank == 1 else "step")
        (folder / "stderr.log").write_text(f"warning: slow\n{text}Aborted\n")
    assert stacks.main(["--stack-files", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].endswith("rank 1 is in wait at job/train.py:7")
    assert shown.err == ""


def test_a_whole_node_without_dumps_is_named_as_a_range(tmp_path: Path, capsys: Shown) -> None:
    ranks = [rank.collective(hang=True) for rank in job(64) if not 40 <= rank.number < 56]
    assert concluded(tmp_path, capsys, ranks) == "Ranks 40-55 left no dump; the other 48 ranks wait for them"


def test_a_job_of_transfers_only_has_process_groups(tmp_path: Path, capsys: Shown) -> None:
    groups = {"world": [0, 1, 2]}
    Rank(0, groups).send(1, hang=True).write(tmp_path)
    Rank(1, groups).recv(0).send(2).write(tmp_path)
    Rank(2, groups).recv(1, hang=True).write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Rank 1 is behind or silent in the process group that it belongs to; the other 2 ranks")
    assert "no process group yet" not in shown


def test_files_of_several_attempts_are_no_conclusion_if_the_newest_has_few_ranks(tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        rank.collective(hang=True)
        for entry in rank.entries if rank.number == 0 else ():
            entry["time_created_ns"] += 7200 * SECOND
        rank.write(tmp_path)
    assert concluded(tmp_path, capsys, status=1).startswith("no rank stands out: the dumps of ranks 1, 2 and 3 of 4")


def test_a_damaged_file_is_not_replaced_by_one_of_an_earlier_attempt(tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        rank.collective(hang=True)
        if rank.number == 3:
            rank.write(tmp_path / "attempt_0")
            (tmp_path / "nccl_trace_rank_3").write_bytes(b"\x80\x02}q")
            continue
        for entry in rank.entries:
            entry["time_created_ns"] += 600 * SECOND
        rank.write(tmp_path)
    assert concluded(tmp_path, capsys, status=1) == "no rank stands out: the dump of rank 3 can't be read"


@pytest.mark.parametrize(
    "change",
    [
        {"input_sizes": [[float("inf")]]},
        {"collective_seq_id": 1 << 70},
        {"process_group": ([], "")},
        {"profiling_name": ["nccl:all_reduce"]},
    ],
)
def test_an_entry_with_implausible_values_is_no_dump(change: dict[str, Any], tmp_path: Path, capsys: Shown) -> None:
    (rank, _) = job(2)
    rank.entries[-1].update(change)
    rank.write(tmp_path)
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 1
    assert "nccl_trace_rank_0: not a dump of a known format; copy it again, or name" in capsys.readouterr().err


def test_a_nested_list_that_grows_with_each_level_is_refused_without_formatting_it(
    tmp_path: Path, capsys: Shown
) -> None:
    bomb: Any = ["0"]
    for _ in range(100):
        bomb = [bomb, bomb]
    (rank, _) = job(2)
    document = rank.document()
    document["pg_config"]["world"]["ranks"] = bomb
    (tmp_path / "rank_0").write_bytes(pickle.dumps(document))
    assert stacks.main(["--flight-recorder", str(tmp_path)]) == 1
    assert "not a dump of a known format" in capsys.readouterr().err


def test_stacks_and_dumps_are_read_together_and_a_conclusion_comes_first(tmp_path: Path, capsys: Shown) -> None:
    for rank in job(4):
        rank.collective(hang=True).write(tmp_path / "dumps")
        function = "load" if rank.number == 1 else "step"
        file = tmp_path / f"stack_{rank.number}.txt"
        file.write_text(SPY.format(rank=rank.number, line=len(function), function=function))
    assert stacks.main(["--flight-recorder", str(tmp_path / "dumps"), "--stack-files", str(tmp_path / "stack_")]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.endswith("rank 1 is in wait at train.py:4")
    assert second.startswith("no rank stands out: 4 ranks wait in all_reduce 3")


def test_stacks_that_name_fewer_ranks_than_dumps_come_first(tmp_path: Path, capsys: Shown) -> None:
    # Rank 0 waits for rank 1 in a send, which Gloo does not record; both have not launched the next operation.
    for rank in job(5):
        (rank.collective(hang=True) if rank.number > 1 else rank).write(tmp_path / "dumps")
        place = {0: ("send", 30), 1: ("load", 7)}.get(rank.number, ("all_reduce", 40))
        code = "torch/nn/modules/module.py" if rank.number == 1 else "torch/distributed/distributed_c10d.py"
        text = HANDLER.replace("torch/distributed/distributed_c10d.py", code)
        text = text.format(rank=rank.number, line=place[1], function=place[0])
        (tmp_path / f"stack_{rank.number}.txt").write_text(text)
    assert stacks.main(["--flight-recorder", str(tmp_path / "dumps"), "--stack-files", str(tmp_path / "stack_")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "; rank 1 is in " in shown[0]
    assert "; rank 0 waits in " in shown[0]
    assert shown[1].startswith("Ranks 0 and 1 are behind or silent")


def test_stack_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "rank_0").write_text(SPY.format(rank=0, line=4, function="step"))
    (tmp_path / "rank_1").write_text("Process 7: python\n")
    (tmp_path / "rank_2").write_bytes(b"x" * (17 << 20))
    assert stacks.main(["--stack-files", str(tmp_path)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].endswith(
        "rank_1: no stack of a main thread, or truncated; write it with py-spy dump or faulthandler"
    )
    assert errors[1].endswith("larger than 16 MiB, unlike stacks; name a folder that has only stacks of one job")
    assert len(errors) == 2


@pytest.mark.parametrize("flag", ["--flight-recorder", "--stack-files"])
def test_a_folder_without_files_of_ranks_is_named(flag: str, tmp_path: Path, capsys: Shown) -> None:
    assert stacks.main([flag, str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"stallscope stacks: {flag}: {tmp_path}: no file name contains a rank, as in rank_3 or dump_3.json; "
        "check the path\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "expected a RUN, --pid, --flight-recorder or --stack-files"),
        (["job", "--stack-files", "x"], "--stack-files: takes no RUN; omit one of them"),
        (["--pid", "1", "--flight-recorder", "x"], "--pid: takes none of"),
        (["--lines", "--flight-recorder", "x"], "--lines: expected a RUN; name it or omit the flag"),
        (["--rank", "3", "--flight-recorder", "x"], "--rank: expected a RUN; name it or omit the flag"),
    ],
)
def test_files_and_a_run_are_not_mixed(arguments: list[str], problem: str, capsys: Shown) -> None:
    with pytest.raises(SystemExit) as ended:
        stacks.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
