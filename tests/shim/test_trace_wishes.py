from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stallscope
from stallscope.protocol.trace_request import TraceRequest, encode, file_name
from stallscope.sampling.clock import ScriptedClock
from stallscope.shim.request_file import beside_socket, mistrust
from stallscope.shim.tracing.trace_wishes import Wishes
from tests.shim.conftest import Desk


class AnsweringDesk(Desk):
    """Answers reports, as an exporter does over HTTP."""

    hear: Callable[[bytes], None] | None = None


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The socket's folder."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{folder}/report.sock")
    return folder


@pytest.fixture
def run(room: Path, clock: ScriptedClock) -> stallscope.Run:
    return stallscope.Run("job", clock=clock, sender=AnsweringDesk(), rank=3)


def wish(**changes: Any) -> bytes:
    return encode(TraceRequest("job", 5, 2, (), time.time() + 3600)._replace(**changes))


def put(room: Path, data: bytes, mode: int = 0o644) -> Path:
    """As the exporter does: a new file each time."""
    path = room / file_name("job")
    draft = room / "draft"
    draft.write_bytes(data)
    draft.chmod(mode)
    return draft.replace(path)


def test_a_wish_beside_the_socket_is_found_once(room: Path, run: stallscope.Run) -> None:
    wishes = Wishes(run)
    assert wishes.look() is None
    put(room, wish())
    assert wishes.look() == range(5, 7)
    assert wishes.look() is None
    put(room, wish(first_step=9))
    assert wishes.look() == range(9, 11)


def test_a_wish_in_the_answer_to_reports_is_heard_once(run: stallscope.Run) -> None:
    wishes = Wishes(run)
    told = wish()
    assert wishes.hear(told) == range(5, 7)
    assert wishes.hear(told) is None


def test_a_wish_in_the_answer_to_a_report_is_acted_on_at_once(
    run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"), on_request=True)
    assert isinstance(run.sender, AnsweringDesk)
    assert run.sender.hear is not None
    run.sender.hear(wish(first_step=1, steps=1))
    train(run, clock, 3)
    assert [path.name for path in (tmp_path / "traces/job").iterdir()] == ["rank3-step1.trace.json"]


@pytest.mark.parametrize(
    "changes", [{"run": "other"}, {"ranks": (0, 1)}, {"expires": 1_000_000.0}], ids=["run", "rank", "expired"]
)
def test_a_wish_for_others_is_left_alone(changes: dict[str, Any], room: Path, run: stallscope.Run) -> None:
    put(room, wish(**changes))
    assert Wishes(run).look() is None


def test_a_wish_for_some_ranks_is_for_each_of_them(room: Path, run: stallscope.Run) -> None:
    put(room, wish(ranks=(1, 3)))
    assert Wishes(run).look() == range(5, 7)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 8000, b" " * 9000])
@pytest.mark.usefixtures("nothing_collected")
def test_what_is_no_wish_is_left_alone(data: bytes, room: Path, run: stallscope.Run) -> None:
    put(room, data)
    assert Wishes(run).look() is None


def test_a_file_that_others_may_write_is_not_trusted(
    room: Path, run: stallscope.Run, caplog: pytest.LogCaptureFixture
) -> None:
    put(room, wish(), mode=0o666)
    assert Wishes(run).look() is None
    assert "others than its owner may write it" in caplog.text


def test_a_folder_that_everybody_may_write_is_not_trusted(room: Path, run: stallscope.Run) -> None:
    put(room, wish())
    room.chmod(0o777)
    assert Wishes(run).look() is None


def test_no_link_is_followed(room: Path, run: stallscope.Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(wish())
    (room / file_name("job")).symlink_to(tmp_path / "elsewhere")
    assert Wishes(run).look() is None


def test_a_pipe_in_the_file_s_place_delays_nobody(room: Path, run: stallscope.Run) -> None:
    os.mkfifo(room / file_name("job"))
    assert Wishes(run).look() is None


def status(path: Path, uid: int, mode: int) -> os.stat_result:
    """A file's status with another owner and mode, which only root could give it."""
    return os.stat_result((path.stat().st_mode & ~0o7777 | mode, *path.stat()[1:4], uid, *path.stat()[5:]))


@pytest.mark.parametrize(
    ("file_owner", "folder_owner", "folder_mode", "trusted"),
    [
        (0, 0, 0o755, True),  # the exporter runs as root
        (os.geteuid(), 0, 0o755, True),
        (os.geteuid(), 12345, 0o1777, True),  # this user's own file in /tmp
        (12345, 12345, 0o755, True),  # the exporter runs as a user of its own, whose folder this is
        (12345, 54321, 0o755, False),
        (12345, 54321, 0o1777, False),  # a file of any user in /tmp
    ],
)
def test_whom_a_wish_is_taken_from(
    file_owner: int, folder_owner: int, folder_mode: int, trusted: bool, tmp_path: Path
) -> None:
    file = tmp_path / "request"
    file.touch()
    assert (mistrust(status(file, file_owner, 0o644), status(tmp_path, folder_owner, folder_mode)) == "") is trusted


@pytest.mark.parametrize(
    ("address", "folder"),
    [("", "/run/stallscope"), ("unix:///a/b.sock", "/a"), ("udp://localhost", ""), ("http://localhost:19400", "")],
)
def test_wishes_stand_beside_the_socket_that_takes_reports(address: str, folder: str) -> None:
    assert beside_socket(address, file_name("job")) == (f"{folder}/{file_name('job')}" if folder else "")


def train(run: stallscope.Run, clock: ScriptedClock, steps: int) -> None:
    for _ in range(steps):
        clock.advance(0.3)
        run.step()


def test_wished_steps_are_traced_and_no_others(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"), on_request=True)
    train(run, clock, 3)
    assert run.timeline.listener is None  # no check at each step until there is a trace request
    put(room, wish(first_step=10))
    train(run, clock, 20)
    assert {path.name for path in (tmp_path / "traces/job").iterdir()} == {
        "rank3-step10.trace.json",
        "rank3-step11.trace.json",
    }
    assert run.timeline.listener is None


def test_wishes_and_selected_steps_go_together(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(steps=[2, 20], directory=str(tmp_path / "traces"), on_request=True)
    put(room, wish(first_step=10))
    train(run, clock, 30)
    assert len(list((tmp_path / "traces/job").iterdir())) == 4


def test_a_wish_that_comes_too_late_traces_the_steps_that_are_left(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"), on_request=True)
    train(run, clock, 7)
    put(room, wish(first_step=0, steps=12))
    train(run, clock, 10)
    numbers = [int(path.name[10:-11]) for path in (tmp_path / "traces/job").iterdir()]
    assert max(numbers) == 11
    assert min(numbers) >= 7


def test_nobody_is_obeyed_unless_the_training_allows_it(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"))
    put(room, wish(first_step=10))
    train(run, clock, 20)
    assert not (tmp_path / "traces").exists()


def test_the_environment_allows_it_without_a_line_of_code(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_TRACE_DIR", str(tmp_path / "traces"))
    put(room, wish(first_step=2, steps=1))
    with stallscope.Run("job", rank=3, interval=0.0) as run:
        for _ in range(4):
            run.step()
    assert (tmp_path / "traces/job/rank3-step2.trace.json").exists()
