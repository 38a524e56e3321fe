from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stallscope
from stallscope.common.file_trust import request_problem
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.request_name import request_name
from stallscope.training.protocol.step_request import StepRequest, encode
from stallscope.training.shim import stopping
from stallscope.training.shim.request_file import beside_socket
from stallscope.training.shim.step_requests import requests_of
from stallscope.training.shim.stopping import Stopper
from tests.shim.conftest import Desk


class AnsweringDesk(Desk):
    """Answers reports, as an exporter does over HTTP."""

    on_answer: Callable[[bytes], None] | None = None


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The socket's folder."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{folder}/report.sock")
    return folder


@pytest.fixture
def run(room: Path, clock: ScriptedClock) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=AnsweringDesk(), rank=3)


def trace_request(**changes: Any) -> bytes:
    now = time.time()
    return encode(StepRequest("trace", "job", 5, 2, (), now, now + 3600)._replace(**changes))


def put(room: Path, data: bytes, mode: int = 0o644, action: str = "trace") -> Path:
    """As the exporter does: a new file each time."""
    path = room / request_name(action, "job")
    draft = room / "draft"
    draft.write_bytes(data)
    draft.chmod(mode)
    return draft.replace(path)


class Taken:
    """The requests that a run has taken."""

    def __init__(self, run: stallscope.Run) -> None:
        self.requests = requests_of(run)
        self._steps: list[range] = []
        self.requests.handle("trace", lambda it: self._steps.append(range(it.first_step, it.first_step + it.steps)))

    def look(self) -> list[range]:
        """Look for files, and return the steps of new requests."""
        self.requests.before_report(0.0, False)
        return self.take()

    def take(self) -> list[range]:
        """Return the steps of new requests."""
        steps, self._steps[:] = list(self._steps), []
        return steps


def test_a_request_beside_the_socket_is_found_once(room: Path, run: stallscope.Run) -> None:
    taken = Taken(run)
    assert taken.look() == []
    put(room, trace_request())
    assert taken.look() == [range(5, 7)]
    assert taken.look() == []
    put(room, trace_request(first_step=9))
    assert taken.look() == [range(9, 11)]


def test_each_request_in_the_answers_to_reports_is_handled_once(run: stallscope.Run) -> None:
    taken = Taken(run)
    reported = trace_request()
    taken.requests.take_answer(reported)
    taken.requests.take_answer(reported)
    taken.requests.take_answer(reported + b"\n" + trace_request(first_step=9))
    assert taken.take() == [range(5, 7), range(9, 11)]


def test_a_handler_that_fails_does_no_harm(room: Path, run: stallscope.Run) -> None:
    requests_of(run).handle("trace", lambda _: 1 / 0)
    put(room, trace_request())
    requests_of(run).before_report(0.0, False)


def test_a_request_for_what_is_not_allowed_is_left_alone(room: Path, run: stallscope.Run) -> None:
    taken = Taken(run)
    put(room, trace_request(action="stop"), action="stop")
    taken.requests.take_answer(trace_request(action="stop"))
    assert taken.look() == []


def test_a_request_in_the_answer_to_a_report_is_acted_on_at_once(
    run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"), on_request=True)
    assert isinstance(run.sender, AnsweringDesk)
    assert run.sender.on_answer is not None
    run.sender.on_answer(trace_request(first_step=1, steps=1))
    train(run, clock, 3)
    assert [path.name for path in (tmp_path / "traces/job").iterdir()] == ["rank3-step1.trace.json"]


@pytest.mark.parametrize(
    "changes", [{"run": "other"}, {"ranks": (0, 1)}, {"expires": 1_000_000.0}], ids=["run", "rank", "expired"]
)
def test_a_request_for_others_is_left_alone(changes: dict[str, Any], room: Path, run: stallscope.Run) -> None:
    put(room, trace_request(**changes))
    assert Taken(run).look() == []


def test_a_request_for_some_ranks_is_for_each_of_them(room: Path, run: stallscope.Run) -> None:
    put(room, trace_request(ranks=(1, 3)))
    assert Taken(run).look() == [range(5, 7)]


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 8000, b" " * 9000])
@pytest.mark.usefixtures("nothing_collected")
def test_what_is_no_request_is_left_alone(data: bytes, room: Path, run: stallscope.Run) -> None:
    put(room, data)
    assert Taken(run).look() == []


def test_a_file_that_others_may_write_is_not_trusted(
    room: Path, run: stallscope.Run, caplog: pytest.LogCaptureFixture
) -> None:
    put(room, trace_request(), mode=0o666)
    assert Taken(run).look() == []
    assert "others than its owner may write it" in caplog.text


def test_a_folder_that_everybody_may_write_is_not_trusted(room: Path, run: stallscope.Run) -> None:
    put(room, trace_request())
    room.chmod(0o777)
    assert Taken(run).look() == []


