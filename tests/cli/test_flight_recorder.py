"""Dumps of PyTorch's flight recorder, written by PyTorch itself and by hand in its form.

The folder `flight_recorder` has dumps of two ranks that PyTorch 2.13 wrote on CPUs, with TORCH_FR_BUFFER_SIZE=100. It
records operations of Gloo as it records those of NCCL: `torch._C._distributed_c10d._dump_fr_trace` and
`_dump_fr_trace_json`. Rank 0 has begun a second all_reduce.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from stallscope.model.hangs import flight_recorder, rank_files
from stallscope.model.hangs.collective_counts import lines
from stallscope.tools.cli import stacks
from tests.analysis.servers import answering

RECORDED = Path(__file__).with_name("flight_recorder")


def entry(count: int, name: str = "nccl:all_reduce", *, is_p2p: bool = False, group: str = "0") -> dict[str, Any]:
    return {
        "collective_seq_id": count,
        "is_p2p": is_p2p,
        "process_group": (group, "default_pg"),
        "profiling_name": name,
        "state": "scheduled",
    }


def dump(folder: Path, rank: int, *entries: dict[str, Any], ranks: str = "[0, 1, 2, 3]") -> Path:
    document = {"version": "2.10", "pg_config": {"0": {"ranks": ranks}}, "pg_status": {}, "entries": list(entries)}
    file = folder / f"nccl_trace_rank_{rank}"
    file.write_bytes(pickle.dumps(document, protocol=2))
    return file


def read(path: Path) -> str:
    (line,) = lines(flight_recorder.read(path), [])
    return line.partition("): ")[2]


def test_the_rank_that_launched_fewer_operations_is_named_with_its_last_one(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, entry(40), entry(41) if rank == 3 else entry(42, "nccl:_all_gather_base"))
    assert read(tmp_path) == (
        "process group 0 (default_pg), 4 ranks: "
        "rank 3 launched 41 collective operations (last: all_reduce), the others 42 (last: _all_gather_base)"
    )


def test_ranks_without_a_file_or_an_operation_are_named(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, *([entry(7)] if rank else []))
    assert read(tmp_path).endswith("4 ranks: there is no dump of rank 3; no operation of rank 0 is recorded")


def test_counts_of_operations_between_two_ranks_are_not_compared(tmp_path: Path) -> None:
    for rank in range(2):
        dump(tmp_path, rank, entry(7), entry(7 + rank, "nccl:send 0->1", is_p2p=True), ranks="[0, 1]")
    assert read(tmp_path) == "the counts of operations are equal on all ranks in 1 process group"


def test_groups_with_one_name_and_different_ranks_are_not_compared(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, entry(7 + rank // 2), ranks="[0, 1]" if rank < 2 else "[2, 3]")
    assert read(tmp_path) == "the counts of operations are equal on all ranks in 2 process groups"


@pytest.mark.parametrize("name", ["pickle_", "json_"])
def test_dumps_of_pytorch_are_read(name: str) -> None:
    assert read(RECORDED / name).endswith(
        "2 ranks: rank 1 launched 1 collective operation (last: all_reduce), rank 0 launched 2 (last: all_reduce)"
    )


class Malicious:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused_before_it_runs(protocol: int, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    content = pickle.dumps({"entries": [Malicious(planted)]}, protocol)
    (tmp_path / "trace_0").write_bytes(content)
    with pytest.raises(rank_files.Unreadable, match=r"trace_0: refers to .*, unlike a dump"):
        flight_recorder.read(tmp_path)
    assert not planted.exists()
    pickle.loads(content)
    assert planted.exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a dump (EOFError)"),
        (b"not a pickle", "not a dump (UnpicklingError)"),
        (b"{", "not a dump (JSONDecodeError)"),
        (b'{"a":' + b"[" * 100_000, "not a dump (RecursionError)"),
        (pickle.dumps([1]), "not a dump of a known format"),
        (pickle.dumps({"entries": [1], "pg_config": {}}), "not a dump of a known format"),
        (pickle.dumps({"entries": [{**entry(1), "collective_seq_id": "x"}], "pg_config": {}}), "of a known format"),
        (pickle.dumps({"entries": [], "pg_config": {}})[:-5], "not a dump ("),
        (b"\x80\x02}U\x01aU\x01bsb.", "not a dump ("),
        (b"\x80\x02cos\nsystem\n.", "refers to os.system, unlike a dump"),
        (b"\x80\x02\x82\x01.", "not a dump (ValueError)"),
    ],
)
@pytest.mark.usefixtures("nothing_collected")
def test_another_file_is_refused_with_the_reason(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(content)
    with pytest.raises(rank_files.Unreadable, match=re.escape(problem)):
        flight_recorder.read(tmp_path)


def test_a_folder_without_dumps_is_refused_and_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder_1").mkdir()
    with pytest.raises(rank_files.Unreadable, match="no file name contains a rank"):
        flight_recorder.read(tmp_path)
    with pytest.raises(rank_files.Unreadable, match="missing: No such file or directory; check the path"):
        flight_recorder.read(tmp_path / "missing" / "trace_")
    dump(tmp_path, 0, entry(1))
    (tmp_path / "other_0").touch()
    (problem,) = flight_recorder.read(tmp_path).problems
    assert problem.startswith(f"{tmp_path}/other_0: not a dump (EOFError), or truncated; ")
    assert flight_recorder.read(tmp_path / "nccl_trace_rank_").problems == ()
    assert flight_recorder.read(tmp_path / "nccl_trace_rank_").number == 1
    with pytest.raises(rank_files.Unreadable, match="larger than 0 MiB"):
        flight_recorder.read(tmp_path / "nccl_trace_rank_", max_bytes=10)


def test_the_command_shows_the_dumps_also_after_the_run_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        dump(tmp_path, rank, entry(41 if rank == 3 else 42))
    with answering(404, b'{"error": "unknown_run", "message": "run \'job\' is not known"}') as (url, _):
        arguments = ["job", "--exporter.url", url, "--flight-recorder"]
        assert stacks.main([*arguments, str(tmp_path)]) == 1
        shown = capsys.readouterr().out
        assert "Rank 3 is behind or silent in the process group that it belongs to; the other 3 ranks" in shown
        assert "rank 3 launched 41 collective operations" in shown
        assert stacks.main([*arguments, str(tmp_path), "--json"]) == 1
        (found,) = json.loads(capsys.readouterr().out)["collectives"]
        assert found["differences"][0]["operations"]["collective"][1]["members"][0]["run_rank"] == 3
        assert stacks.main([*arguments, str(tmp_path / "missing")]) == 1
    assert "stallscope stacks: --flight-recorder: " in capsys.readouterr().err
