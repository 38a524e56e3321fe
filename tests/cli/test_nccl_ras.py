"""NCCL's evidence in `stallscope stacks`, from stand-ins of its RAS service.

The answers have the form of NCCL's documentation ("RAS", 2.24 to 2.30) and of its releases 2.24, 2.27 and 2.28.9. None
of them was measured: there is no job with NCCL where these tests run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from stallscope.common.address import Address
from stallscope.model.hangs import nccl_ras
from stallscope.model.hangs.collective_counts import Evidence, lines
from stallscope.tools.cli import stacks
from tests.analysis.servers import answering, dripping, talking

Say = Callable[[socket.socket, threading.Event], None]


PIDS = {rank: 100 + rank for rank in range(8)}


def service(answer: str, speaks_json: bool = True) -> Say:
    """Speak the protocol of NCCL, line by line."""

    def say(connection: socket.socket, _over: threading.Event) -> None:
        for line in connection.makefile("r"):
            if line == "CLIENT PROTOCOL 2\n":
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif line == "SET FORMAT json\n" and speaks_json:
                connection.sendall(b"OK\n")
            elif line == "VERBOSE STATUS\n":
                connection.sendall(answer.encode())
                return
            else:
                connection.sendall(f"ERROR: Unknown command {line}".encode())

    return say


@contextlib.contextmanager
def serving(say: Say) -> Iterator[Address]:
    with talking(say) as url:
        yield Address("127.0.0.1", int(url.rpartition(":")[2]))


def read(say: Say, greeting: float = 1.0, seconds: float = 20.0) -> Evidence:
    with serving(say) as address:
        return nccl_ras.read(address, greeting=greeting, seconds=seconds)


def in_json(counts: Sequence[int | None], pids: Mapping[int, int] = PIDS) -> str:
    """A communicator in JSON; a rank without counts is missing."""
    places = [{"rank": rank, "host": "10.0.0.1", "pid": pids[rank]} for rank in range(len(counts))]
    gpus = [{**place, "cuda_dev": place["rank"], "nvml_dev": place["rank"]} for place in places]
    ranks = [
        {**gpu, "status": {"init_state": 0}, "collective_counts": {"Broadcast": 1, "AllReduce": count}}
        for gpu, count in zip(gpus, counts, strict=True)
        if count is not None
    ]
    missing = [
        {**gpu, "status": {"unresponsive": True, "considered_dead": False}}
        for gpu, count in zip(gpus, counts, strict=True)
        if count is None
    ]
    communicator = {"hash": "0xae94", "size": len(counts), "ranks": ranks, "missing_ranks": missing}
    return json.dumps({"nccl_version": "2.29.7", "communicators": [communicator]}, indent=2)


TEXT = """NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH
    1         3         2         1         2         6   RUNNING      OK

Errors
======

{errors}Warnings
========

{warnings}"""
BEHIND = """#0-0 (00f0ae94cfbb2ef4) MISMATCH
  Communicator ranks have different status
  6 ranks have status RUNNING
  2 ranks have status FINALIZE
  Rank 0 -- GPU 0 managed by process 100 on node 10.0.0.1
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1
  Communicator ranks have different AllReduce operation counts
  5 ranks have launched up to operation 1042
  2 ranks have launched up to operation 1041
  Rank 3 -- GPU 3 (NVML 7) managed by process 103 on node 10.0.0.1
  Rank 4 -- [process information not found]
  Rank 6 has not launched any operations -- GPU 2 managed by process 102 on node 10.0.0.2

"""
DEAD = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 102 on node 10.0.0.1 managing GPU 2

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 101 on node 10.0.0.1 managing GPU 1

#0-0 (00f0ae94cfbb2ef4) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.1

"""
OLDER = """#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 2,5

"""


def text(errors: str = "", warnings: str = "") -> Say:
    return service(TEXT.format(errors=errors, warnings=warnings), speaks_json=False)


def test_json_has_the_counts_of_every_rank() -> None:
    (line,) = lines(read(service(in_json([42, 42, 41, 42]))), [])
    assert line == (
        "NCCL 2.29.7 (RAS): communicator 0xae94, 4 ranks: "
        "rank 2 of the communicator (process 102 on 10.0.0.1) launched 41 AllReduce operations, the others 42"
    )


@pytest.mark.parametrize("comma", [",", ""], ids=["2.29", "2.28.9"])
def test_a_missing_rank_is_read_also_without_the_comma_that_2_28_9_omits(comma: str) -> None:
    answer = re.sub(r'("nvml_dev": \d),(\n *"status": {\n *"unresp)', rf"\1{comma}\2", in_json([5, None, 5, None]))
    (line,) = lines(read(service(answer)), [])
    assert line.endswith(
        "NCCL receives no response from rank 1 of the communicator (process 101 on 10.0.0.1), "
        "rank 3 of the communicator (process 103 on 10.0.0.1)"
    )


