"""NCCL Inspector's files: lines in the format of its source, growing files, and files that are not its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.collectors import nccl_inspector
from stallscope.node.collectors.base import Environment, NotPresent
from stallscope.node.collectors.nccl_inspector import NcclInspector
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import checked

DOCUMENTED = """{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":\
{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"profiler_plugin","dump_timestamp_us":\
1748030377748202,"hostname":"example-hostname","pid":1639453},"coll_perf":{"coll":"AllReduce","coll_sn":1407,\
"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}
"""
"""The example of NCCL Inspector's documentation, format v4.0, on one line as the plug-in writes it."""
Series = dict[tuple[str, ...], float]


def line(kind: str = "coll", operation: str = "AllReduce", number: int = 7, **changes: Any) -> str:
    """Return a line as NCCL 2.30 writes it; one operation of 1 MiB takes a millisecond."""
    header = {"id": "0xabc", "comm_name": "DP Group 0", "rank": 0, "n_ranks": 16, "nnodes": 2}
    metadata = {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1_700_000_000_000_000}
    measured = {
        kind: operation,
        f"{kind}_sn": number,
        f"{kind}_msg_size_bytes": 2**20,
        f"{kind}_exec_time_us": 1000,
        f"{kind}_timing_source": "kernel_gpu",
        f"{kind}_algobw_gbs": 1.0,
        f"{kind}_busbw_gbs": 2.0,
    }
    if kind == "p2p":
        measured["p2p_peer"] = 1
    for part in (header, metadata, measured):
        part.update({name: value for name, value in changes.items() if name in part})
    header |= {name: changes[name] for name in ("id", "rank") if name in changes}
    return json.dumps(
        {"header": header, "metadata": {**metadata, "hostname": "gpu-node-3", "pid": 42}, f"{kind}_perf": measured}
    ) + "\n"  # fmt: skip


class Folder:
    """A folder of NCCL Inspector, and the collector that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ScriptedClock()
        self.collector = NcclInspector(Environment(clock=self.clock, nccl_inspector_folder=path))

    def write(self, text: str | bytes, name: str = "gpu-node-3-pid42.log", *, mode: str = "ab") -> Path:
        """Append to a file, at the present of the clock."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        with path.open(mode) as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.utime(path, (self.clock.time(), self.clock.time()))
        return path

    def read(self, seconds: float = 5.0) -> Series:
        self.clock.advance(seconds)
        samples = checked(self.collector.read())
        found = {(each.family.name.removeprefix("stallscope_nccl_"), *each.labels): each.value for each in samples}
        assert len(found) == len(samples)
        return found  # type: ignore[return-value]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_the_documented_line_becomes_counters_of_its_rank_and_communicator(folder: Folder) -> None:
    folder.write(DOCUMENTED)
    key = ("0x7f8c496ae9f661", "2")
    assert folder.read() == {
        ("communicator_info", *key, "unknown", "8", "1", "example-hostname", "1639453"): 1,
        ("operations_total", *key, "AllReduce"): 1,
        ("operation_seconds_total", *key, "AllReduce"): 0.061974,
        ("operation_bytes_total", *key, "AllReduce"): 17179869184,
        ("bus_bytes_total", *key, "AllReduce"): pytest.approx(485.119099e9 * 0.061974),
        ("last_operation_timestamp_seconds", *key): 1748030377.748202,
        ("last_sequence_number", *key): 1407,
    }


def test_lines_are_counted_once_as_the_file_grows(folder: Folder) -> None:
    folder.write(line(number=1) + line(number=2))
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 2
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 2
    folder.write(line(number=3, dump_timestamp_us=1_700_000_060_000_000))
    read = folder.read()
    assert read["operations_total", "0xabc", "0", "AllReduce"] == 3
    assert read["operation_seconds_total", "0xabc", "0", "AllReduce"] == pytest.approx(0.003)
    assert read["last_sequence_number", "0xabc", "0"] == 3
    assert read["last_operation_timestamp_seconds", "0xabc", "0"] == 1_700_000_060


def test_a_line_that_is_being_written_is_read_when_it_is_whole(folder: Folder) -> None:
    text = line(number=2)
    folder.write(line(number=1) + text[:100])
    assert folder.read()["last_sequence_number", "0xabc", "0"] == 1
    folder.write(text[100:])
    assert folder.read()["last_sequence_number", "0xabc", "0"] == 2


def test_files_are_read_at_most_every_five_seconds(folder: Folder) -> None:
    folder.write(line())
    folder.read()
    folder.write(line())
    assert folder.read(1.0)["operations_total", "0xabc", "0", "AllReduce"] == 1
    assert folder.read(4.0)["operations_total", "0xabc", "0", "AllReduce"] == 2


