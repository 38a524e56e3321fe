"""Traces requested from outside: the command, a real exporter, and running training jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.tools.cli import _requests, trace
from tests.analysis.servers import DRIPS, answering, talking
from tests.free_ports import free_port
from tests.waiting import until

TRAINING = """
import sys, time
import stallscope
from stallscope.training.shim.transport import transport

transport.__kwdefaults__["timeout"] = 60.0  # a second may be short for a machine with much to do
with stallscope.Run("job", rank=int(sys.argv[1]), world_size=3) as run:
    print("started", flush=True)
    while True:
        with run.phase("forward"):
            time.sleep(0.01)
        run.step()
"""


@contextlib.contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STALLSCOPE_")}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env={**kept, **environment}, stdout=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.terminate()


@contextlib.contextmanager
def exporter(folder: Path, *flags: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    with process(
        *("-m", "stallscope", "exporter", f"--web.listen-address={url.removeprefix('http://')}"),
        *(f"--report.unix-socket={folder}/report.sock", "--report.udp-address=", "--collector.disable-defaults"),
        *("--log.level=error", *flags),
    ):
        until(lambda: page(url))
        yield url


def page(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
            return str(reply.read().decode())
    except OSError:
        return ""


def reported_steps(url: str) -> list[str]:
    """Return the lines with each rank's number of reported steps."""
    return [line for line in page(url).splitlines() if line.startswith("stallscope_training_step_seconds_count")]


def ranks_stepping(url: str) -> int:
    """Return the number of ranks that reported a step."""
    return sum(not line.endswith(" 0") for line in reported_steps(url))


def traced(folder: Path) -> dict[str, list[int]]:
    """Numbers of the traced steps of each rank."""
    found: dict[str, list[int]] = {}
    for path in folder.glob("job/*.trace.json"):
        rank, step = path.name.removesuffix(".trace.json").split("-step")
        found.setdefault(rank, []).append(int(step))
    return {rank: sorted(steps) for rank, steps in sorted(found.items())}


@pytest.mark.slow
def test_ranks_trace_the_same_steps_while_the_job_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    socket = f"unix://{tmp_path}/report.sock"
    with exporter(tmp_path, "--report.allow-trace-requests") as url, contextlib.ExitStack() as job:
        for rank, address in enumerate([socket, socket, url]):
            environment = {"STALLSCOPE_ADDRESS": address, "STALLSCOPE_TRACE_DIR": str(traces)}
            job.enter_context(process("-c", TRAINING, str(rank), **environment))
        until(lambda: ranks_stepping(url) == 3)
        assert trace.main(["job", "--steps", "3", "--exporter", url]) == 0
        assert "3 ranks will trace steps" in capsys.readouterr().out
        # The first of these steps is 12 s away: reports over HTTP are 5 s apart.
        until(
            lambda: [len(steps) for steps in traced(traces).values()] == [3, 3, 3],
            lambda: f"{traced(traces)}, not three of each rank",
            seconds=200,
        )
        steps = traced(traces)
        assert steps["rank0"] == steps["rank1"] == steps["rank2"]
        assert steps["rank0"][2] == steps["rank0"][0] + 2
        trace.main(["job", "--rank", "1", "--exporter", url])
        until(lambda: len(traced(traces)["rank1"]) == 4)
        assert len(traced(traces)["rank0"]) == 3
    document = json.loads(next(traces.glob("job/rank0-*")).read_text())
    assert any(event.get("name") == "forward" for event in document["traceEvents"])


def test_a_job_that_does_not_allow_it_is_left_alone(tmp_path: Path) -> None:
    with exporter(tmp_path, "--report.allow-trace-requests") as url:
        address = f"unix://{tmp_path}/report.sock"
        with process("-c", TRAINING, "0", STALLSCOPE_ADDRESS=address, HOME=str(tmp_path)):
            until(lambda: ranks_stepping(url) == 1)
            assert trace.main(["job", "--first-step", "0", "--steps", "100", "--exporter", url]) == 0
            seen = reported_steps(url)
            until(
                lambda: (now := reported_steps(url)) and now != seen
            )  # one more report, before which it would have looked
    assert not list(tmp_path.rglob("*.trace.json"))


def test_an_exporter_that_does_not_allow_it_says_how_it_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with exporter(tmp_path) as url:
        assert trace.main(["job", "--exporter", url]) == 1
    assert "--report.allow-trace-requests" in capsys.readouterr().err


def test_an_unknown_run_is_refused_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exporter(tmp_path, "--report.allow-trace-requests") as url:
        assert trace.main(["bert", "--exporter", url]) == 1
    assert "no run 'bert' is alive here; live runs: none" in capsys.readouterr().err


def test_json_has_the_answer_of_each_exporter(capsys: pytest.CaptureFixture[str]) -> None:
    absent = f"http://127.0.0.1:{free_port()}"
    with answering(200, b'{"first_step": 7, "steps": 1, "ranks": [0, 3], "seconds": 2.0}') as (url, seen):
        assert trace.main(["job", "--json", "--exporter", url, "--exporter", absent]) == 1
    taken, refused = json.loads(capsys.readouterr().out)
    assert taken == {"exporter": url, "first_step": 7, "steps": 1, "ranks": [0, 3], "seconds": 2.0}
    assert (refused["exporter"], "can't be reached" in refused["problem"]) == (absent, True)
    assert len(seen) == 1


@pytest.mark.parametrize("drip", DRIPS)
def test_an_exporter_that_responds_byte_by_byte_times_out(drip: str) -> None:
    with talking(DRIPS[drip]) as url, pytest.raises(_requests.Refused, match=r"no answer within 0\.2 s"):
        _requests.post(url, "/api/v1/trace", {"run": "job"}, None, "trace", timeout=0.2)


def test_without_an_exporter_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main(["job", "--exporter", f"127.0.0.1:{free_port()}"]) == 1
    shown = capsys.readouterr().err
    assert "it can't be reached: Connection refused; start it with `stallscope exporter`" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN"),
        (["job", "--steps", "0"], "from 1 to 100"),
        (["job", "--steps", "many"], "from 1 to 100"),
        (["job", "--rank", "0-"], "expected ranks such as 0, 0-3 or 0,8,16-23"),
        (["job", "--rank", "3-1"], "expected a range"),
        (["job", "--rank", "0-1000000"], "expected a range"),
        (["job", "--rank", "a"], "expected ranks"),
        (["job", "--first-step", "-1"], "first-step"),
        (["job", "--exporter", "ftp://x"], "is not the address of an exporter; use one such as http://localhost:19400"),
        (["job", "more"], "unexpected argument more"),
    ],
)
def test_a_wrong_command_line_is_one_line_of_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        trace.main(arguments)
    shown = capsys.readouterr().err
    assert (ended.value.code, shown.count("\n")) == (2, 1)
    assert message in shown


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0]), ("0-3", [0, 1, 2, 3]), ("0, 8,16-18", [0, 8, 16, 17, 18]), ("2,1-2", [1, 2])]
)
def test_ranks_are_numbers_and_ranges(text: str, ranks: list[int]) -> None:
    assert _requests.rank_numbers(text) == ranks