def test_text_of_versions_without_json_has_the_ranks_that_differ() -> None:
    (line,) = lines(read(text(warnings=BEHIND)), [])
    assert line == (
        "NCCL 2.27.5 (RAS): communicator 0xf0ae94cfbb2ef4, 8 ranks: "
        "rank 6 of the communicator (process 102 on 10.0.0.2) launched 0 AllReduce operations, "
        "rank 3 of the communicator (process 103 on 10.0.0.1), rank 4 of the communicator launched 1,041, "
        "the others 1,042"
    )


def test_text_names_dead_and_unresponsive_ranks() -> None:
    (line,) = lines(read(text(errors=DEAD)), [])
    assert line.endswith(
        "NCCL considers rank 1 of the communicator (process 101 on 10.0.0.1) dead; "
        "NCCL receives no response from rank 2 of the communicator (process 102 on 10.0.0.1)"
    )
    (line,) = lines(read(text(errors=OLDER)), [])
    assert line.endswith("NCCL receives no response from rank 2 of the communicator, rank 5 of the communicator")


def test_text_without_differences_means_equal_counts() -> None:
    (line,) = lines(read(text()), [3])
    assert line.endswith("equal on all ranks in 4 communicators; rank 3 waits elsewhere, as the stack shows")


def hangs(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(100)
    over.wait(60)


def hangs_later(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"SERVER PROTOCOL 2\n")
    for line in connection.makefile("r"):
        if line.startswith("SET"):
            connection.sendall(b"OK\n")
            break
    over.wait(60)


@pytest.mark.parametrize(
    ("say", "problem"),
    [
        (hangs, "the service does not respond; its process may be stopped"),
        (dripping(b""), "the service does not respond"),
        (hangs_later, "NCCL did not finish its response within 0.2 s; try again"),
        (lambda connection, _over: connection.recv(100), "not NCCL's RAS service; check --nccl"),
        (service(""), "NCCL closed the connection without a response; try again"),
        (service("", speaks_json=False), "NCCL closed the connection without a response; try again"),
        (service(in_json([1, 2])[:-40]), "NCCL 2.29.7 (RAS) returned malformed JSON; read its text: ncclras -v"),
        (service("[" * 100_000), "returned malformed JSON"),
        (service("[1]"), "returned an unknown format"),
        (service('{"communicators": [{"ranks": [{"rank": -1}]}]}'), "returned an unknown format"),
        (service(in_json([1, 2]).replace('"pid": 100', '"pid": "x"')), "returned an unknown format"),
        (service("ERROR: no\n", speaks_json=False), "NCCL returned an unknown or incomplete text"),
        (service(TEXT[: TEXT.index("Warnings")], speaks_json=False), "unknown or incomplete text"),
    ],
)
@pytest.mark.usefixtures("nothing_collected")
def test_a_service_that_hangs_closes_or_is_malformed_is_refused_with_the_reason(say: Say, problem: str) -> None:
    with pytest.raises(nccl_ras.Unreadable, match=re.escape(problem)):
        read(say, greeting=0.05 if "respond" in problem else 60.0, seconds=0.2 if "0.2 s" in problem else 60.0)


def test_another_process_is_reached_after_one_that_is_stopped() -> None:
    connections = itertools.chain([dripping(b"")], itertools.repeat(service(in_json([1, 1]))))

    def say(connection: socket.socket, over: threading.Event) -> None:
        next(connections)(connection, over)

    assert read(say, greeting=2.0).number == 1


MAIN = ["/job/main.py", 5, "main"]


def exporter(standstill: bool = True, size: int = 4) -> Any:
    """An exporter with ranks at a standstill, of which rank 2 is elsewhere."""
    ranks = [
        {
            "rank": rank,
            "pid": PIDS[rank],
            "world_size": str(size),
            "reported": 1.0,
            "taken": 2.0,
            "standstill": standstill,
            "stacks": [[["/job/data.py" if rank == 2 else "/job/train.py", 7, "read" if rank == 2 else "step"], MAIN]],
            "samples": [0],
        }
        for rank in range(size)
    ]
    return answering(200, json.dumps({"time": 3.0, "seconds": 0, "ranks": ranks}).encode())


Shown = pytest.CaptureFixture[str]


def shown(capsys: Shown, say: Say, *flags: str, default: bool = False, standstill: bool = True) -> tuple[str, str]:
    """Output of the command, with the service at an explicit or at the default address."""
    with exporter(standstill) as (url, _), serving(say) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_RAS_ADDR", str(address) if default else "localhost:1")
        explicit = ["--nccl=on"] if default else [f"--nccl={address}"]
        assert stacks.main(["job", "--samples=0", "--exporter.url", url, *explicit, *flags]) == 0
    output = capsys.readouterr()
    return output.out, output.err


@pytest.mark.parametrize("default", [True, False])
def test_the_command_names_the_ranks_of_the_run_that_are_behind(default: bool, capsys: Shown) -> None:
    output, errors = shown(capsys, service(in_json([42, 42, 41, 42])), default=default)
    conclusion = "Rank 2 is behind or silent in 1 communicator; the other 3 ranks wait for it"
    assert (
        f"rank 2 is in read at job/data.py:7\n\n{conclusion}\nNCCL 2.29.7 (RAS): communicator 0xae94, 4 ranks: "
        in output
    )
    assert output.endswith(": rank 2 launched 41 AllReduce operations, the others 42\n")
    assert not errors


def test_text_at_the_default_port_is_of_the_run_if_its_processes_are(capsys: Shown) -> None:
    with exporter(size=8) as (url, _), serving(text(errors=DEAD)) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_RAS_ADDR", str(address))
        assert stacks.main(["job", "--exporter.url", url, "--nccl=on"]) == 0
    assert "8 ranks: NCCL considers rank 1 dead; NCCL receives no response from rank 2\n" in capsys.readouterr().out


def test_with_equal_counts_the_stacks_still_name_the_rank(capsys: Shown) -> None:
    output, _ = shown(capsys, service(in_json([42] * 4)))
    assert "rank 2 is in read at job/data.py:7\n" in output
    assert output.endswith("equal on all ranks in 1 communicator; rank 2 waits elsewhere, as the stack shows\n")


def test_json_of_the_command_has_the_counts(capsys: Shown) -> None:
    output, _ = shown(capsys, service(in_json([42, 42, 41, 42])), "--json")
    (found,) = json.loads(output)["collectives"]
    assert (found["source"], found["communicators"]) == ("NCCL 2.29.7 (RAS)", 1)
    most, least = found["differences"][0]["operations"]["AllReduce"]
    assert (most["launched"], most["number"], least["launched"]) == (42, 3, 41)
    assert least["members"] == [{"rank": 2, "host": "10.0.0.1", "pid": 102, "run_rank": 2}]


def test_another_job_at_the_default_port_is_not_shown(capsys: Shown) -> None:
    other = in_json([42, 42, 41, 42]).replace('"pid": 10', '"pid": 20')
    output, errors = shown(capsys, service(other), default=True)
    assert "NCCL" not in output
    assert re.search(r"--nccl: the job at \S+ is not known to be this run; to show it, set --nccl=", errors)
    output, _ = shown(capsys, service(other))
    assert "rank 2 of the communicator (process 202 on 10.0.0.1) launched 41" in output


def test_the_default_port_is_queried_only_on_request_and_only_at_a_standstill(capsys: Shown) -> None:
    queried = []

    def notes(connection: socket.socket, _over: threading.Event) -> None:
        queried.append(connection.recv(100))

    _, errors = shown(capsys, notes, default=True, standstill=False)
    assert "--nccl: not queried while no rank is at a standstill; to query it, set --nccl=" in errors
    assert shown(capsys, notes, "--nccl=off", default=True)[1] == ""
    with exporter() as (url, _), serving(notes) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_RAS_ADDR", str(address))
        assert stacks.main(["job", "--samples=0", "--exporter.url", url]) == 0
    assert not queried
    assert "NCCL" in "".join(shown(capsys, service(in_json([1, 1, 1, 1])), standstill=False))


def test_a_service_without_an_answer_is_named_with_the_reason(capsys: Shown) -> None:
    def closes(connection: socket.socket, _over: threading.Event) -> None:
        connection.recv(100)

    for default in (True, False):
        assert "stallscope stacks: --nccl: not NCCL's RAS service" in shown(capsys, closes, default=default)[1]
    assert "--nccl: NCCL (RAS) returned malformed JSON" in shown(capsys, service("{"), default=True)[1]
    with exporter() as (url, _):
        assert stacks.main(["job", "--exporter.url", url, "--nccl", "localhost:1"]) == 0
        assert "--nccl: Connection refused; check that the job runs here" in capsys.readouterr().err
        assert stacks.main(["job", "--exporter.url", url, f"--nccl={'a' * 64}:1"]) == 0
        assert "--nccl: not a host name; check --nccl" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            stacks.main(["job", "--exporter.url", url, "--nccl=28028"])
        assert "expected on, off, HOST:PORT" in capsys.readouterr().err


def test_an_invalid_address_in_the_environment_is_named(capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "gpu7")
    with exporter() as (url, _):
        assert stacks.main(["job", "--samples=0", "--exporter.url", url, "--nccl=on"]) == 0
    assert "--nccl: NCCL_RAS_ADDR: expected HOST:PORT, :PORT or " in capsys.readouterr().err
