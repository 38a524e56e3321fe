"""Shares of a run's time, from the stored reports of its ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stallscope.tools.summary.measured import RankTime, RunTime, read_runs, runs_of
from stallscope.training.protocol.report import from_document
from stallscope.training.shim.stored_reports import NEWEST, WARMED_UP
from tests.summary.reports import PHASES, document, rank, report


def store(folder: Path, session: str, newest: dict[str, Any], warmed_up: dict[str, Any] | None = None) -> None:
    (folder / f"{session}{NEWEST}").write_text(json.dumps({**newest, "session": session}) + "\nend of a longer report")
    if warmed_up is not None:
        (folder / f"{session}{WARMED_UP}").write_text(json.dumps(warmed_up) + "\n")


def test_the_first_steps_initialization_and_pauses_are_left_out(tmp_path: Path) -> None:
    first = {"initialization": 5.0, "data_wait": 20.0, "forward": 10.0, "paused": 50.0}
    newest = {**PHASES, "paused": 90.0}
    store(tmp_path, "a", document(newest, steps=100), document(first, steps=10))
    (run,) = read_runs(tmp_path)
    assert run.shares == {"backward": 40 / 70, "data_wait": 10 / 70, "forward": 10 / 70, "other": 10 / 70}
    assert (run.steps, run.all_steps, run.is_short, run.initialization) == (90, 100, False, 5.0)
    assert run.lost == 10 / 70


@pytest.mark.parametrize("first", [None, 10])
def test_a_run_with_few_steps_is_short_and_includes_the_first_ones(first: int | None, tmp_path: Path) -> None:
    store(tmp_path, "a", document(steps=20), None if first is None else document(steps=first))
    (run,) = read_runs(tmp_path)
    assert (run.is_short, run.steps, run.shares["data_wait"]) == (True, 20, 0.3)


def test_the_newest_session_of_a_rank_counts_and_a_broken_file_does_not(tmp_path: Path) -> None:
    store(tmp_path, "a", document(start=1_000.0, sent=2_000.0))
    store(tmp_path, "b", document({"forward": 1.0}, start=3_000.0, sent=3_001.0))
    store(tmp_path, "c", document(rank=1))
    (tmp_path / f"d{NEWEST}").write_text('{"version": 1, "run')
    (run,) = read_runs(tmp_path)
    assert [each.report.session for each in run.ranks] == ["b", "c"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("finished", "finished"), "finished"),
        (("finished", "terminated"), "terminated"),
        (("failed", "terminated"), "failed"),
        (("finished", "running"), "lost"),
    ],
)
def test_a_run_has_the_worst_state_of_its_ranks(states: tuple[str, str], expected: str) -> None:
    (run,) = runs_of(rank(rank=number, state=state) for number, state in enumerate(states))
    assert run.state == expected


def test_a_rank_whose_process_lives_is_still_running() -> None:
    assert rank(state="running", pid=os.getpid()).state == "running"
    assert rank(state="starting").state == "lost"


def test_a_wait_that_the_gpu_computed_through_is_not_lost() -> None:
    made = document()
    made["phases"]["data_wait"]["gpu_seconds"] = 4.0
    run = RunTime("job", (RankTime(from_document(made), report({}, steps=0)),))
    assert run.shares["data_wait"] == 0.3
    assert run.lost == run.idle_while_waiting == 0.04


def test_throughput_is_the_sum_of_the_ranks_and_unknown_if_one_does_not_report_it() -> None:
    both = [rank(rank=number, counters={"samples": 1000.0}) for number in range(2)]
    assert RunTime("job", tuple(both)).samples_per_second == 20.0
    assert RunTime("job", (both[0], rank(rank=1))).samples_per_second is None


@pytest.mark.parametrize("backward", [{}, {"backward": 30.0}])
def test_work_without_a_forward_pass_of_its_own_is_in_the_remainder(backward: dict[str, float]) -> None:
    (run,) = runs_of([rank({"data_wait": 10.0, "other": 90.0 - sum(backward.values()), **backward})])
    assert not run.separates_work
    assert run.lost == 0.1
