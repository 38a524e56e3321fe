"""The groups of a hung job of real processes, and requests to a running one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from stallscope.common.installation import install_command
from stallscope.tools.cli import _py_spy, _requests, stacks
from tests.analysis.servers import answering
from tests.cli.test_nccl_ras import in_json, service, serving
from tests.cli.test_trace import exporter, page, process
from tests.free_ports import free_port
from tests.waiting import until

HANGING = """
import sys, time
import stallscope
from stallscope.training.shim import stacks

stacks.OTHER_SECONDS = stacks.STANDSTILL_SECONDS = 0.5

def all_reduce():
    time.sleep(1000)

def read_sample():
    time.sleep(1000)

run = stallscope.Run("job", rank=int(sys.argv[1]), world_size=8)
run.step()
if run.rank == 3:
    read_sample()
all_reduce()
"""
RUNNING = (
    HANGING.replace(
        "= 0.5", "= 100\nstacks.EVERY = 0.2; worker_samples.SECONDS = 1.0; requested_stacks.KEPT_SECONDS = 3.0"
    )
    .replace("import stacks", "import requested_stacks, stacks, worker_samples")
    .replace("time.sleep(1000)", "time.sleep(0.01)")
    .replace("if run.rank", "while True: run.step(); read_sample()\nif run.rank")
)


@contextlib.contextmanager
def job(folder: Path, program: str, ranks: int) -> Any:
    file = folder / "train.py"
    file.write_text(program)
    with contextlib.ExitStack() as processes:
        for rank in range(ranks):
            address = f"unix://{folder}/report.sock"
            processes.enter_context(process(str(file), str(rank), STALLSCOPE_ADDRESS=address))
        yield file


def lines_of(text: str, file: Path) -> dict[str, int]:
    return {name: file.read_text()[: file.read_text().index(f"def {name}")].count("\n") + 2 for name in text.split()}


def test_the_odd_rank_of_a_hung_job_is_named_on_the_page_and_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with exporter(tmp_path) as url, job(tmp_path, HANGING, 8) as file:
        line = lines_of("all_reduce read_sample", file)
        info = "stallscope_training_stack_info{"
        places = {
            f'{info}run="job",rank="{rank}",location="{tmp_path.name}/train.py:{line[name]}",function="{name}"'
            for rank, name in enumerate(("all_reduce",) * 3 + ("read_sample",) + ("all_reduce",) * 4)
        }

        # An earlier stack of a rank is of a process that stalled before it came there.
        def seen() -> set[str]:
            found = (re.match(r'.*,function="\w*"', each) for each in page(url).splitlines() if each.startswith(info))
            return {match[0] for match in found if match}

        until(lambda: seen() == places, lambda: f"the stacks are {seen()}, expected {places}")
        assert stacks.main(["job", "--json", "--nccl=off", "--exporter.url", url]) == 0
        document = json.loads(capsys.readouterr().out)
        pids = {rank["rank"]: rank["pid"] for rank in document["exporters"][0]["ranks"]}
        with serving(service(in_json([41 if rank == 3 else 42 for rank in range(8)], pids))) as address:
            assert stacks.main(["job", "--exporter.url", url, f"--nccl={address}"]) == 0
        shown, _, evidence = capsys.readouterr().out.rpartition("\n\n")
    assert evidence.endswith(" 8 ranks: rank 3 launched 41 AllReduce operations, the others 42\n")
    assert shown.splitlines()[-1] == (
        f"7 ranks wait in all_reduce at {tmp_path.name}/train.py:{line['all_reduce']}; "
        f"rank 3 is in read_sample at {tmp_path.name}/train.py:{line['read_sample']}"
    )
    assert shown.startswith("ranks 0-2, 4-7:\n")
    assert "rank 3 (differs from the others):\n" in shown
    assert (document["odd_ranks"], document["summary"]) == ([3], shown.splitlines()[-1])
    assert [group["waiting"] for group in document["groups"]] == [True, False]


def test_running_ranks_take_samples_and_find_lines_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with exporter(tmp_path) as url, job(tmp_path, RUNNING, 2) as file:
        until(lambda: page(url).count("stallscope_training_rank_info{") == 2)
        assert stacks.main(["job", "--samples=2", "--interval=0.1", "--json", "--exporter.url", url]) == 0
        said = capsys.readouterr()
        document = json.loads(said.out)
        assert not said.err
        assert stacks.main(["job", "--lines", "--exporter.url", url]) == 0
        shown = capsys.readouterr().out.splitlines()
    assert [len(rank["samples"]) for rank in document["exporters"][0]["ranks"]] == [2, 2]
    assert document["groups"]
    assert shown[0] == "other:"
    assert shown[1].startswith("  ranks 0-1, ")
    assert shown[2].endswith(f"%  train.py:{lines_of('read_sample', file)['read_sample']} read_sample")


RANK = {"rank": 0, "reported": 1.0, "taken": 9.0, "standstill": False, "stacks": [], "samples": [], "reachable": True}
LINES = {"data_wait": {"seconds": 5.0, "lines": [["a\x1b.py:1", "f", 0.5, 4]]}, "other": {"seconds": 5.0, "lines": []}}


def test_lines_and_the_reason_of_each_rank_without_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [
        {**RANK, "lines": LINES},
        {**RANK, "rank": 1, "reachable": False, "lines": None},
        {**RANK, "rank": 2, "standstill": True, "lines": None},
        {**RANK, "rank": 3, "lines": LINES, "taken": 1.0},
        {**RANK, "rank": 4, "lines": {**LINES, "other": {"seconds": 0.0, "lines": []}}},
    ]
    answer: dict[str, Any] = {"time": 5.0, "seconds": -5.0, "problem": "", "ranks": ranks}  # no time is left
    monkeypatch.setattr(_requests, "post", lambda *_: answer)
    assert stacks.main(["job", "--lines"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "data_wait:",
        "  ranks 0, 4, 50 % to 100 % of the time, rank 4 most:",
        "    50 %  a?.py:1 f, in 4 workers",
        "rank 1: no lines of code; the rank has STALLSCOPE_STACKS=0, or does not report through the UNIX socket",
        "rank 2: at a standstill; omit --lines to see the stack",
        "rank 3: no lines of code in time; the rank has sent no report since the request, or its shim is too old",
    ]
    assert stacks.main(["job", "--lines", "--json"]) == 0
    assert [group["ranks"] for group in json.loads(capsys.readouterr().out)["phases"][0]["groups"]] == [[0, 4]]
    assert stacks.main(["job", "--samples=0"]) == 1
    assert "ranks 0, 3-4: no stack yet; request some with --samples" in capsys.readouterr().out
    del ranks[0]["lines"]
    assert stacks.main(["job", "--lines"]) == 1
    assert "this exporter can't request lines of code; update it" in capsys.readouterr().err


def test_without_a_flag_the_exporter_of_this_machine_is_queried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr("stallscope.tools.cli.stacks.default_exporter", lambda: url)
    assert stacks.main(["job"]) == 1
    assert capsys.readouterr().err.startswith(f"stallscope stacks: {url}: ")


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (
            403,
            b'{"error": "not_owner", "message": "run \'job\': user 5 is not the only user"}',
            "user 5 is not the only",
        ),
        (200, b"<html>", "not a Stallscope exporter"),
        (200, b'{"time": 1, "ranks": [{"rank": "x"}]}', "not a Stallscope exporter"),
        (200, b'{"time": 1, "ranks": 5}', "not a Stallscope exporter"),
        (404, b"nothing here", "HTTP status 404"),
    ],
)
def test_a_refusal_and_another_server_are_reported(
    status: int, answer: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, answer) as (url, _seen):
        assert stacks.main(["job", "--exporter.url", url]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--samples=21"],
        ["--samples=x"],
        ["--interval=0"],
        ["--interval=nan"],
        ["--pid=1"],
        ["--pid=x"],
        [],
        ["--lines", "--samples=1"],
    ],
)
def test_a_wrong_command_line_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        stacks.main([*flags, *(["job"] if flags else [])])
    assert ended.value.code == 2
    assert "stallscope stacks: " in capsys.readouterr().err


DUMP = [
    {
        "pid": 7,
        "thread_id": 1,
        "thread_name": "MainThread",
        "os_thread_id": 7,
        "active": False,
        "owns_gil": True,
        "frames": [{"name": "read", "filename": "/home/me/job/\x1b[31m.py", "line": 12, "locals": None}],
    },
    {"pid": 7, "thread_id": 2, "thread_name": None, "os_thread_id": 9, "active": True, "owns_gil": False, "frames": []},
]


def py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, output: str, errors: str = "", status: int = 0) -> None:
    """Put a program in place of py-spy."""
    program = folder / "py-spy"
    (folder / "output").write_text(output)
    (folder / "errors").write_text(errors)
    program.write_text(f"#!/bin/sh\ncat {folder}/output\ncat {folder}/errors >&2\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


def test_a_process_without_the_shim_is_read_by_py_spy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    py_spy(tmp_path, monkeypatch, json.dumps(DUMP))
    assert stacks.main(["--pid", "7"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("MainThread (waits, has the GIL):\n  read at /home/me/job/")
    assert shown.endswith(".py:12\nthread 9 (runs):\n")
    assert "\x1b" not in shown
    assert stacks.main(["--pid", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"][0]["stack"][0]["line"] == 12


@pytest.mark.parametrize(
    ("output", "errors", "status", "message"),
    [
        (
            "",
            "Permission Denied: Try running again",
            1,
            "can't be read; run the command with the capability SYS_PTRACE",
        ),
        ("", "Error: Failed to find python version from target process\n\nStack", 1, "is a Python process"),
        ("", "", 1, "py-spy failed; check that"),
        ("not JSON", "", 0, "unknown format; update it"),
        ('[{"frames": 1}]', "", 0, "unknown format; update it"),
    ],
)
def test_what_py_spy_lacks_is_reported(
    output: str,
    errors: str,
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    py_spy(tmp_path, monkeypatch, output, errors, status)
    assert stacks.main(["--pid", str(os.getpid())]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("user", "scope", "message"),
    [
        (12345, "0", "belongs to user {owner}; run the command as this user or as root"),
        (None, "1", "kernel.yama.ptrace_scope is 1"),
        (None, "0", "run the command with the capability SYS_PTRACE"),
    ],
)
def test_the_missing_permission_is_named(
    user: int | None, scope: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy(tmp_path, monkeypatch, "", "Permission Denied", 1)
    (tmp_path / "proc/7").mkdir(parents=True)
    if os.getuid() == 0:
        os.chown(tmp_path / "proc/7", 4321, -1)
    owner = (tmp_path / "proc/7").stat().st_uid
    (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    monkeypatch.setattr(os, "geteuid", lambda: owner if user is None else user)
    with pytest.raises(_py_spy.Unreadable, match=message.format(owner=owner)):
        _py_spy.threads_of(7, tmp_path)


def test_without_py_spy_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stacks.main(["--pid", "7"]) == 1
    assert install_command("stacks") in capsys.readouterr().err
