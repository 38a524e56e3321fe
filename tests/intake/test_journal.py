"""The state file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.node.intake.held import Held
from stallscope.node.intake.journal import Journal
from stallscope.node.intake.processes import Process
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import parse
from tests.intake.reports import make_report

SetProcess = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "runs.jsonl"


@pytest.fixture
def journal(path: Path, clock: ScriptedClock, root: Path) -> Journal:
    return Journal(path, clock=clock, root=root)


@pytest.fixture
def holdings(clock: ScriptedClock) -> list[Held]:
    """A running, a finished and a lost rank, the second with a name that JSON writes at length."""
    return [
        Held(
            parse(make_report(rank=0)),
            clock.time(),
            clock.monotonic(),
            2,
            Process(7, 5000),
            reported_run="job",
            former=("a", "b"),
        ),
        Held(parse(make_report(rank=1, run="größe", state="finished")), clock.time(), clock.monotonic(), ended=0.0),
        Held(parse(make_report(rank=2)), clock.time(), clock.monotonic(), lost=True, ended=0.0),
    ]


def test_what_is_saved_is_loaded(journal: Journal, holdings: list[Held]) -> None:
    assert journal.save(holdings)
    assert list(journal.load()) == holdings


def test_without_a_file_nothing_is_loaded(journal: Journal, path: Path) -> None:
    assert list(journal.load()) == []
    assert not path.exists()


def test_time_goes_on_while_the_exporter_is_away(
    path: Path, root: Path, journal: Journal, holdings: list[Held]
) -> None:
    journal.save(holdings)
    later = ScriptedClock(start=1_700_000_000.0 + 500)
    later.advance(10)  # another life's monotonic clock
    running, finished, lost = Journal(path, clock=later, root=root).load()
    assert (finished.ended, lost.ended) == (-500.0, -500.0)
    assert running.arrived == 1_700_000_000.0
    assert running.last_seen == -500.0  # an exporter that restarts every few minutes would keep a silent rank for ever


def test_after_a_reboot_every_rank_that_had_not_ended_is_lost(
    path: Path, root: Path, journal: Journal, holdings: list[Held], clock: ScriptedClock
) -> None:
    journal.save(holdings)
    (root / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    running, finished, lost = Journal(path, clock=clock, root=root).load()
    assert (running.state, finished.state, lost.state) == ("lost", "finished", "lost")
    assert running.ended == clock.monotonic()


def test_the_file_is_whole_private_and_alone(journal: Journal, path: Path, holdings: list[Held]) -> None:
    path.parent.mkdir()
    path.with_name("runs.jsonl.tmp").write_text("what a killed exporter left" * 1000)
    journal.save(holdings)
    assert list(journal.load()) == holdings
    journal.save(holdings[:1])
    assert list(journal.load()) == holdings[:1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_links_that_others_have_left_are_not_followed(
    journal: Journal, path: Path, holdings: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.symlink_to(victim)
    path.with_name("runs.jsonl.tmp").symlink_to(victim)
    assert list(journal.load()) == []
    assert "can't be read" in caplog.text
    assert journal.save(holdings)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert list(journal.load()) == holdings


def test_a_pipe_in_its_place_does_not_block(
    journal: Journal, path: Path, holdings: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    os.mkfifo(path.with_name("runs.jsonl.tmp"))
    assert list(journal.load()) == []
    assert "it is not a regular file" in caplog.text
    assert journal.save(holdings)
    assert list(journal.load()) == holdings


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_that_another_user_has_put_there_is_not_taken(
    journal: Journal, path: Path, holdings: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    journal.save(holdings)
    os.chown(path, 54321, -1)
    assert list(journal.load()) == []
    assert "can't be read: it belongs to user 54321, expected root or user 0; starting without it" in caplog.text
    assert journal.save(holdings)
    assert list(journal.load()) == holdings


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_taken(
    journal: Journal, path: Path, holdings: list[Held], caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    journal.save(holdings)
    path.chmod(mode)
    assert list(journal.load()) == []
    assert "other users may write it" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_nothing_is_written_into_another_users_folder(
    journal: Journal, path: Path, holdings: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    os.chown(path.parent, 54321, -1)
    assert not journal.save(holdings)
    assert not list(path.parent.iterdir())
    assert "can't be written: its folder belongs to another user: it belongs to user 54321" in caplog.text


def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, clock: ScriptedClock, holdings: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file/runs.jsonl", clock=clock)
    assert not journal.save(holdings)
    assert not journal.save(holdings)
    (record,) = caplog.records
    assert f"{tmp_path / 'file/runs.jsonl'} can't be written" in record.getMessage()


def test_a_file_that_cannot_be_read_is_no_end(path: Path, journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir(parents=True)
    assert list(journal.load()) == []
    assert "can't be read" in caplog.text


def test_ranks_before_a_broken_line_are_kept_and_the_file_moved_aside(
    journal: Journal, path: Path, holdings: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    journal.save(holdings)
    torn = path.read_bytes()[:-40]
    path.write_bytes(torn)
    assert list(journal.load()) == holdings[:2]
    assert path.with_name("runs.jsonl.broken").read_bytes() == torn
    assert not path.exists()
    assert "is corrupt (after 2 ranks" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"arrived": "noon"},
        {"arrived": float("nan")},
        {"arrived": 1e999},
        {"restarts": -1},
        {"restarts": None},
        {"process": [1]},
        {"process": 5},
        {"ended": []},
        {"report": None},
        {"report": {"version": 2}},
    ],
    ids=str,
)
def test_a_wrong_entry_is_not_taken(
    journal: Journal, path: Path, holdings: list[Held], change: dict[str, object]
) -> None:
    journal.save(holdings[:1])
    head, entry = path.read_text().splitlines()
    path.write_text(f"{head}\n{json.dumps({**json.loads(entry), **change})}\n")
    assert list(journal.load()) == []
    assert path.with_name("runs.jsonl.broken").exists()


@pytest.mark.parametrize("head", ["", "[]", "null", '{"version": 2, "boot_id": ""}', '{"boot_id": ""}', "\x00\xff"])
def test_a_file_with_another_head_is_moved_aside(journal: Journal, path: Path, head: str) -> None:
    path.parent.mkdir()
    path.write_text(f"{head}\n")
    assert list(journal.load()) == []
    assert path.with_name("runs.jsonl.broken").exists()


@given(data=st.data())
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
def test_any_damage_leaves_a_start_possible(
    journal: Journal, path: Path, holdings: list[Held], data: st.DataObject
) -> None:
    journal.save(holdings)
    text = path.read_bytes()
    begin = data.draw(st.integers(0, len(text)))
    path.write_bytes(text[:begin] + data.draw(st.binary(max_size=30)) + text[begin + data.draw(st.integers(0, 30)) :])
    registry = RunRegistry()
    registry.restore(journal.load())
    assert len(registry.held) <= 4
    registry.collect()
