"""Ends requested from outside: the command, real exporters, and running training jobs on two nodes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from stallscope.tools.cli import stop
from tests.analysis.servers import answering
from tests.cli.test_trace import TRAINING, exporter, process, ranks_stepping, reported_steps
from tests.waiting import until

SAVING = """
import pathlib, signal, sys, time
import stallscope

run = stallscope.Run("job", rank=int(sys.argv[1]), world_size=3)

def save(*_):
    pathlib.Path(sys.argv[2], sys.argv[1]).write_text(str(run.steps_done))
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
with run:
    while True:
        time.sleep(0.01)
        run.step()
"""


def test_all_ranks_on_two_nodes_stop_before_the_same_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "saved"
    folders = [tmp_path / "node1", tmp_path / "node2"]
    for folder in (saved, *folders):
        folder.mkdir()
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(exporter(folder, "--report.allow-stop-requests")) for folder in folders]
        jobs = [
            stack.enter_context(
                process(
                    *("-c", SAVING, str(rank), str(saved)),
                    STALLSCOPE_ADDRESS=f"unix://{folder}/report.sock",
                    STALLSCOPE_ALLOW_STOP="1",
                )
            )
            for rank, folder in enumerate((folders[0], folders[0], folders[1]))
        ]
        until(lambda: [ranks_stepping(url) for url in urls] == [2, 1])
        assert stop.main(["job", "--exporter", urls[0], "--exporter", urls[1], "--json"]) == 0
        answers = json.loads(capsys.readouterr().out)
        assert [job.wait(200) for job in jobs] == [0, 0, 0]
    assert {path.name: int(path.read_text()) for path in saved.iterdir()} == dict.fromkeys(
        ("0", "1", "2"), answers[0]["first_step"]
    )


def test_a_job_that_does_not_allow_it_continues_and_missing_ranks_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with exporter(tmp_path, "--report.allow-stop-requests") as url:
        address = f"unix://{tmp_path}/report.sock"
        with process("-c", TRAINING, "0", STALLSCOPE_ADDRESS=address, STALLSCOPE_ALLOW_STOP="0") as job:
            until(lambda: ranks_stepping(url) == 1)
            assert stop.main(["job", "--first-step", "0", "--exporter", url]) == 0
            reported = capsys.readouterr()
            assert "rank 0 will stop before step 0" in reported.out
            assert "1 of 3 ranks are on these nodes" in reported.err
            seen = reported_steps(url)
            until(
                lambda: (now := reported_steps(url)) and now != seen
            )  # one more report, before which it would have looked
            assert job.poll() is None


def test_an_exporter_that_does_not_allow_it_says_how_it_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with exporter(tmp_path, "--report.allow-trace-requests") as url:
        assert stop.main(["job", "--exporter", url]) == 1
    assert "--report.allow-stop-requests" in capsys.readouterr().err


def test_a_run_that_hangs_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b'{"first_step": 7, "steps": 1, "ranks": [0, 3], "seconds": 2.0, "silent": 540.0}') as (url, _):
        assert stop.main(["job", "--exporter", url]) == 0
    assert "2 ranks will stop before step 7, if they make steps again: the last step was 540 s ago" in (
        capsys.readouterr().out
    )