def test_a_send_has_no_number_that_other_ranks_share(folder: Folder) -> None:
    folder.write(line("p2p", "Send"))
    read = folder.read()
    assert read["operations_total", "0xabc", "0", "Send"] == 1
    assert ("last_sequence_number", "0xabc", "0") not in read


def test_an_operation_of_a_later_nccl_is_other(folder: Folder) -> None:
    folder.write(line(operation="AllDance"))
    assert folder.read()["operations_total", "0xabc", "0", "other"] == 1


def test_ranks_of_several_processes_and_folders_are_apart(folder: Folder) -> None:
    folder.write(line())
    folder.write(line(rank=1) * 2, "4711/gpu-node-3-pid43.log")
    read = folder.read()
    assert [read["operations_total", "0xabc", rank, "AllReduce"] for rank in "01"] == [1, 2]


def test_a_second_file_with_the_same_rank_is_not_mixed_with_the_first(folder: Folder) -> None:
    folder.write(line())
    folder.read()
    folder.write(line() * 5, "copy-pid1.log")
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        "not json\n",
        "[1, 2]\n",
        "{}\n",
        '{"header": 1, "metadata": 2, "coll_perf": 3}\n',
        line(coll_exec_time_us=-1),
        line(coll_busbw_gbs="nan"),
        line(coll_msg_size_bytes=True),
        line(id="x" * 200),
        line(id="two\nlines"),
        line(rank="0"),
        line(operation=["AllReduce"]),  # type: ignore[arg-type]
        "[" * 100_000 + "\n",
    ],
)
def test_a_line_in_another_format_is_skipped(bad: str, folder: Folder) -> None:
    folder.write(line() + bad + line())
    read = folder.read()
    assert {key[0] for key in read} >= {"operations_total"}
    assert read["operations_total", "0xabc", "0", "AllReduce"] == 2


def test_of_a_large_file_only_the_end_is_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_inspector, "_FIRST_BYTES", int(3.5 * len(line())))
    folder.write(line() * 50)
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 3
    monkeypatch.setattr(nccl_inspector, "_MOST_BYTES", int(2.5 * len(line())))
    folder.write(line() * 50)
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 5
    folder.write(line())
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 6


def test_a_file_without_lines_ends_no_reading(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_inspector, "_MOST_BYTES", 1000)
    folder.write(line(rank=1))
    folder.write("x" * 2500, "endless-pid1.log")
    for _ in range(4):
        folder.read()
    folder.write("x" * 10 + "\n" + line(), "endless-pid1.log")
    assert folder.read()["operations_total", "0xabc", "0", "AllReduce"] == 1


def test_a_file_that_begins_again_is_counted_from_its_begin(folder: Folder) -> None:
    folder.write(line(number=9) * 3)
    folder.read()
    folder.write(line(number=1), mode="wb")
    read = folder.read()
    assert read["operations_total", "0xabc", "0", "AllReduce"] == 1
    assert read["last_sequence_number", "0xabc", "0"] == 1


def test_the_number_of_communicators_is_limited(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_inspector, "_MOST_COMMUNICATORS", 3)
    folder.write("".join(line(id=f"0x{number}") for number in range(9)))
    folder.write("".join(line(id=f"0x{number}") for number in range(9, 18)), "other-pid1.log")
    assert len([key for key in folder.read() if key[0] == "communicator_info"]) == 3


def test_the_newest_files_are_read_if_there_are_too_many(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_inspector, "_MOST_FILES", 2)
    for number in range(4):
        folder.write(line(rank=number), f"node-pid{number}.log")
        folder.clock.advance(1.0)
    assert {key[2] for key in folder.read()} == {"2", "3"}


def test_a_hang_keeps_its_series_and_an_hour_without_a_line_ends_them(folder: Folder) -> None:
    folder.write(line())
    assert folder.read(3000.0)
    with pytest.raises(NotPresent):
        folder.read(700.0)


def test_links_pipes_and_other_files_are_not_read(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret-pid1.log").write_text(line())
    (folder.path / "link-pid1.log").symlink_to(elsewhere / "secret-pid1.log")
    (folder.path / "below").symlink_to(elsewhere)
    os.mkfifo(folder.path / "pipe-pid1.log")
    folder.write(line(), "notes.txt")
    folder.write(line(), "a/b-pid1.log.old")
    with pytest.raises(NotPresent, match="no process writes"):
        folder.read()


def test_without_a_folder_nothing_is_read_and_a_missing_one_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=r"--nccl\.inspector-folder is not set"):
        NcclInspector(Environment()).read()
    with pytest.raises(FileNotFoundError):
        NcclInspector(Environment(nccl_inspector_folder=tmp_path / "absent")).read()