def test_no_link_is_followed(room: Path, run: stallscope.Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(trace_request())
    (room / request_name("trace", "job")).symlink_to(tmp_path / "elsewhere")
    assert Taken(run).look() == []


def test_a_pipe_in_the_files_place_does_not_block(room: Path, run: stallscope.Run) -> None:
    os.mkfifo(room / request_name("trace", "job"))
    assert Taken(run).look() == []


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
def test_whom_a_request_is_taken_from(
    file_owner: int, folder_owner: int, folder_mode: int, trusted: bool, tmp_path: Path
) -> None:
    file = tmp_path / "request"
    file.touch()
    assert (
        request_problem(status(file, file_owner, 0o644), status(tmp_path, folder_owner, folder_mode)) == ""
    ) is trusted


@pytest.mark.parametrize(
    ("address", "folder"),
    [("", "/run/stallscope"), ("unix:///a/b.sock", "/a"), ("udp://localhost", ""), ("http://localhost:19400", "")],
)
def test_requests_stand_beside_the_socket_that_takes_reports(address: str, folder: str) -> None:
    assert beside_socket(address, request_name("stop", "job")) == (
        f"{folder}/{request_name('stop', 'job')}" if folder else ""
    )


def train(run: stallscope.Run, clock: ScriptedClock, steps: int) -> None:
    for _ in range(steps):
        clock.advance(0.3)
        run.step()


def test_requested_steps_are_traced_and_no_others(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"), on_request=True)
    train(run, clock, 3)
    assert run.timeline.listener is None  # no check at each step until there is a trace request
    put(room, trace_request(first_step=10))
    train(run, clock, 20)
    assert {path.name for path in (tmp_path / "traces/job").iterdir()} == {
        "rank3-step10.trace.json",
        "rank3-step11.trace.json",
    }
    assert run.timeline.listener is None


def test_requests_and_selected_steps_go_together(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(steps=[2, 20], directory=str(tmp_path / "traces"), on_request=True)
    put(room, trace_request(first_step=10))
    train(run, clock, 30)
    assert len(list((tmp_path / "traces/job").iterdir())) == 4


def test_a_request_that_comes_too_late_traces_the_steps_that_are_left(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"), on_request=True)
    train(run, clock, 7)
    put(room, trace_request(first_step=0, steps=12))
    train(run, clock, 10)
    numbers = [int(path.name[10:-11]) for path in (tmp_path / "traces/job").iterdir()]
    assert max(numbers) == 11
    assert min(numbers) >= 7


def test_no_request_is_obeyed_unless_the_training_allows_it(
    room: Path, run: stallscope.Run, clock: ScriptedClock, tmp_path: Path
) -> None:
    run.trace(directory=str(tmp_path / "traces"))
    put(room, trace_request(first_step=10))
    train(run, clock, 20)
    assert not (tmp_path / "traces").exists()


def test_the_environment_allows_it_without_a_line_of_code(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_TRACE_DIR", str(tmp_path / "traces"))
    put(room, trace_request(first_step=2, steps=1))
    with stallscope.Run("job", rank=3, interval=0.0) as run:
        for _ in range(4):
            run.step()
    assert (tmp_path / "traces/job/rank3-step2.trace.json").exists()


@pytest.fixture
def stoppable(run: stallscope.Run, monkeypatch: pytest.MonkeyPatch) -> stallscope.Run:
    monkeypatch.setattr(stopping, "_callback", None)
    Stopper(run)
    return run


def stop(run: stallscope.Run, **changes: Any) -> bytes:
    """A request made now by the run's clock."""
    return trace_request(action="stop", steps=1, created=run.wall_time() + 1, **changes)


def test_the_function_of_on_stop_is_called_once_before_the_requested_step(
    room: Path, stoppable: stallscope.Run, clock: ScriptedClock, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    @stallscope.on_stop
    def note() -> None:
        called.append(stoppable.steps_done)

    put(room, stop(stoppable, first_step=10), action="stop")
    train(stoppable, clock, 20)
    assert called == [10]
    assert stoppable.timeline.listener is None
    assert "a stop of run job was requested through the exporter" in caplog.text


def test_what_the_function_raises_reaches_the_program(
    room: Path, stoppable: stallscope.Run, clock: ScriptedClock
) -> None:
    @stallscope.on_stop
    def leave() -> None:
        raise LookupError("enough")

    put(room, stop(stoppable, first_step=3), action="stop")
    with pytest.raises(LookupError, match="enough"):
        train(stoppable, clock, 20)
    assert stoppable.steps_done == 3


def test_without_a_function_the_process_gets_sigterm(
    room: Path, stoppable: stallscope.Run, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(signal, "raise_signal", lambda number: raised.append((number, stoppable.steps_done)))
    put(room, stop(stoppable, first_step=4), action="stop")
    train(stoppable, clock, 10)
    assert raised == [(signal.SIGTERM, 4)]


def test_a_stop_that_comes_late_is_obeyed_at_the_next_step(
    room: Path, stoppable: stallscope.Run, clock: ScriptedClock
) -> None:
    called: list[int] = []
    stallscope.on_stop(lambda: called.append(stoppable.steps_done))
    train(stoppable, clock, 10)
    put(room, stop(stoppable, first_step=4), action="stop")
    train(stoppable, clock, 10)
    (step,) = called
    assert 11 <= step <= 13


def test_a_stop_of_an_earlier_life_does_not_end_the_restarted_run(
    room: Path, stoppable: stallscope.Run, clock: ScriptedClock
) -> None:
    called: list[int] = []
    stallscope.on_stop(lambda: called.append(stoppable.steps_done))
    put(room, trace_request(action="stop", created=clock.time() - 5, first_step=4), action="stop")
    train(stoppable, clock, 10)
    assert called == []


STOPPED = """
import sys, time
import stallscope
with stallscope.Run("job", rank=3, interval=0.0) as run:
    print(flush=True)
    for _ in range(int(sys.argv[1])):
        time.sleep(0.01)
        run.step()
"""


@pytest.mark.parametrize("consent", ["1", "0"])
def test_a_program_ends_by_sigterm_only_with_its_consent(consent: str, room: Path) -> None:
    environment = {**os.environ, "STALLSCOPE_ALLOW_STOP": consent}
    command = [sys.executable, "-c", STOPPED, "6000" if consent == "1" else "200"]  # a busy machine may write late
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        put(room, trace_request(action="stop", first_step=5, created=time.time() + 1), action="stop")
        process.wait(60)
    assert process.returncode == (-signal.SIGTERM if consent == "1" else 0)
